"""NumPy, both ways."""

import gc

import numpy as np
import pytest

import onebuf as ob

NEW = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)


def test_numpy_takes_a_buffer_in_place(hub, cl, gain):
    x = hub.array(np.arange(4096, dtype=np.float32).reshape(64, 64), share=[cl])
    gain(x, 2.0)
    before = hub.ledger.implied_bytes
    array = np.from_dlpack(x)
    np.testing.assert_array_equal(array, 2 * np.arange(4096).reshape(64, 64))
    assert array.flags.writeable == NEW, "NumPy before 2.1 takes capsules without a version, which it does not write"
    assert hub.ledger.implied_bytes == before
    with pytest.raises(ob.Busy, match="DLPack consumer"):
        gain(x, 2.0)
    writer = np.asarray(x)
    writer[7] = -1
    np.testing.assert_array_equal(array[7], -1)
    del array, writer
    gain(x, 2.0)
    assert (x.read()[7] == -2).all()


def test_a_buffer_takes_numpys_memory(hub, cl, gain):
    array = np.arange(1 << 16, dtype=np.float32)
    y = hub.from_dlpack(array, share=[cl])
    for turn in range(1, 5):
        gain(y, 2.0)
        with y.map("r"):
            np.testing.assert_array_equal(array, np.arange(1 << 16) * 2**turn)
    array[:] = 1
    with y.map():
        pass  # the host has written
    gain(y, 5.0)
    with y.map("r"):
        assert (array == 5).all()
    count = gc.get_count()
    del y, count
    gc.collect()
    array[:] = 0


def test_arrays_that_are_read_only_stay_so(hub):
    array = np.arange(16.0)
    array.flags.writeable = False
    if NEW:
        assert hub.from_dlpack(array).readonly
    else:
        with pytest.raises(BufferError, match="readonly"):
            hub.from_dlpack(array)


def test_arrays_are_not_leaked(hub):
    import sys

    array = np.zeros(1 << 16, np.float32)
    before = sys.getrefcount(array)
    for _ in range(200):
        hub.from_dlpack(array)
    gc.collect()
    assert sys.getrefcount(array) == before
    x = hub.empty(64)
    for _ in range(200):
        np.from_dlpack(x)
        np.asarray(x)
        memoryview(x)
    assert x.host_users == 0
