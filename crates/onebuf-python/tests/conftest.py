"""What the tests share: devices, and libraries that may be missing.

`ONEBUF_PYTHON_HAS` names the libraries that this environment was made with. A library that is named and missing is a failure; tests of
others are not collected. Without the variable a missing library is a skip, and with `ONEBUF_STRICT=1` a failure.
"""

import importlib.util
import os
import sys

import pytest

import onebuf as ob

# Each has a file of tests, and these modules.
LIBRARIES = {
    "dpctl": ["dpctl"],
    "jax": ["jax"],
    "mpi4py": ["mpi4py"],
    "notebook": ["nbclient", "ipykernel", "matplotlib", "tqdm"],
    "pyopencl": ["pyopencl"],
    "torch": ["torch"],
    "types": ["mypy"],
}
STRICT = os.environ.get("ONEBUF_STRICT", "0") != "0"
HAS = os.environ.get("ONEBUF_PYTHON_HAS")


def absent(what):
    """The test cannot run here."""
    if STRICT:
        pytest.fail(f"{what} (ONEBUF_STRICT)")
    pytest.skip(what)


def pytest_ignore_collect(collection_path):
    name = collection_path.stem.removeprefix("test_")
    if name in LIBRARIES and HAS is not None and name not in HAS.split(","):
        return True
    missing = [module for module in LIBRARIES.get(name, []) if importlib.util.find_spec(module) is None]
    if missing:
        if STRICT or HAS is not None:
            raise pytest.UsageError(f"{', '.join(missing)} not installed")
        print(f"skip: {name}: {', '.join(missing)} not installed")
        return True
    return None


def pytest_terminal_summary(terminalreporter):
    """The summary of `./dev test` repeats these lines, which name the environment."""
    reasons = {str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])}
    for reason in sorted(reasons):
        print(f"skip: python, {os.path.basename(sys.prefix)}: {reason}")


GAIN = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"


@pytest.fixture(scope="session")
def hub():
    return ob.discover(without=["gl", "vulkan"])


@pytest.fixture(scope="session")
def cl(hub):
    """PoCL's device."""
    return by_platform(hub, "portable")


@pytest.fixture(scope="session")
def other(hub):
    """rusticl's device."""
    return by_platform(hub, "rusticl")


def by_platform(hub, name):
    for device in hub.devices:
        if device.api == "opencl" and name in device.platform.lower():
            return device
    return absent(f"no OpenCL platform of the name {name}")


@pytest.fixture(scope="session")
def gain(cl):
    return cl.kernel(GAIN)


@pytest.fixture(scope="session")
def gain_there(other):
    return other.kernel(GAIN)


@pytest.fixture
def proven(hub, cl, other):
    """That `onebuf doctor` has proven how these devices share memory: the tests' step runs it first."""
    if not hub.zero_copy(cl, other, hub.host):
        absent("no proven zero-copy route: run `python -m onebuf doctor --devices host,opencl:0,opencl:1`")
