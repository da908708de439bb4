"""Kernels on arrays of other libraries: `onebuf.kernel(source)(array, 2.0)`."""

import threading

from ._onebuf import TensorKernel, discover
from .errors import InvalidArgument, Unavailable

_lock = threading.Lock()
_hub = None


def _default_hub():
    """The hub that arrays of other libraries are used with."""
    global _hub
    if _hub is None:
        with _lock:
            if _hub is None:
                _hub = discover()
    return _hub


def _cpu(hub):
    """The OpenCL device that computes on the host's memory: PoCL's rather than others."""
    found = [device for device in hub.devices if device.api == "opencl" and device.kind == "cpu"]
    if not found:
        raise Unavailable("a kernel on arrays of the host needs an OpenCL driver for the CPU, such as PoCL")
    return min(found, key=lambda device: "portable computing" not in device.platform.lower())


def _on_host(kernel, args, grid, local, offset):
    """Wraps the arrays, launches on a CPU's device, and returns when their memory has the results."""
    hub = _default_hub()
    device = _cpu(hub)
    kernel = kernel.on(device)
    if len(args) != len(kernel.parameters):
        raise InvalidArgument(
            f"kernel `{kernel.name}` takes {len(kernel.parameters)} arguments, {len(args)} were given"
        )
    wrapped = {}
    taken = []
    for one in args:
        if hasattr(one, "__dlpack__") and getattr(one, "ndim", 1) > 0:
            if one.__dlpack_device__()[0] not in (1, 3, 11):
                raise InvalidArgument("arrays of the host and of a device in one launch")
            if id(one) not in wrapped:
                # In place where the array is aligned as the driver needs it, else by a copy, which the hub's ledger counts.
                wrapped[id(one)] = hub.from_dlpack(one, share=[device], trust_declared=True)
            one = wrapped[id(one)]
        taken.append(one)
    kernel(*taken, grid=grid, local=local, offset=offset)
    for buffer in wrapped.values():
        # To the host: what the kernel wrote is in the array after this.
        with buffer.map("r"):
            pass


def kernel(source, name=None, *, options="", each=False):
    """An OpenCL kernel for buffers, and for arrays of NumPy, PyTorch, CuPy and others.

    It is compiled once for each device. On arrays of a CUDA or HIP device it is compiled by the OpenCL driver of the same chip, grafted onto
    that device, and launched in the stream that the array's library uses now; `stream=` names another. Arrays of the host are wrapped in
    place, and computed on by an OpenCL driver for the CPU: such a launch returns when they have the results. On buffers it runs
    on the OpenCL device that the first one is shared with, or on the CUDA or HIP device that it is shared with, or lent to.

    The kernel is trusted to stay inside of its arguments; see `Device.kernel` for `each`.

    >>> import onebuf, numpy as np
    >>> gain = onebuf.kernel("kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }")
    >>> x = np.ones(1024, np.float32)             # or a tensor of PyTorch, or an array of CuPy
    >>> gain(x, 2.0)
    >>> float(x.sum())
    2048.0
    """
    return TensorKernel(source, name, options=options, each=each)
