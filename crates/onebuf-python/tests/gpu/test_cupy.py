"""CuPy, and numba where it is installed: DLPack and `__cuda_array_interface__`, both ways."""

from on_gpu import cuda, hub  # noqa: F401, I001: first, because it skips where there is no GPU

import gc

import cupy
import numpy as np
import pytest

import onebuf as ob

N = (4 << 20) + 100


@pytest.fixture(params=["null stream", "own stream"])
def stream(request):
    if request.param == "null stream":
        yield cupy.cuda.get_current_stream()
        return
    with cupy.cuda.Stream(non_blocking=True) as stream:
        yield stream


def test_dlpack_both_ways(hub, cuda, stream):
    x = hub.empty(N, np.float32, share=[cuda], memory_kind="device")
    for turn in range(20):
        x[...] = turn
        a = cupy.from_dlpack(x)
        a *= 2
        a += 1
        del a
        got = x.read()
        assert (got == 2 * turn + 1).all(), got[:4]
    theirs = cupy.zeros(N, np.float32)
    for turn in range(20):
        theirs += 1
        y = hub.from_dlpack(theirs)
        assert (y.read() == turn + 1).all()
        del y


def test_the_array_interface_of_a_view(hub, cuda, stream):
    x = hub.empty((16, 1000), np.float32, share=[cuda], memory_kind="device")
    x[...] = 1
    with x.on(cuda) as v:
        a = cupy.asarray(v)
        assert a.data.ptr == v.address
        a += 2
        cupy.cuda.get_current_stream().synchronize()
        del a
    assert (x.read() == 3).all()
    with x[:, ::2].on(cuda) as v:
        a = cupy.asarray(v)
        assert a.strides == (4000, 8)
        a[...] = 5
        cupy.cuda.get_current_stream().synchronize()
        del a
    got = x.read()
    assert (got[:, ::2] == 5).all() and (got[:, 1::2] == 3).all()


class Described:
    def __init__(self, array, **facts):
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **facts}


def test_wrapping_by_the_array_interface(hub, cuda, stream):
    a = cupy.arange(N, dtype=np.float32)
    y = hub.from_cuda_array(a)
    np.testing.assert_array_equal(y.read(), np.arange(N, dtype=np.float32))
    y[...] = 4
    assert bool((a == 4).all())
    del y
    gc.collect()
    pointer = a.data.ptr
    for facts, why in [
        ({"mask": a}, "mask"),
        ({"strides": (8,), "shape": (N // 2,)}, "not contiguous"),
        ({"stream": 0}, "ambiguous"),
        ({"data": (pointer, False), "shape": (1 << 40,)}, "has only"),
        ({"data": (4096, False)}, "no memory of"),
    ]:
        with pytest.raises(ob.Error, match=why):
            hub.from_cuda_array(Described(a, **facts))
    ro = hub.from_cuda_array(Described(a, data=(pointer, True)))
    with pytest.raises(ob.Unsupported, match="read-only"):
        ro.write(0)


def test_streams_may_end_before_their_arrays(hub, cuda):
    """CuPy destroys a stream with its object: the array that was made on it may live longer."""
    x = hub.empty(N, np.float32, share=[cuda], memory_kind="device")
    x[...] = 0
    for turn in range(30):
        with cupy.cuda.Stream(non_blocking=True):
            a = cupy.from_dlpack(x)
            a += 1
        gc.collect()
        del a
    assert (x.read() == 30).all()


def test_numba(hub, cuda):
    numba_cuda = pytest.importorskip("numba.cuda")
    theirs = numba_cuda.to_device(np.arange(1000, dtype=np.float32))
    y = hub.from_dlpack(theirs)
    np.testing.assert_array_equal(y.read(), np.arange(1000, dtype=np.float32))
    x = hub.empty(1000, np.float32, share=[cuda])
    x[...] = 2
    with x.on(cuda) as v:
        np.testing.assert_array_equal(numba_cuda.as_cuda_array(v).copy_to_host(), np.full(1000, 2, np.float32))
