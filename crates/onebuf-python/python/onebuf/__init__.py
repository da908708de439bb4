"""One buffer, every compute API.

A buffer is allocated once, and used by OpenCL, CUDA, HIP, OpenGL, Vulkan, NumPy, PyTorch, JAX and pyopencl, with no copy where the
machine allows it. The library waits for the right work, and counts every byte that it moves.

>>> import onebuf as ob
>>> hub = ob.discover()                       # what is installed; a missing API is a fact
>>> x = hub.empty((4, 1024), "float32")
>>> with x.map() as a:                        # in place, as a NumPy array
...     a[:] = 1
>>> float(x.read().sum()), hub.ledger.implied_bytes
(4096.0, 0)
"""

import sysconfig as _sysconfig

if _sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise ImportError("onebuf does not support free-threaded builds of Python: use one with the interpreter's lock, such as python3.14")

from . import _log, cache, errors, sinks, sources
from ._arrays import MappedArray
from ._doctor import doctor
from ._kernel import kernel
from ._onebuf import (
    Buffer,
    Device,
    Fence,
    Hub,
    InFlight,
    Kernel,
    LU,
    Launch,
    Ledger,
    Local,
    Map,
    Offer,
    Peer,
    Pool,
    Published,
    Queue,
    TensorKernel,
    TensorLaunch,
    Trace,
    Transfer,
    View,
    World,
    __version__,
    attach,
    discover,
    fft,
    log_level,
    lu,
    matmul,
    solve,
)
from ._pipeline import Pipeline, Work
from ._torch import SharedArray, TorchAllocator, shared, torch_allocator
from .errors import *  # noqa: F403
from .errors import __all__ as _errors

__all__ = [
    "Buffer",
    "Device",
    "Fence",
    "Hub",
    "InFlight",
    "Kernel",
    "LU",
    "Launch",
    "Ledger",
    "Local",
    "Map",
    "MappedArray",
    "Offer",
    "Peer",
    "Pipeline",
    "Pool",
    "Published",
    "Queue",
    "SharedArray",
    "TensorKernel",
    "TensorLaunch",
    "TorchAllocator",
    "Trace",
    "Transfer",
    "View",
    "Work",
    "World",
    "attach",
    "cache",
    "discover",
    "doctor",
    "errors",
    "fft",
    "kernel",
    "log_level",
    "lu",
    "matmul",
    "shared",
    "sinks",
    "solve",
    "sources",
    "torch_allocator",
    *_errors,
]
