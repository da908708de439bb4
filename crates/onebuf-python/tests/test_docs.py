"""Docstrings, stubs and examples: what they show is true."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import onebuf as ob

from conftest import LIBRARIES, absent

PACKAGE = Path(ob.__file__).parent
MODULES = ["onebuf", "onebuf.errors", "onebuf._arrays", "onebuf._kernel", "onebuf._pipeline", "onebuf.cache", "onebuf.sources", "onebuf.sinks"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    found = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert found.failed == 0


def test_some_docstrings_have_examples():
    assert sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES) > 15


def test_everything_public_says_what_it_is():
    for name in ob.__all__:
        thing = getattr(ob, name)
        assert inspect.getdoc(thing), name
        if not inspect.isclass(thing) or issubclass(thing, Exception):
            continue
        for method, value in vars(thing).items():
            if not method.startswith("_"):
                assert inspect.getdoc(value), f"{name}.{method}"


def stub(name):
    """The names in a stub: of the module, and of each class."""
    tree = ast.parse((PACKAGE / name).read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = {}
    for node in tree.body:
        # Dictionaries of options are types alone.
        if isinstance(node, ast.ClassDef) and not node.keywords:
            names = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            names |= {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
            classes[node.name] = names
    return functions, classes


def test_the_stubs_name_what_the_native_module_has():
    functions, classes = stub("_onebuf.pyi")
    native = ob._onebuf
    public = {name for name in dir(native) if not name.startswith("__")}
    assert functions | set(classes) == public
    hidden = {"__new__", "__module__", "__doc__", "__hash__", "__weakref__", "__class_getitem__"}
    # Comparisons come in sixes.
    hidden |= {"__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__delitem__"}
    # Python has names for these since 3.12.
    hidden |= {"__buffer__", "__release_buffer__", "__traverse__", "__clear__"}
    for name, stubbed in classes.items():
        real = {one for one in vars(getattr(native, name)) if one not in hidden}
        assert real == stubbed - hidden, name


def test_the_stubs_parse_and_cover_every_module():
    assert (PACKAGE / "py.typed").exists()
    for path in PACKAGE.glob("*.pyi"):
        tree = ast.parse(path.read_text())
        # A stub that has the list has its names, and they are those of the module.
        listed = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]
        module = importlib.import_module(f"onebuf.{path.stem}" if path.stem != "__init__" else "onebuf")
        if hasattr(module, "__all__") and path.stem != "_onebuf":
            assert sorted(ast.literal_eval(listed[0])) == sorted(module.__all__), path.name
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__main__"}
    assert modules | {"_onebuf"} == {path.stem for path in PACKAGE.glob("*.pyi")}


def options(name, tree):
    """The options of a dictionary in the stubs, with those of the dictionaries that it extends."""
    node = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    inherited = [options(base.id, tree) for base in node.bases if base.id != "TypedDict"]
    return set().union(*inherited, {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)})


def test_the_stubs_have_the_options_of_buffers(hub):
    tree = ast.parse((PACKAGE / "_onebuf.pyi").read_text())
    known = {
        "_New": lambda: hub.empty(4, nothing=1),
        "_Wrapped": lambda: hub.from_dlpack(np.ones(4), nothing=1),
        "_Shared": lambda: ob.attach("no-such-service", hub, nothing=1),
    }
    for name, call in known.items():
        with pytest.raises(TypeError, match="unexpected option `nothing`: .* are known") as caught:
            call()
        listed = str(caught.value).partition(": ")[2].removesuffix(" are known").split(", ")
        assert set(listed) == options(name, tree), name


HAS = os.environ.get("ONEBUF_PYTHON_HAS")


def needs(path):
    """The libraries that an example says it needs."""
    lines = path.read_text().splitlines()
    return {one for line in lines if line.startswith("# Needs: ") for one in line.removeprefix("# Needs: ").split(", ")}


ALL = sorted(Path(os.environ.get("ONEBUF_EXAMPLES", "examples/python")).glob("[0-9]*.py"))
EXAMPLES = [path for path in ALL if HAS is None or needs(path) <= set(HAS.split(","))]


def test_there_are_examples():
    assert len(ALL) >= 6 and len(EXAMPLES) >= 3, "ONEBUF_EXAMPLES names their folder"


def only_on_gpus(path):
    """Whether an example may be skipped everywhere but on a machine with a GPU: it says so, or needs what `./dev test` does not install."""
    return "skip:" in path.read_text() or not needs(path) <= LIBRARIES.keys()


def test_examples_that_may_be_skipped_run_on_gpu_machines():
    script = (Path(__file__).resolve().parents[3] / "benches/python/gpu.sh").read_text()
    names = {path.name for path in ALL if only_on_gpus(path)}
    assert {"07-cuda.py", "09-custom-op.py"} <= names and "01-one-buffer.py" not in names
    assert [name for name in sorted(names) if f"examples/python/{name}" not in script] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path, tmp_path):
    missing = [module for module in needs(path) if importlib.util.find_spec(module) is None]
    if missing:
        absent(f"{path.name}: {', '.join(missing)} not installed")
    command = [sys.executable, path.resolve()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip(), "an example shows something"
    if ran.stdout.startswith("skip:"):
        pytest.skip(ran.stdout.removeprefix("skip:").strip())
