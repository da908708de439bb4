"""The stub drivers of OpenCL and CUDA, for tests of what needs a GPU: both play APIs of one chip, with memory that they really share.

What a stub misbehaves in is described at the head of `conformance/stub/opencl_stub.c` and `cuda_stub.c`.
"""

import os
import subprocess
import sys
import tempfile
import textwrap
from functools import cache
from pathlib import Path

from stub_gpu import built

# What scripts in a process with the stubs begin with.
START = """
import ctypes, os, sys, threading, time
import numpy as np
import onebuf as ob

hub = ob.discover(without=["gl", "vulkan"])
cl, cuda = hub["opencl:0"], hub["cuda:0"]
own = ctypes.CDLL(ob._onebuf.__file__)
driver = ctypes.CDLL(os.environ["ONEBUF_CUDA_LIB"])
opencl = ctypes.CDLL(os.environ["ONEBUF_OPENCL_LIB"])
at, size, number, unsigned = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint


def function(library, name, result, *arguments):
    found = getattr(library, name)
    found.restype, found.argtypes = result, arguments
    return found


alloc = function(own, "onebuf_torch_alloc", at, ctypes.c_ssize_t, number, at)
free = function(own, "onebuf_torch_free", None, at, ctypes.c_ssize_t, number, at)
record = function(own, "onebuf_torch_record_stream", None, at, at)
segment_alloc = function(own, "onebuf_torch_segment_alloc", at, ctypes.c_ssize_t, number, at)
segment_free = function(own, "onebuf_torch_segment_free", None, at, ctypes.c_ssize_t, number, at)
read_buffer = function(opencl, "clEnqueueReadBuffer", number, at, at, unsigned, size, size, at, unsigned, at, at)
write_buffer = function(opencl, "clEnqueueWriteBuffer", number, at, at, unsigned, size, size, at, unsigned, at, at)


def memory(address, count, dtype=np.uint32):
    'The memory behind an address of the CUDA stub, which is a real one with a mark.'
    bytes = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address & ~(1 << 62))
    return np.frombuffer(bytes, dtype)


class Array:
    'An array of PyTorch, as far as onebuf looks at it.'

    def __init__(self, address, *shape, typestr="<u4", strides=None, stream=0):
        data = (address, False)
        self.__cuda_array_interface__ = dict(
            shape=shape, typestr=typestr, data=data, version=3, strides=strides, stream=stream)


def stream():
    'A stream of the stub.'
    context, made = at(), at()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
    return made.value


def synchronise(stream):
    'Waits for the work of a stream.'
    end = time.monotonic() + 30
    while (code := driver.cuStreamQuery(at(stream))) == 600:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert code == 0


def by_opencl(x, change):
    'Reads all bytes by OpenCL, and writes what the function makes of them.'
    seen = np.zeros(x.size, np.uint32)
    with x.on(cl) as v:
        args = at(v.queue.int_ptr), at(v.cl_mem), 1, 0, seen.nbytes
        assert read_buffer(*args, seen.ctypes.data_as(at), 0, None, None) == 0
        made = change(seen).astype(np.uint32)
        assert write_buffer(*args, made.ctypes.data_as(at), 0, None, None) == 0
    return seen
"""


@cache
def _built():
    """The libraries of OpenCL and of CUDA."""
    return built(Path(tempfile.mkdtemp(prefix="onebuf-stubs-")))


def run(text, part="imports,cached", **environment):
    """Runs a script in a process with the stubs."""
    opencl, cuda = _built()
    environment = {
        **os.environ,
        "ONEBUF_OPENCL_LIB": opencl,
        "ONEBUF_CUDA_LIB": cuda,
        "ONEBUF_NVRTC_LIB": cuda,
        "ONEBUF_HIP_LIB": "none",
        "ONEBUF_HSA_LIB": "none",
        "ONEBUF_STUB": part,
        **environment,
    }
    command = [sys.executable, "-X", "faulthandler", "-c", START + textwrap.dedent(text)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
