"""One buffer on two platforms and the host, without a copy: every page, both directions, with controls that fail."""

import numpy as np
import pytest

import onebuf as ob

PAGE = 1024  # floats
STEP = "kernel void step(global uint *x, uint by) { size_t i = get_global_id(0); x[i] = x[i] * 3 + (uint)i + by; }"


def model(data, by):
    return data * np.uint32(3) + np.arange(data.size, dtype=np.uint32) + np.uint32(by)


@pytest.mark.parametrize("size", [1, 1000, PAGE * 3 + 7, 1 << 20])
def test_every_page_is_seen_from_all_sides(hub, cl, other, proven, size):
    x = hub.empty(size, np.uint32, share=[cl, other, hub.host], copies="forbid")
    steps = [device.kernel(STEP) for device in (cl, other)]
    expected = np.zeros(size, np.uint32)
    before = hub.ledger.implied_bytes
    for turn in range(6):
        for step in steps:
            step(x, turn)
            expected = model(expected, turn)
        with x.map() as a:
            np.testing.assert_array_equal(a, expected)
            a += 1
        expected += np.uint32(1)
    np.testing.assert_array_equal(x.read(), expected)
    assert hub.ledger.implied_bytes == before, "nothing was copied"
    assert "staged" not in x.explain().split("not taken")[0]


def test_a_staged_copy_is_counted(hub, cl, other):
    """The control: where routes are not proven, bytes are copied, and the ledger says so."""
    hub = ob.discover(only=["opencl"])
    x = hub.empty(1 << 16, np.uint32, share=[cl.id, other.id], memory_kind="device")
    steps = [hub[device.id].kernel(STEP) for device in (cl, other)]
    before = hub.ledger.implied_bytes
    expected = np.zeros(1 << 16, np.uint32)
    for step in steps:
        step(x, 1)
        expected = model(expected, 1)
    np.testing.assert_array_equal(x.read(), expected)
    assert hub.ledger.implied_bytes - before >= x.nbytes
    with pytest.raises(ob.CopyForbidden):
        hub.empty(1 << 16, np.uint32, share=[cl.id, other.id], memory_kind="device", copies="forbid")


def test_numpys_memory_is_used_in_place_by_two_platforms(hub, cl, other, proven):
    raw = np.zeros((1 << 18) + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    array = raw[start : start + (1 << 18)].view(np.uint32)
    y = hub.from_dlpack(array, share=[cl, other], copies="forbid")
    before = hub.ledger.implied_bytes
    expected = array.copy()
    for turn in range(4):
        for device in (cl, other):
            device.kernel(STEP)(y, turn)
            expected = model(expected, turn)
        with y.map() as a:
            np.testing.assert_array_equal(array, expected)
            assert a.ctypes.data == array.ctypes.data, "the very memory of the array"
            array += np.uint32(5)
        expected += np.uint32(5)
    assert hub.ledger.implied_bytes == before
