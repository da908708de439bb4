"""A CUDA or HIP device without a GPU: the repository's stub drivers, and small producers and consumers of arrays on them.

The tests that use it run in a process of their own, because the stubs are read when a hub is made. A device pointer of the stub is a host's
address with a bit set, so that tests can look at device memory without a copy.
"""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

from conftest import absent

STUB = Path(__file__).resolve().parents[3] / "conformance" / "stub"
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread", "-fPIC", "-shared"]
TAG = 1 << 62

# `advance` is a kernel that both stubs know by its name: p[first + i] = p[first + i] * mul + add + i, for i < n.
TEXT = """
kernel void advance(global uint *p, uint first, uint n, uint mul, uint add) {
    uint i = (uint)get_global_id(0);
    if (i < n) p[first + i] = p[first + i] * mul + add + i;
}
"""

# What NVIDIA's compiler makes of it, as far as the graft reads it.
PTX = """//
.version 8.8
.target sm_90, texmode_independent
.address_size 64

.entry advance(
	.param .u64 .ptr .global .align 4 advance_param_0,
	.param .u32 advance_param_1,
	.param .u32 advance_param_2,
	.param .u32 advance_param_3,
	.param .u32 advance_param_4
)
{
	ret;
}
"""


def built(folder):
    """The stub libraries of OpenCL and of CUDA and HIP."""
    made = []
    for name, sources in (
        ("libcl_stub.so", ["opencl_stub.c"]),
        ("libcuda_stub.so", (STUB / "cuda_stub.sources").read_text().split()),
    ):
        to = folder / name
        if not to.exists():
            command = ["cc", *FLAGS, "-o", to, *(STUB / one for one in sources), "-lm", "-ldl"]
            try:
                subprocess.run(command, check=True, timeout=120)
            except FileNotFoundError:
                absent("a C compiler for the stub drivers")
        made.append(str(to))
    return made


def play(folder, text, api="cuda", **environment):
    """Runs a program with both stubs, and returns what it printed."""
    opencl, cuda = built(folder)
    (folder / "program.ptx").write_text(PTX)
    mine, other, compiler = ("CUDA", "HIP", "NVRTC") if api == "cuda" else ("HIP", "CUDA", "HIPRTC")
    env = {
        **os.environ,
        "ONEBUF_STUB": "imports,cached",
        "ONEBUF_STUB_NAMES": "1",
        "ONEBUF_STUB_BINARY": str(folder / "program.ptx"),
        "ONEBUF_OPENCL_LIB": opencl,
        f"ONEBUF_{mine}_LIB": cuda,
        f"ONEBUF_{compiler}_LIB": cuda,
        f"ONEBUF_{other}_LIB": "none",
        "ONEBUF_HSA_LIB": "none",
        "ONEBUF_VULKAN_LIB": "none",
        "ONEBUF_EGL_LIB": "none",
        "ONEBUF_STUB_DELAY_US": "200",
        "ONEBUF_CUDA_STUB_DELAY_US": "300",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        "STUB_API": api,
        **environment,
    }
    begin = "from stub_gpu import *\nimport gc, threading, numpy as np, onebuf as ob\nfrom stub_gpu import Stub\n"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", begin + text], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class DlDevice(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DlDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [("tensor", DlTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    pass


VERSIONED_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Versioned))
Versioned._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", VERSIONED_DELETER),
    ("flags", ctypes.c_uint64),
    ("tensor", DlTensor),
]

_python = ctypes.pythonapi
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_python.PyCapsule_GetName.restype = ctypes.c_char_p
_python.PyCapsule_GetName.argtypes = [ctypes.py_object]


class Consumed:
    """A tensor that was taken out of a capsule, as an array library does it."""

    def __init__(self, capsule):
        name = _python.PyCapsule_GetName(capsule)
        versioned = name == b"dltensor_versioned"
        at = _python.PyCapsule_GetPointer(capsule, name)
        self.used_name = b"used_" + name
        _python.PyCapsule_SetName(capsule, self.used_name)
        self.managed = ctypes.cast(at, ctypes.POINTER(Versioned if versioned else Managed))
        self.tensor = self.managed.contents.tensor
        self.flags = self.managed.contents.flags if versioned else None
        self.versioned = versioned

    @property
    def shape(self):
        return tuple(self.tensor.shape[: self.tensor.ndim])

    @property
    def strides(self):
        return tuple(self.tensor.strides[: self.tensor.ndim])

    @property
    def device(self):
        return self.tensor.device.kind, self.tensor.device.number

    @property
    def address(self):
        return self.tensor.data

    def delete(self):
        """Runs the deleter: without the interpreter's lock, as ctypes calls functions."""
        managed, self.managed = self.managed, None
        if managed:
            managed.contents.deleter(managed)


class Stub:
    """What an array library does with the driver: memory, streams and copies of its own, in the primary context."""

    def __init__(self):
        self.api = os.environ["STUB_API"]
        self.cuda = ctypes.CDLL(os.environ["ONEBUF_CUDA_LIB" if self.api == "cuda" else "ONEBUF_HIP_LIB"])
        if self.api == "cuda":
            self.ok(self.cuda.cuInit(0))
            context = ctypes.c_void_p()
            self.ok(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
            self.ok(self.cuda.cuCtxPushCurrent_v2(context))
        else:
            self.ok(self.cuda.hipInit(0))
            self.ok(self.cuda.hipSetDevice(0))

    @staticmethod
    def ok(status):
        assert status == 0, f"the stub driver returned {status}"

    def call(self, cuda, hip, *args):
        self.ok(getattr(self.cuda, cuda if self.api == "cuda" else hip)(*args))

    def alloc(self, nbytes):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", "hipMalloc", ctypes.byref(at), ctypes.c_size_t(nbytes))
        return at.value

    def free(self, at):
        self.call("cuMemFree_v2", "hipFree", ctypes.c_uint64(at))

    def stream(self):
        at = ctypes.c_void_p()
        self.call("cuStreamCreate", "hipStreamCreateWithFlags", ctypes.byref(at), ctypes.c_uint(1))
        return at.value

    def fill(self, at, value, count, stream):
        """Enqueues a fill with 32-bit words."""
        self.call(
            "cuMemsetD32Async",
            "hipMemsetD32Async",
            ctypes.c_uint64(at),
            ctypes.c_uint(value),
            ctypes.c_size_t(count),
            ctypes.c_void_p(stream),
        )

    def busy(self, stream):
        """Whether the stream has work that is not done."""
        query = self.cuda.cuStreamQuery if self.api == "cuda" else self.cuda.hipStreamQuery
        status = query(ctypes.c_void_p(stream))
        assert status in (0, 600), f"the stub driver returned {status}"
        return status == 600

    def sync(self, stream):
        end = time.monotonic() + 30
        while self.busy(stream):
            assert time.monotonic() < end, "the stream's work does not end"
            time.sleep(0.0002)

    def destroy(self, stream):
        self.call("cuStreamDestroy_v2", "hipStreamDestroy", ctypes.c_void_p(stream))

    @staticmethod
    def words(at, count):
        """Device memory as it is now."""
        return (ctypes.c_uint32 * count).from_address(at & ~TAG)


class CudaArray:
    """An array with `__cuda_array_interface__`."""

    def __init__(self, at, shape, typestr="<u4", **more):
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "data": (at, False),
            "strides": None,
            **more,
        }


class Producer:
    """An array with `__dlpack__`, in memory of the stub."""

    def __init__(self, stub, at, shape, strides=None, kind=None, flags=0, old=False, stream=None):
        self.stub, self.at, self.dims, self.steps = stub, at, shape, strides
        self.kind = kind if kind is not None else (2 if stub.api == "cuda" else 10)
        self.flags, self.old, self.current = flags, old, stream
        self.asked, self.deleted, self.alive = [], 0, {}

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, *, stream=None, max_version=None):
        if self.old and max_version is not None:
            raise TypeError("an old producer")
        self.asked.append(stream)
        if self.current is not None and stream not in (None, -1):
            # As array libraries do it: the consumer's stream waits for the work so far.
            event = ctypes.c_void_p()
            call = self.stub.call
            call("cuEventCreate", "hipEventCreateWithFlags", ctypes.byref(event), ctypes.c_uint(2))
            call("cuEventRecord", "hipEventRecord", event, ctypes.c_void_p(self.current))
            call("cuStreamWaitEvent", "hipStreamWaitEvent", ctypes.c_void_p(stream), event, ctypes.c_uint(0))
            call("cuEventDestroy_v2", "hipEventDestroy", event)
        number = len(self.asked)
        dims = (ctypes.c_int64 * len(self.dims))(*self.dims)
        steps = (ctypes.c_int64 * len(self.dims))(*self.steps) if self.steps else None
        tensor = DlTensor(self.at, DlDevice(self.kind, 0), len(self.dims), 1, 32, 1, dims, steps, 0)

        def delete(_):
            self.deleted += 1
            del self.alive[number]

        if max_version is None:
            made = Managed(tensor, None, DELETER(delete))
            name = b"dltensor"
        else:
            made = Versioned(1, 0, None, VERSIONED_DELETER(delete), self.flags, tensor)
            name = b"dltensor_versioned"
        self.alive[number] = (made, dims, steps, name)
        return _python.PyCapsule_New(ctypes.addressof(made), name, None)


class Table(ctypes.Structure):
    """DLPack's exchange functions."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("unused", ctypes.c_void_p * 3),
        ("view", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


VIEW = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))
STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Exchanged:
    """An array of a library that has the exchange API: its class has the functions, which use its attributes."""

    current = None  # the library's stream

    def __init__(self, at, shape, strides=None, code=1, bits=32, kind=2):
        self.at, self.code, self.bits, self.kind = at, code, bits, kind
        self.dims = (ctypes.c_int64 * len(shape))(*shape)
        self.steps = (ctypes.c_int64 * len(shape))(*strides) if strides else None

    @VIEW
    def _view(self, out):
        tensor = DlTensor(self.at, DlDevice(self.kind, 0), len(self.dims), self.code, self.bits, 1, self.dims, self.steps, 0)
        out[0] = tensor
        return 0

    @STREAM
    def _stream(kind, number, out):
        out[0] = Exchanged.current
        return 0


def exchange(major=1, previous=None):
    """Gives `Exchanged` its functions."""
    cast = lambda function: ctypes.cast(function, ctypes.c_void_p)  # noqa: E731
    table = Table(major, 3, previous, (ctypes.c_void_p * 3)(), cast(Exchanged._view), cast(Exchanged._stream))
    Exchanged.tables = [*getattr(Exchanged, "tables", []), table]
    Exchanged.__dlpack_c_exchange_api__ = _python.PyCapsule_New(ctypes.addressof(table), b"dlpack_exchange_api", None)
    return ctypes.addressof(table)
