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

from . import errors, sinks, sources
from ._arrays import MappedArray
from ._kernel import TensorKernel, kernel
from ._onebuf import (
    Buffer,
    Device,
    Hub,
    Kernel,
    Launch,
    Ledger,
    Local,
    Map,
    Queue,
    View,
    __version__,
    discover,
)
from ._pipeline import Pipeline, Work
from .errors import *  # noqa: F403
from .errors import __all__ as _errors

__all__ = [
    "Buffer",
    "Device",
    "Hub",
    "Kernel",
    "Launch",
    "Ledger",
    "Local",
    "Map",
    "MappedArray",
    "Pipeline",
    "Queue",
    "TensorKernel",
    "View",
    "Work",
    "discover",
    "errors",
    "kernel",
    "sinks",
    "sources",
    *_errors,
]
