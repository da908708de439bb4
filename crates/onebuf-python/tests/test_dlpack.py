"""DLPack by hand: capsules as a consumer in C sees them."""

import ctypes
import gc
import threading

import numpy as np
import pytest

import onebuf as ob


class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
USED = b"used_dltensor"
USED_VERSIONED = b"used_dltensor_versioned"


def consume(capsule):
    """Takes the tensor out of a capsule, as a consumer does. Returns the structure and its deleter's call."""
    versioned = api.PyCapsule_IsValid(capsule, b"dltensor_versioned")
    name, used, kind = (
        (b"dltensor_versioned", USED_VERSIONED, Versioned) if versioned else (b"dltensor", USED, Managed)
    )
    at = api.PyCapsule_GetPointer(capsule, name)
    api.PyCapsule_SetName(capsule, used)
    managed = ctypes.cast(at, ctypes.POINTER(kind)).contents
    # CDLL's functions release the interpreter: the deleter runs without it.
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)
    return managed, lambda: delete(at)


def elements(tensor, ctype):
    return (ctype * tensor.shape[0]).from_address(tensor.data)


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
def test_the_version_is_the_consumers(hub, version):
    x = hub.array(np.arange(6, dtype=np.int16).reshape(2, 3))
    managed, delete = consume(x.__dlpack__(max_version=version) if version else x.__dlpack__())
    assert isinstance(managed, Versioned) == (version is not None and version >= (1, 0))
    if isinstance(managed, Versioned):
        assert (managed.major, managed.minor, managed.flags) == (1, 0, 0)
    tensor = managed.tensor
    assert (tensor.device.kind, tensor.device.number) == (1, 0) == x.__dlpack_device__()
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (0, 16, 1)
    assert (tensor.ndim, tensor.shape[:2], tensor.strides[:2], tensor.byte_offset) == (2, [2, 3], [3, 1], 0)
    assert x.host_users == 1
    delete()
    assert x.host_users == 0


def test_an_offset_is_in_the_address(hub):
    x = hub.array(np.arange(40, dtype=np.float64).reshape(5, 8))
    whole, end = consume(x.__dlpack__())
    part, end_part = consume(x[1:4, 2::3].__dlpack__())
    assert part.tensor.data - whole.tensor.data == 8 * (8 + 2) and part.tensor.byte_offset == 0
    assert (part.tensor.shape[:2], part.tensor.strides[:2]) == ([3, 2], [8, 3])
    end()
    end_part()


def test_arguments_that_do_not_fit_are_buffer_errors(hub):
    x = hub.empty(4)
    for named, why in [
        ({"dl_device": (2, 0)}, "device"),
        ({"dl_device": (1, 1)}, "device"),
        ({"stream": 1}, "stream"),
        ({"stream": 0}, "stream"),
    ]:
        with pytest.raises(BufferError, match=why) as caught:
            x.__dlpack__(**named)
        assert isinstance(caught.value, ob.ExportError) and isinstance(caught.value, ob.Error)
    with pytest.raises(BufferError, match="negative stride"):
        x[::-1].__dlpack__()
    np.testing.assert_array_equal(np.asarray(x[::-1]), x.read()[::-1])
    for named in ({"dl_device": (1, 0)}, {"stream": None}, {"stream": -1}, {"copy": False}):
        x.__dlpack__(**named)
    gc.collect()
    assert x.host_users == 0, "capsules that are not consumed give the buffer back"


def test_a_copy_is_marked_and_lends_nothing(hub, cl, gain):
    x = hub.array(np.ones(64, np.float32), share=[cl])
    managed, delete = consume(x.__dlpack__(copy=True, max_version=(1, 0)))
    assert managed.flags == 2 and x.host_users == 0
    gain(x, 2.0)
    assert set(elements(managed.tensor, ctypes.c_float)) == {1.0} and (x.read() == 2).all()
    delete()
    shared, delete = consume(x.__dlpack__(copy=False, max_version=(1, 0)))
    elements(shared.tensor, ctypes.c_float)[5] = 9.0
    assert shared.flags == 0 and x.read()[5] == 9.0, "the control: this one is the memory itself"
    delete()


def test_a_lent_buffer_refuses_others_and_names_the_borrower(hub, cl, gain):
    x = hub.array(np.ones(64, np.float32), share=[cl])
    managed, delete = consume(x.__dlpack__())
    with pytest.raises(ob.Busy, match=f"lent to the host .a DLPack consumer.*{cl.id}"):
        gain(x, 2.0)
    with pytest.raises(ob.Busy, match="DLPack consumer"):
        x.on(cl).__enter__()
    # The host itself goes on using it, through reads, writes, maps and further arrays.
    x.write(3)
    with x.map() as a:
        a += 1
    assert set(elements(managed.tensor, ctypes.c_float)) == {4.0}
    second, delete_second = consume(x.__dlpack__())
    delete()
    with pytest.raises(ob.Busy):
        gain(x, 2.0)
    delete_second()
    gain(x, 2.0)
    assert (x.read() == 8).all()


def test_deleters_run_on_any_thread_without_the_interpreter(hub, cl, gain):
    x = hub.array(np.ones(1024, np.float32), share=[cl])
    for _ in range(20):
        ends = [consume(x.__dlpack__(max_version=(1, 0)))[1] for _ in range(8)]
        threads = [threading.Thread(target=end) for end in ends]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        gain(x, 1.0)
    assert x.host_users == 0


def test_the_memory_outlives_its_buffer_and_hub():
    hub = ob.discover(only=["opencl"])
    x = hub.array(np.arange(16, dtype=np.float32), share=["opencl:0"])
    managed, delete = consume(x.__dlpack__())
    del x, hub
    gc.collect()
    assert list(elements(managed.tensor, ctypes.c_float)) == list(range(16))
    delete()


class Producer:
    """An array of another library, made by hand."""

    def __init__(self, memory, shape, strides=None, *, flags=0, kind=1, code=(2, 32, 1), version=1, offset=0):
        self.memory, self.deleted, self.kind = memory, 0, kind
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None

        def deleted(_):
            self.deleted += 1

        self.deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleted)
        strides = self.strides or ctypes.POINTER(ctypes.c_int64)()
        tensor = Tensor(memory.ctypes.data, Device(kind, 0), len(shape), Type(*code), self.shape, strides, offset)
        deleter = ctypes.cast(self.deleter, ctypes.c_void_p).value
        self.managed = Versioned(version, 0, None, deleter, flags, tensor) if version else Managed(tensor, None, deleter)

    def __dlpack_device__(self):
        return (self.kind, 0)

    def __dlpack__(self, **named):
        if named and isinstance(self.managed, Managed):
            raise TypeError("an old producer takes no arguments")
        name = b"dltensor_versioned" if isinstance(self.managed, Versioned) else b"dltensor"
        self.name = name
        return api.PyCapsule_New(ctypes.addressof(self.managed), name, None)


def aligned(count, dtype=np.float32, to=4096):
    """NumPy's memory at a multiple of a page."""
    dtype = np.dtype(dtype)
    raw = np.zeros(count * dtype.itemsize + to, np.uint8)
    start = -raw.ctypes.data % to
    return raw[start : start + count * dtype.itemsize].view(dtype)


@pytest.mark.parametrize("version", [0, 1])
def test_foreign_memory_is_used_and_deleted_once(hub, cl, gain, version):
    memory = aligned(4096)
    memory[:] = np.arange(4096)
    producer = Producer(memory, (64, 64), version=version)
    y = hub.from_dlpack(producer, share=[cl])
    assert (y.shape, y.dtype, producer.deleted) == ((64, 64), np.float32, 0)
    gain(y, 2.0)
    with y.map("r") as a:
        np.testing.assert_array_equal(a, 2 * np.arange(4096).reshape(64, 64))
    np.testing.assert_array_equal(memory, 2 * np.arange(4096))
    part = y[3]
    y.free()
    assert producer.deleted == 0, "a slice keeps it"
    del part, y
    gc.collect()
    assert producer.deleted == 1


def test_foreign_memory_of_any_alignment(hub, cl, gain):
    for offset in (4, 12, 60, 64, 128, 256):
        memory = aligned(1024)[offset // 4 :]
        memory[:] = 1
        y = hub.from_dlpack(memory, share=[cl])
        gain(y, 3.0)
        y.map("r").__enter__()
        assert (memory == 3).all(), offset


def test_what_cannot_be_wrapped_is_refused_and_deleted(hub):
    memory = np.zeros(64, np.float32)
    for named, why in [
        ({"shape": (8, 4), "strides": (8, 2)}, "not contiguous"),
        ({"shape": (8,), "kind": 2}, "CUDA"),
        ({"shape": (8,), "kind": 20}, "another kind"),
        ({"shape": (8,), "code": (4, 16, 1)}, "type code 4"),
        ({"shape": (8,), "code": (2, 32, 4)}, "4 lanes"),
        ({"shape": (0,)}, "no element"),
        ({"shape": (-1,)}, "without a shape"),
        ({"shape": (8,), "version": 3}, "DLPack 3"),
    ]:
        producer = Producer(memory, **named)
        with pytest.raises(ob.Error, match=why):
            hub.from_dlpack(producer)
        gc.collect()
        assert producer.deleted == (0 if "kind" in named else 1), why
    for wrong in (3, object(), [1.0]):
        with pytest.raises(ob.InvalidArgument, match="__dlpack__"):
            hub.from_dlpack(wrong)


def test_read_only_memory_is_only_read(hub, cl, gain):
    memory = aligned(64)
    memory[:] = 2
    y = hub.from_dlpack(Producer(memory, (64,), flags=1), share=[cl])
    assert y.readonly and (y.read() == 2).all()
    look = cl.kernel("kernel void look(global const float *x, global float *y) { y[get_global_id(0)] = 3 * x[get_global_id(0)]; }")
    z = hub.empty(64, share=[cl])
    look(y, z)
    assert (z.read() == 6).all()
    for use in (lambda: y.write(1), lambda: gain(y, 2.0), lambda: y.map().__enter__()):
        with pytest.raises(ob.Unsupported, match="read-only"):
            use()
    assert memoryview(y).readonly
    with pytest.raises(BufferError, match="read-only"):
        y.__dlpack__()
    managed, delete = consume(y.__dlpack__(max_version=(1, 0)))
    assert managed.flags == 1
    delete()


def test_views_of_the_host_export_too(hub, cl, gain):
    x = hub.array(np.ones(64, np.float32), share=[cl])
    with x.on(hub.host) as view:
        assert view.device == hub.host and view.queue is None and view.address
        managed, delete = consume(view.__dlpack__())
        assert managed.tensor.data == view.address
    with pytest.raises(ob.Busy):
        gain(x, 2.0)
    delete()
    gain(x, 2.0)
    with pytest.raises(BufferError, match="with"):
        view.__dlpack__()
    with x.on(cl) as view, pytest.raises(BufferError, match="host"):
        view.__dlpack__()
    with pytest.raises(AttributeError):
        view.__cuda_array_interface__
