"""The stubs: mypy's `stubtest` compares them with the module, signature by signature; the examples and the pages' programs agree with them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import onebuf as ob

from test_page import PAGE, PROGRAMS, sections

PACKAGE = Path(ob.__file__).parent
EXAMPLES = Path(os.environ.get("ONEBUF_EXAMPLES", "examples/python"))

# Where the stubs differ from the module, and why. An entry that matches nothing is an error; `(…)?` marks those that depend on Python's version.
ALLOWED = r"""
# pyo3 lists every name of the native module, private ones too. No program imports all of them.
onebuf\._onebuf\.__all__
# Classes have names for the buffer protocol since Python 3.12. Type checkers know the protocol by these names for every version.
(onebuf\._onebuf\.(Buffer|Map|_HostBytes)\.__(release_)?buffer__)?
"""

# Other libraries are not looked at: they may be missing, and the stubs of some take minutes.
OPTIONS = """
[mypy]
check_untyped_defs = True
disable_error_code = var-annotated
[mypy-cupy.*,matplotlib.*,mpi4py.*,pyopencl.*,torch.*]
follow_imports = skip
ignore_missing_imports = True
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Settings, and what mypy remembers from one test to the next."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "options.ini").write_text(OPTIONS)
    (folder / "allowed.txt").write_text(ALLOWED)
    return folder


def mypy(folder, *names, **environment):
    command = [sys.executable, "-m", "mypy", "--config-file", folder / "options.ini", "--cache-dir", folder / "cache", *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, env={**os.environ, **environment})


def stubtest(folder, **environment):
    command = [sys.executable, "-m", "mypy.stubtest", "onebuf", "--concise", "--allowlist", "allowed.txt"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, env={**os.environ, **environment})


def test_the_stubs_have_the_modules_signatures(folder):
    ran = stubtest(folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# Changes of the stubs, and what stubtest says of each.
WRONG = [
    ("def export_fd(self, kind: ", "def export_fd(self, sort: ", "Buffer.export_fd is inconsistent"),
    ("def queue(self, *, out_of_order", "def queue(self, out_of_order", "Device.queue is inconsistent"),
    ("def on(self, device: _Device, *, write: bool = True", "def on(self, device: _Device, *, write: bool = False", "Buffer.on is inconsistent"),
    ("def __new__(cls, buffer: Buffer, name: str)", "def __new__(cls, buffer: Buffer)", "Offer.__new__ is inconsistent"),
    ("def source_file(path: _Path, times: int | None = 1)", "def source_file(path: _Path, times: int | None = 2)", "source_file is inconsistent"),
    ("    def flush(self) -> None: ...\n", "", "Queue.flush is not present in stub"),
    ("    def explain(self) -> str: ...\n", "    def explain(self) -> str: ...\n    def more(self) -> str: ...\n", "Buffer.more is not present at runtime"),
]


def test_wrong_stubs_are_noticed(folder, tmp_path):
    package = tmp_path / "onebuf"
    package.mkdir()
    for path in PACKAGE.iterdir():
        if path.suffix == ".pyi":
            (package / path.name).write_text(path.read_text())
        else:
            (package / path.name).symlink_to(path)
    native = package / "_onebuf.pyi"
    text = native.read_text()
    for before, after, _ in WRONG:
        assert before in text, before
        text = text.replace(before, after, 1)
    native.write_text(text)
    ran = stubtest(folder, PYTHONPATH=str(tmp_path), MYPYPATH=str(tmp_path))
    assert ran.returncode == 1, ran.stdout + ran.stderr
    for _, _, said in WRONG:
        assert f"onebuf._onebuf.{said}" in ran.stdout, ran.stdout


def test_the_stubs_need_no_type_that_is_missing(folder):
    copy = folder / "stubs" / "onebuf"
    copy.mkdir(parents=True)
    for path in PACKAGE.glob("*.pyi"):
        (copy / path.name).write_text(path.read_text())
    ran = mypy(folder, "--strict", copy)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with (copy / "errors.pyi").open("a") as stub:
        stub.write("def wrong(x) -> Missing: ...\n")
    said = mypy(folder, "--strict", copy).stdout
    assert "Missing" in said and "no-untyped-def" in said, said


def cells(path):
    """The program of a notebook."""
    found = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in found if cell["cell_type"] == "code")


# What the programs of a page use and do not make: objects of other libraries, and of the reader's program.
GIVEN = """
from typing import Any
import numpy as np
import onebuf as ob
torch: Any
t: Any
result: Any
shape: tuple[int, ...]
dtype: Any
source: str
their_buffer: Any
their_context: Any
their_queue: Any
"""


def page(heading):
    """The programs below a heading of the page, as a function's body; the first program's names are known."""
    body = "\n".join(PROGRAMS[heading])
    return "def program() -> None:\n" + "".join(f"    {line}\n" for line in body.splitlines())


def programs():
    """Every program of the examples and the pages, by a name that a module can have."""
    found = {f"example_{path.stem.replace('-', '_')}": path.read_text() for path in EXAMPLES.glob("[0-9]*.py")}
    found["notebook"] = cells(EXAMPLES / "beams.ipynb")
    (first,) = PROGRAMS["Python"]
    before = f"{GIVEN}{first}\ncuda = hub['cuda:0']\nk = gain\n"
    for number, heading in enumerate(sorted(PROGRAMS.keys() - {"Python"})):
        found[f"page_{number}"] = before + page(heading)
    for name in ("pyopencl", "cupy"):
        for blocks in sections("python", PAGE.parent / f"neighbours/{name}.md").values():
            found |= {f"{name}_{number}": block for number, block in enumerate(blocks)}
    return found


def test_the_programs_of_examples_and_pages_agree_with_the_stubs(folder):
    found = programs()
    assert len(found) > 20, sorted(found)
    for name, text in found.items():
        (folder / f"{name}.py").write_text(text)
    ran = mypy(folder, *(f"{name}.py" for name in found))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"in {len(found)} source files" in ran.stdout


# Lines that the stubs must refuse; the code says why.
REFUSED = """
import numpy as np
import onebuf as ob
hub = ob.discover()
x = hub.empty(4, np.float32, copies="forbid")
hub.empty(4, np.float32, copies="perhaps")  # typeddict-item arg-type
hub.empty(4, np.float32, shared=[])  # call-arg
x.map("w")  # arg-type
x.export()  # attr-defined
ob.Offer(x)  # call-arg
ob.attach("frames", hub, access="read")  # call-arg
number: int = x.explain()  # assignment
ob.kernel(b"source")  # arg-type
"""


def test_wrong_programs_are_noticed(folder):
    (folder / "refused.py").write_text(REFUSED)
    ran = mypy(folder, "refused.py")
    seen = {int(line): code for line, code in re.findall(r"^refused\.py:(\d+): error: .* \[([\w-]+)\]$", ran.stdout, re.MULTILINE)}
    marked = {at: line.partition("  # ")[2].split() for at, line in enumerate(REFUSED.splitlines(), 1) if "  # " in line}
    assert seen.keys() == marked.keys() and len(marked) == 8, ran.stdout
    assert all(code in marked[at] for at, code in seen.items()), ran.stdout
