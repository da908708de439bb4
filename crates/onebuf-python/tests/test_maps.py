"""Maps: arrays in place that end with their block, and the buffer protocol."""

import gc
import hashlib

import numpy as np
import pytest

import onebuf as ob


def test_a_map_is_the_memory_in_place(hub, cl, gain):
    x = hub.array(np.arange(4096, dtype=np.float32), share=[cl])
    gain(x, 2.0)
    before = hub.ledger.implied_bytes
    with x.map() as a:
        np.testing.assert_array_equal(a, 2 * np.arange(4096))
        a[:] += 1
        a[10:20] = 0
    gain(x, 3.0)
    expected = 3 * (2 * np.arange(4096) + 1)
    expected[10:20] = 0
    np.testing.assert_array_equal(x.read(), expected)
    assert hub.ledger.implied_bytes == before


def test_an_ended_array_is_an_error_in_every_use(hub):
    x = hub.array(np.arange(12, dtype=np.float32).reshape(3, 4))
    with x.map() as a:
        row, turned, part = a[1], a.T, a[:, 1:3]
        rows = list(a)
        assert isinstance(row, ob.MappedArray) and isinstance(turned, ob.MappedArray)
        assert len(rows) == 3 and float(row[2]) == 6.0
    uses = [
        lambda one: one[0],
        lambda one: one.sum(),
        lambda one: one + 1,
        lambda one: np.add(1, one),
        lambda one: np.asarray(one),
        lambda one: np.concatenate([one, one]),
        lambda one: len(one),
        lambda one: list(one),
        lambda one: one.shape,
        lambda one: one.fill(1),
        lambda one: one.__setitem__(0, 1),
        lambda one: one.__iadd__(1),
        lambda one: str(one),
        lambda one: one.tobytes(),
        lambda one: one.copy(),
        lambda one: one.__dlpack__(),
        lambda one: 1 in one,
    ]
    for array in (a, row, turned, part, *rows):
        for use in uses:
            with pytest.raises(ob.InvalidArgument, match="ended"):
                use(array)
        assert "ended" in repr(array)
        with pytest.raises((TypeError, BufferError)):
            memoryview(array)


def test_results_of_computations_outlive_the_block(hub):
    x = hub.array(np.arange(4, dtype=np.float32))
    with x.map() as a:
        results = [a * 2, a.sum(), np.sqrt(a), a.copy(), a.astype(int), a @ a, a == 1, np.where(a > 1, a, 0)]
    assert [np.asarray(one).sum() for one in results[:2]] == [12.0, 6.0]
    assert all(isinstance(one, (np.ndarray, np.generic)) for one in results)


def test_what_escapes_keeps_the_memory_and_is_an_error(hub, cl, gain):
    x = hub.array(np.ones(64, np.float32), share=[cl])
    with pytest.raises(ob.Busy, match="arrays or memoryviews .* still use it"):
        with x.map() as a:
            escaped = np.asarray(a)
            other = memoryview(np.asarray(a))
    assert escaped[3] == 1 and other[3] == 1, "never a crash"
    with pytest.raises(ob.Busy, match="lent to the host"):
        gain(x, 2.0)
    del escaped, other
    gain(x, 2.0)
    assert (x.read() == 2).all()


def test_an_exception_in_the_block_is_the_one_that_comes_out(hub):
    x = hub.empty(4)
    with pytest.raises(KeyError):
        with x.map() as a:
            kept = np.asarray(a)
            raise KeyError("mine")
    del kept
    assert x.host_users == 0


def test_maps_for_reading(hub, cl, gain):
    x = hub.array(np.ones(64, np.float32), share=[cl])
    with x.map("r") as a:
        with pytest.raises(ValueError):
            a[0] = 2
        with x.map("r") as b:
            assert b[1] == a[1]
        with pytest.raises(ob.Busy, match="reading only"):
            x.map("rw").__enter__()
        with pytest.raises(ob.Busy, match="lent to the host"):
            gain(x, 2.0)
        reader = cl.kernel("kernel void look(global const float *x, global float *y) { y[get_global_id(0)] = x[get_global_id(0)]; }")
        y = hub.empty(64, share=[cl])
        reader(x, y)
        assert (y.read() == 1).all(), "others may read meanwhile"
    with pytest.raises(ob.InvalidArgument, match="mode"):
        x.map("w")
    with pytest.raises(ob.InvalidArgument, match="once"):
        one = x.map()
        with one:
            one.__enter__()


def test_the_buffer_protocol_lends_the_buffer(hub, cl, gain):
    x = hub.array(np.arange(64, dtype=np.float32).reshape(8, 8), share=[cl])
    view = memoryview(x)
    assert (view.shape, view.format, view.readonly, view.strides) == ((8, 8), "f", False, (32, 4))
    array = np.asarray(x)
    assert np.shares_memory(array, np.asarray(view))
    assert x.host_users == 2
    array[0, 0] = 5
    assert x.read()[0, 0] == 5 and view[0, 0] == 5
    with pytest.raises(ob.Busy, match=f"the buffer protocol.*{cl.id}"):
        gain(x, 1.0)
    view.release()
    del array
    assert x.host_users == 0
    gain(x, 2.0)
    assert x.read()[0, 0] == 10
    assert bytes(x[0]) == x.read()[0].tobytes(), "a request without strides"
    with pytest.raises(BufferError, match="not contiguous"):
        hashlib.sha256(x[:, 3])
    column = np.asarray(x[:, 3])
    np.testing.assert_array_equal(column, x.read()[:, 3])


def test_a_map_that_is_never_entered_or_left_is_given_back(hub, cl, gain):
    x = hub.array(np.ones(64, np.float32), share=[cl])
    x.map()
    x.map().__enter__()
    gc.collect()
    assert x.host_users == 0
    gain(x, 2.0)


def test_memory_that_the_host_cannot_see_is_copied_and_counted():
    hub = ob.discover(only=["opencl"])
    x = hub.empty(1024, share=["opencl:0"], memory_kind="device")
    x.write(3)
    before = hub.ledger.implied_bytes
    with x.map() as a:
        a *= 2
    assert (x.read() == 6).all()
    assert hub.ledger.implied_bytes - before == 2 * x.nbytes
