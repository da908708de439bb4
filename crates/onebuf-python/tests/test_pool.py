"""Pools."""

import gc

import numpy as np
import pytest

import onebuf as ob


def test_buffers_come_back_and_are_used_again(hub, cl, gain):
    pool = ob.Pool(hub)
    pool.prepare(2, 4096, np.float32, share=[cl])
    assert (pool.stats["made"], pool.stats["idle_buffers"]) == (2, 2)
    for turn in range(20):
        x = pool.empty((16, 256), np.float32, share=[cl])
        x.write(turn)
        gain(x, 2.0)
        assert (x.read() == 2 * turn).all()
        part = x[3]
        del x
        gc.collect()
        assert pool.stats["live_buffers"] == 1, "a slice keeps it"
        del part
        gc.collect()
    assert pool.stats["live_buffers"] == 0
    assert (pool.stats["made"], pool.stats["hits"]) == (2, 20), pool.stats
    assert pool.stats["fragmentation"] >= 0
    pool.trim()
    assert pool.stats["idle_bytes"] == 0 and "0 idle" in repr(pool)


def test_a_buffer_is_zeroed_if_it_is_asked_for(hub):
    pool = ob.Pool(hub)
    x = pool.empty(100, np.uint8)
    x.write(7)
    del x
    assert (pool.empty(100, np.uint8).read() == 7).all(), "the control: it is the same memory"
    gc.collect()
    assert (pool.empty(100, np.uint8, cleared=True).read() == 0).all()


def test_the_limit_is_an_error_or_a_wait(hub):
    pool = ob.Pool(hub, limit=1 << 20)
    assert pool.stats["limit_bytes"] == 1 << 20 and pool.hub.devices
    x = pool.empty(1 << 20, np.uint8)
    with pytest.raises(ob.OutOfMemory):
        pool.empty(1 << 20, np.uint8)
    with pytest.raises(ob.Error):
        pool.empty(1 << 20, np.uint8, timeout=0.05)
    del x
    gc.collect()
    assert pool.empty(1 << 20, np.uint8, timeout=5).nbytes == 1 << 20


def test_bad_input_is_an_exception(hub):
    pool = ob.Pool(hub)
    with pytest.raises(ob.InvalidArgument):
        pool.empty(0)
    with pytest.raises(ob.InvalidArgument):
        pool.empty(4, timeout=-1)
    with pytest.raises(ob.InvalidArgument):
        pool.prepare(1 << 40, 4)
    with pytest.raises(ob.InvalidArgument):
        pool.empty(4, memory_kind="no kind")
