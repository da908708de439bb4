"""The page about the package, docs/python.md: its programs run as they are printed, and the names in it exist."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import onebuf as ob

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"
WITH_PYOPENCL = pytest.mark.skipif(importlib.util.find_spec("pyopencl") is None, reason="pyopencl is not installed")


def sections(language, page=PAGE):
    """The programs of a language, by the heading that they stand below."""
    found, heading, lines = {}, "", None
    for line in page.read_text().splitlines():
        if lines is not None and line.startswith("```"):
            found.setdefault(heading, []).append("\n".join(lines))
            lines = None
        elif lines is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
        elif line == f"```{language}":
            lines = []
    return found


PROGRAMS = sections("python")
# These need a CUDA device, and PyTorch on it.
ON_A_GPU = {"Arrays on CUDA and ROCm", "An allocator for PyTorch"}
RUN_HERE = {"Python", "Fences and transfers", "pyopencl", "Two processes", "Traces and the live view"}
# `test_mpi4py.py` runs these on two ranks.
ON_RANKS = {"Ranks of an MPI job"}


@pytest.fixture(scope="module")
def first():
    """What the first program leaves."""
    names = {}
    (program,) = PROGRAMS["Python"]
    exec(compile(program, "docs/python.md", "exec"), names)
    return names


def test_every_program_is_known_here():
    assert set(PROGRAMS) == ON_A_GPU | RUN_HERE | ON_RANKS
    for programs in PROGRAMS.values():
        for program in programs:
            ast.parse(program)


def test_the_first_program(first, capsys):
    exec(compile(PROGRAMS["Python"][0], "docs/python.md", "exec"), {})
    assert capsys.readouterr().out.strip().endswith(" 0"), "no byte was copied"
    assert (first["x"].read() == 1).all() and first["hub"].ledger.implied_bytes == 0


def test_fences_and_transfers(first, capsys):
    names = dict(first)
    (program,) = PROGRAMS["Fences and transfers"]
    exec(compile(program, "docs/python.md", "exec"), names)
    assert capsys.readouterr().out.endswith(" us\n") and names["array"].shape == names["x"].shape


def test_traces(first, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (program,) = PROGRAMS["Traces and the live view"]
    exec(compile(program, "docs/python.md", "exec"), dict(first))
    assert (tmp_path / "trace.json").stat().st_size > 100 and "'work'" in capsys.readouterr().out


def test_two_processes(first):
    owner, other = PROGRAMS["Two processes"]
    name = f"frames-{os.getpid()}"
    ends = {}

    def visit():
        names = dict(first)
        end = time.monotonic() + 20
        while True:
            try:
                exec(compile(other.replace('"frames"', f'"{name}"'), "docs/python.md", "exec"), names)
            except (ob.PeerLost, ob.Unavailable, ob.InvalidArgument) as why:
                assert time.monotonic() < end, why
                time.sleep(0.01)
            else:
                ends["peer"] = names["peer"]
                return

    thread = threading.Thread(target=visit)
    thread.start()
    names = dict(first)
    exec(compile(owner.replace('"frames"', f'"{name}"'), "docs/python.md", "exec"), names)
    thread.join(30)
    assert (names["x"].read() == 2).all() and ends["peer"].round == 2
    ends["peer"].leave()
    names["peer"].leave()


@WITH_PYOPENCL
def test_pyopencl(first):
    import pyopencl as pycl

    device = first["cl"]
    platform = next(one for one in pycl.get_platforms() if one.name == device.platform)
    context = pycl.Context(platform.get_devices()[:1])
    names = {
        **first,
        "their_context": context,
        "their_queue": pycl.CommandQueue(context),
        "their_buffer": pycl.Buffer(context, pycl.mem_flags.READ_WRITE, 4096),
        "shape": (32, 32),
        "dtype": np.float32,
        "source": "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }",
        "result": np.empty(1024, np.float32),
    }
    for program in PROGRAMS["pyopencl"]:
        exec(compile(program, "docs/python.md", "exec"), names)
    assert (names["result"] == 2).all()


# The words in code on the page, and what they stand for.
MEANS = {
    "hub": ob.Hub, "x": ob.Buffer, "y": ob.Buffer, "pool": ob.Pool, "lu": ob.LU, "line": ob.Pipeline, "fence": ob.Fence, "queue": ob.Queue,
    "transfer": ob.Transfer, "v": ob.View, "shown": ob.Published, "allocator": ob.TorchAllocator, "peer": ob.Peer, "offer": ob.Offer, "ob": ob,
    "onebuf": ob, "device": ob.Device, "world": ob.World, "came": ob.InFlight,
}  # fmt: skip


def spans():
    """Everything in code: the programs, and the words in the text. The left column about other packages is theirs."""
    text = PAGE.read_text()
    here, _, rest = text.partition("## Coming from other packages")
    table, _, after = rest.partition("\n## ")
    rows = [line.split("|")[3] for line in table.splitlines() if line.startswith("|")]
    plain = re.sub(r"```.*?```", "", here + after + "\n".join(rows), flags=re.DOTALL)
    return re.findall(r"`([^`]+)`", plain) + [one for programs in PROGRAMS.values() for one in programs]


def test_the_names_on_the_page_exist():
    seen = set()
    for code in spans():
        for word, name in re.findall(r"(?<![\w.`/])(\w+)\.([a-zA-Z_]\w*)", code):
            # `onebuf.copies` is a logger, and files have endings.
            if word in MEANS and (word, name) != ("onebuf", "copies"):
                assert hasattr(MEANS[word], name), f"`{code}` on the page"
                seen.add((word, name))
    assert len(seen) > 60, "the test finds them"
    assert not hasattr(ob.Hub, "nothing"), "the control"


def known(call):
    """The options that a call takes, as its error names them."""
    with pytest.raises(TypeError, match="unexpected option `nothing`") as caught:
        call()
    return str(caught.value).partition(": ")[2].removesuffix(" are known").split(", ")


def test_the_table_of_options(hub):
    section = PAGE.read_text().partition("\n### Options\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    options = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert set(options) == set(known(lambda: hub.empty(4, nothing=1)))
    # "Functions that wrap memory the first six, `ob.attach` and `hub.import_fd` the first three."
    assert set(options[:6]) == set(known(lambda: hub.from_dlpack(np.ones(4), nothing=1)))
    assert set(options[:3]) == set(known(lambda: ob.attach("no-such-service", hub, nothing=1)))
    for name in options:
        hub.empty(4, **{name: None})


def coming_from(package, column):
    """The code of a package's rows, statement by statement."""
    rows, current = [], ""
    for line in PAGE.read_text().partition("## Coming from other packages")[2].splitlines():
        if line.startswith("## "):
            break
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[1] not in ("there", "---"):
            current = cells[0] or current
            if current == package:
                rows += re.findall(r"`([^`]+)`", cells[column])
    return rows


def runs(code, names):
    """Runs a statement of the table; the head of a block has an empty one."""
    text = code + " pass" if code.endswith(":") else code
    exec(compile(text, code, "exec"), names)


TEXT = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"


@pytest.fixture
def context():
    host = np.ones(64, np.float32)
    start = {"ob": ob, "np": np, "text": TEXT, "opencl_text": TEXT, "shape": 64, "dtype": np.float32, "n": 64, "nbytes": 256, "host": host}
    return {**start, "threads": 8, "a": host.copy()}


@WITH_PYOPENCL
def test_coming_from_pyopencl(context, monkeypatch):
    import pyopencl as cl
    import pyopencl.array

    monkeypatch.setenv("PYOPENCL_CTX", "0")
    there = {**context, "cl": cl}
    for code in coming_from("pyopencl", 1):
        if code == "wait_for=":
            continue
        if "other" in code:
            there["other"] = cl.Buffer(there["ctx"], cl.mem_flags.READ_WRITE, 256)
        if "event" in code:
            timed = cl.CommandQueue(there["ctx"], properties=cl.command_queue_properties.PROFILING_ENABLE)
            there["event"] = cl.enqueue_marker(timed)
            there["event"].wait()
        runs(code, there)
    here = dict(context)
    for code in coming_from("pyopencl", 2):
        if code == "Fence":
            assert ob.Fence
            continue
        if "profile" in code:
            fence = eval(code.removesuffix(".profile()"), here)
            fence.wait()
            assert fence.profile()
            continue
        if "other" in code:
            here["other"] = here["hub"].array(np.full(64, 5, np.float32))
        runs(code, here)
    assert (here["x"].read() == 10).all()
    assert isinstance(pyopencl.array.Array, type)


@WITH_PYOPENCL
def test_the_page_about_pyopencl(monkeypatch):
    import pyopencl as cl

    monkeypatch.setenv("PYOPENCL_CTX", "0")
    programs = sections("python", PAGE.parent / "neighbours/pyopencl.md")
    before, after = programs["Coming from pyopencl"]
    there, here, both = {}, {}, {}
    exec(compile(before, "pyopencl.md", "exec"), there)
    exec(compile(after, "pyopencl.md", "exec"), here)
    assert (there["samples"] == 2).all() and here["total"] == there["samples"].sum()
    (together,) = programs["Both in one program"]
    exec(compile(together, "pyopencl.md", "exec"), both)
    context, queue, buffer = (there[name] for name in ("context", "queue", "buffer"))
    kept = both["with_onebuf"](context, queue, buffer)
    result = np.empty(4096, np.float32)
    cl.enqueue_copy(queue, result, buffer)
    assert (result == 4).all() and kept.shape == (4096,)


def test_the_page_about_cupy():
    before, after = sections("python", PAGE.parent / "neighbours/cupy.md")["Coming from CuPy and PyCUDA"]
    ast.parse(before)
    names = {}
    exec(compile(after, "cupy.md", "exec"), names)
    assert (names["x"] == 2).all()


def test_coming_from_cupy_and_pycuda(context, hub, cl):
    x = hub.array(np.ones(64, np.float32), share=[cl])
    matrix = hub.array(np.eye(64, dtype=np.float32) * 4)
    for package in ("CuPy", "PyCUDA"):
        names = {**context, "hub": hub, "x": x}
        if package == "CuPy":
            names |= {"a": matrix, "b": hub.array(np.full(64, 8, np.float32))}
        for code in coming_from(package, 2):
            # What needs a GPU is tried on one.
            code = code.replace("cuda:0", cl.id)
            if code in ("x", "queue=") or "stream=" in code:
                continue
            runs(code, names)
        if package == "CuPy":
            assert (names["b"].read() == 2).all() and (x.read() == 1).all()
        else:
            assert (context["a"] == 2).all()


def test_the_commands(tmp_path):
    (shell,) = sections("sh")["Python"]
    commands = [line.partition("#")[0].strip() for line in shell.splitlines()]
    environment = "python3 -m venv ~/onebuf-env && . ~/onebuf-env/bin/activate"
    assert commands == [environment, "./dev wheel", "pip install target/wheels/onebuf-*.whl", "python -m onebuf doctor"]
    ran = subprocess.run([sys.executable, "-m", "onebuf", "doctor", "--help"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and ran.stderr == ""


def test_the_links_lead_somewhere():
    text = re.sub(r"`[^`\n]+`", "", re.sub(r"```.*?```", "", PAGE.read_text(), flags=re.DOTALL))
    headings = {re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in text.splitlines() if line.startswith("#")}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        if not path.startswith("http"):
            assert not path or (PAGE.parent / path).exists(), target
            assert path or anchor in headings, target


def test_free_threaded_python_is_refused_with_a_sentence():
    text = "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; import onebuf"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "ImportError: onebuf does not support free-threaded builds of Python" in ran.stderr, ran
