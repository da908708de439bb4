"""The bill of materials of the wheel: the crates in its native module and its program, as CycloneDX.

`cargo tree` names them and their licences, with the features that a release has (`cargo metadata` would add those that only tests use), and Cargo.lock
has their checksums. The same sources give the same bytes: no date, no path and no random number is in it. Alone it prints the object.
"""

import json
import platform
import re
import subprocess
import sys
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("onebuf-python", "onebuf-cli")
# A fixed name space: the number of a bill follows from its contents.
SPACE = uuid.uuid5(uuid.NAMESPACE_OID, "onebuf.cyclonedx.json")


def cargo(*words):
    """What cargo prints. It is asked without a network first: a machine that has built the wheel has all crates."""
    refusals = []
    for offline in (["--offline"], []):
        done = subprocess.run(["cargo", *words, "--locked", "--color", "never", *offline], cwd=ROOT, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout
        refusals.append(done.stderr.strip())
    sys.exit(f"cargo {words[0]} failed: {refusals[-1]}")


def tree(edges):
    """The crates that the wheel is made of, as pairs of name and version: those that each depends on, and each one's licence."""
    which = [word for name in PACKAGES for word in ("-p", name)]
    target = f"{platform.machine()}-unknown-linux-gnu"
    found, licences, above = {}, {}, []
    for line in cargo("tree", *which, "-e", edges, "--target", target, "--prefix", "depth", "--format", " {p}\t{l}").splitlines():
        if not line.strip():
            continue
        depth, name, version, licence = re.match(r"(\d+) (\S+) v(\S+)[^\t]*\t(.*?)(?: \(\*\))?$", line).groups()
        one = (name, version)
        found.setdefault(one, set())
        # Some old manifests write "MIT/Apache-2.0".
        licences[one] = " OR ".join(licence.split("/"))
        del above[int(depth) :]
        if above:
            found[above[-1]].add(one)
        above.append(one)
    return found, licences


def checksums():
    """The SHA-256 of each crate that comes from a registry."""
    row = re.compile(r'name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "(.+)"')
    return {(name, version): checksum for name, version, checksum in row.findall((ROOT / "Cargo.lock").read_text())}


def purl(one):
    return f"pkg:cargo/{one[0]}@{one[1].replace('+', '%2B')}"


def component(one, linked, licence, checksum):
    about = {"type": "library", "bom-ref": purl(one), "name": one[0], "version": one[1], "purl": purl(one)}
    # CycloneDX calls it excluded what a build needs and the result does not contain.
    about["scope"] = "required" if one in linked else "excluded"
    # Crates of this repository have none.
    if checksum:
        about["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if licence:
        about["licenses"] = [{"expression": licence}]
    return about


def bill(version):
    """The bill of the wheel with this version, as bytes."""
    every, licences = tree("normal,build")
    linked, _ = tree("normal,no-proc-macro")
    sums = checksums()
    wheel = f"pkg:pypi/onebuf@{version}"
    roots = {one for one in every if one[0] in PACKAGES}
    about = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": wheel,
                "name": "onebuf",
                "version": version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
                "purl": wheel,
            },
        },
        "components": [component(one, linked, licences[one], sums.get(one)) for one in sorted(every)],
        "dependencies": [
            {"ref": wheel, "dependsOn": sorted(map(purl, roots))},
            *({"ref": purl(one), "dependsOn": sorted(map(purl, every[one]))} for one in sorted(every)),
        ],
    }
    text = json.dumps(about, indent=1)
    return json.dumps({"serialNumber": f"urn:uuid:{uuid.uuid5(SPACE, text)}", **about}, indent=1).encode() + b"\n"


if __name__ == "__main__":
    import pack

    sys.stdout.write(bill(pack.version()).decode())
