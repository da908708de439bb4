"""What the tests on a real CUDA device share. They need PyTorch and CuPy, and are skipped, with the reason, where one of these is missing."""

import importlib.util

import pytest


def missing():
    """Why these tests cannot run here."""
    for name in ("torch", "cupy"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    import torch

    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device"
    import onebuf as ob

    hub = ob.discover(without=["gl", "vulkan"])
    ids = [device.id for device in hub.devices]
    if "cuda:0" not in ids:
        return f"onebuf finds no CUDA device: {ids}, {hub.unavailable}"
    return None


WHY = missing()
if WHY is not None:
    pytest.skip(WHY, allow_module_level=True)


@pytest.fixture(scope="session")
def hub():
    import onebuf as ob

    return ob.discover(without=["gl", "vulkan"])


@pytest.fixture(scope="session")
def cuda(hub):
    return hub["cuda:0"]


@pytest.fixture(scope="session")
def cl(hub, cuda):
    """The OpenCL device of the same chip."""
    for device in hub.devices:
        if device.api == "opencl" and "nvidia" in device.platform.lower():
            return device
    pytest.skip("no OpenCL device of NVIDIA's: install its ICD file")


@pytest.fixture(scope="session")
def shared(hub, cuda, cl):
    """How buffers of both are made: in place, proven or declared."""
    proven = hub.zero_copy(cl, cuda)
    return {"share": [cl, cuda], "copies": "forbid", "trust_declared": not proven}
