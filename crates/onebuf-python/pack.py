"""Puts the wheel together: the native module, the program, the Python sources, the bill of materials, and what a wheel says about itself.

The same for a release and for the tests, which pack what they have compiled already.
"""

import argparse
import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import sbom

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
EPOCH = (1980, 1, 1, 0, 0, 0)

SUMMARY = "One buffer, every compute API: OpenCL, CUDA, HIP, OpenGL, Vulkan, NumPy, PyTorch, JAX, without copies"


def version():
    """The workspace's version, as Python writes it."""
    text = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)
    return re.sub(r"-dev$", ".dev0", text)


def newest_glibc(path):
    """The newest version of glibc whose symbols a file needs, such as (2, 28)."""
    told = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True).stdout
    unknown = []
    for words in (line.split() for line in told.splitlines() if "*UND*" in line):
        at = words.index("*UND*")
        # Address, flags, section, size, version, name: without a version it is Python's, or missing where the file is loaded.
        is_weak, has_version, name = "w" in words[1:at], len(words) > at + 3, words[-1]
        if not (is_weak or has_version or name.startswith(("Py", "_Py"))):
            unknown.append(name)
    if unknown:
        sys.exit(f"{path} needs symbols that no library has: {', '.join(unknown)}")
    found = re.findall(r"\(?GLIBC_(\d+)\.(\d+)", told)
    return max(((int(major), int(minor)) for major, minor in found), default=(2, 17))


LICENSES = ("LICENSE-MIT", "LICENSE-APACHE")
CLASSIFIERS = (
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3 :: Only",
    "Programming Language :: Python :: Implementation :: CPython",
    "Programming Language :: Rust",
    "Topic :: Scientific/Engineering",
    "Typing :: Typed",
)


def description():
    """The page about the package, without links to other pages, which are not there."""
    page = (ROOT / "docs" / "python.md").read_text()
    return re.sub(r"\[([^]]+)]\((?!https?:)[^)]*\)", r"\1", page)


def metadata(name):
    """What the package says about itself. Free-threaded builds of Python are not among the classifiers: its ABI excludes them."""
    lines = [
        "Metadata-Version: 2.4",
        "Name: onebuf",
        f"Version: {name}",
        f"Summary: {SUMMARY}",
        "Keywords: opencl,cuda,hip,dlpack,zero-copy,numpy,pytorch",
        "Author: The onebuf authors",
        "License-Expression: MIT OR Apache-2.0",
        *(f"License-File: {one}" for one in LICENSES),
        *(f"Classifier: {one}" for one in CLASSIFIERS),
        "Requires-Python: >=3.11",
        "Requires-Dist: numpy>=1.24",
        "Description-Content-Type: text/markdown",
        "",
        description(),
    ]
    return "\n".join(lines)


class Wheel:
    """A zip file, and the record of what is in it."""

    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6)
        self.record = []

    def add(self, name, data, mode=0o644):
        info = zipfile.ZipInfo(name, EPOCH)
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self, name):
        rows = "\n".join([*self.record, f"{name},,"]) + "\n"
        info = zipfile.ZipInfo(name, EPOCH)
        info.external_attr = 0o100644 << 16
        self.zip.writestr(info, rows)
        self.zip.close()


def stripped(path):
    """A file without what only debuggers read."""
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "stripped"
        done = subprocess.run(["strip", "--strip-debug", "-o", to, path])
        return (to if done.returncode == 0 else Path(path)).read_bytes()


def pack(module, program, to):
    """Packs the wheel, and returns its path."""
    need = max(newest_glibc(module), newest_glibc(program), (2, 17))
    name = version()
    tag = f"cp311-abi3-manylinux_{need[0]}_{need[1]}_{platform.machine()}"
    to.mkdir(parents=True, exist_ok=True)
    path = to / f"onebuf-{name}-{tag}.whl"
    info = f"onebuf-{name}.dist-info"
    part = path.with_suffix(".part")
    wheel = Wheel(part)
    for source in sorted((HERE / "python" / "onebuf").iterdir()):
        if source.suffix in (".py", ".pyi") or source.name == "py.typed":
            wheel.add(f"onebuf/{source.name}", source.read_bytes())
    wheel.add("onebuf/_onebuf.abi3.so", stripped(module), 0o755)
    wheel.add("onebuf/bin/onebuf", stripped(program), 0o755)
    wheel.add(f"{info}/METADATA", metadata(name).encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: onebuf\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\nonebuf = onebuf.__main__:main\n")
    for licence in LICENSES:
        wheel.add(f"{info}/licenses/{licence}", (ROOT / licence).read_bytes())
    # PEP 770: tools that look for vulnerable versions read the crates here; in the files they cannot.
    wheel.add(f"{info}/sboms/onebuf.cyclonedx.json", sbom.bill(name))
    wheel.close(f"{info}/RECORD")
    os.replace(part, path)
    return path, need


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", type=Path, required=True, help="the native module, as cargo built it")
    parser.add_argument("--program", type=Path, required=True, help="the program `onebuf`")
    parser.add_argument("--to", type=Path, required=True, help="the folder for the wheel")
    parser.add_argument("--most-glibc", help="refuse to pack what needs a newer glibc than this, such as 2.28")
    given = parser.parse_args()
    path, need = pack(given.module, given.program, given.to)
    if given.most_glibc and need > tuple(int(part) for part in given.most_glibc.split(".")):
        path.unlink()
        sys.exit(f"the wheel would need glibc {need[0]}.{need[1]}, and {given.most_glibc} is the most")
    print(path)


if __name__ == "__main__":
    main()
