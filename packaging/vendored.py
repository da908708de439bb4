"""Makes vendored crates fit for a source package, and prints the paragraphs of debian/copyright about those that are left.

    vendored.py VENDOR NEEDED

NEEDED is a list as `cargo tree --prefix none --format '{p}'` prints it. Cargo reads the manifest of every crate in Cargo.lock, but the code
only of those that it compiles. Of the others the manifest stays: they are crates of other systems, some with prebuilt libraries, and crates of
tests. With all of their files the package would have five times the size.
"""

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

TARGETS = ("bin", "example", "test", "bench")


def needed(path):
    """The folders of the crates that are compiled."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {f"{row[0]}-{row[1].removeprefix('v')}" for row in rows if len(row) > 1}


def manifest(crate):
    return tomllib.loads((crate / "Cargo.toml").read_text())


def sources(about):
    """The files that a manifest names: cargo refuses a manifest whose targets are missing."""
    targets = [about.get("lib", {}), *(one for kind in TARGETS for one in about.get(kind, []))]
    build = about["package"].get("build")
    return {one["path"] for one in targets if "path" in one} | ({build} if isinstance(build, str) else set())


def reduce(crate):
    """Leaves the manifest, and an empty file for each target."""
    about, checksum = (crate / "Cargo.toml").read_bytes(), json.loads((crate / ".cargo-checksum.json").read_text())
    # Manifests that name no library mean this one.
    names = sources(manifest(crate)) | {"src/lib.rs"}
    shutil.rmtree(crate)
    for name in names:
        (crate / name).parent.mkdir(parents=True, exist_ok=True)
        (crate / name).touch()
    (crate / "Cargo.toml").write_bytes(about)
    # `package` is what Cargo.lock is compared with.
    (crate / ".cargo-checksum.json").write_text(json.dumps({"files": {}, "package": checksum["package"]}))


def drop_binaries(crate):
    """Removes libraries that tests of a crate load: a source package has none, and nothing that is built reads them."""
    path = crate / ".cargo-checksum.json"
    checksum = json.loads(path.read_text())
    for name in [one for one in checksum["files"] if one.endswith((".dll", ".lib", ".a", ".so"))]:
        (crate / name).unlink()
        del checksum["files"][name]
    path.write_text(json.dumps(checksum))


def paragraph(licence, crates):
    """What DEP 5 wants to know of the crates with one licence."""
    files = "\n".join(f" vendor/{crate}/*" for crate in crates)
    return (
        f"\nFiles:\n{files}\n"
        "Copyright: the authors of each crate, whom its Cargo.toml and its licence files name\n"
        f"License: {licence}\n"
        " The crate's own files have the text: those named LICENSE, LICENCE, COPYING or\n"
        " UNLICENSE in its folder. /usr/share/common-licenses/Apache-2.0 has that of the\n"
        " Apache licence 2.0.\n"
    )


def licence(crate):
    """The licence as DEP 5 writes it."""
    about = manifest(crate)["package"]
    text = about.get("license") or "as in " + about["license-file"]
    words = " ".join(text.replace("/", " OR ").split())
    # An exception has a name of two words there, and a comma stands for parentheses.
    words = re.sub(r" WITH (\S+)-exception", r" with \1 exception", words)
    words = re.sub(r"^\((.*)\) AND ", r"\1, and ", words)
    return words.replace(" OR ", " or ").replace(" AND ", " and ")


def main():
    vendor, kept, groups = Path(sys.argv[1]), needed(Path(sys.argv[2])), {}
    crates = sorted(one for one in vendor.iterdir() if one.is_dir())
    if not kept & {crate.name for crate in crates}:
        sys.exit(f"none of the crates in {vendor} is compiled")
    for crate in crates:
        if crate.name in kept:
            drop_binaries(crate)
        else:
            reduce(crate)
        groups.setdefault(licence(crate), []).append(crate.name)
    for name, members in sorted(groups.items()):
        sys.stdout.write(paragraph(name, members))


if __name__ == "__main__":
    main()
