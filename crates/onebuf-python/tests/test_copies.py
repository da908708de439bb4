"""Copies without an array of the caller's: in the background, fills, between buffers. Every page is looked at."""

import numpy as np
import pytest

import onebuf as ob

PAGES = 3 * 4096 * 5  # elements of 4 bytes: sixty pages
SLOW = """
kernel void slow(global uint *x, uint rounds) {
    uint value = x[get_global_id(0)];
    for (uint i = 0; i < rounds; i++) value = value * 1664525u + 1013904223u;
    x[get_global_id(0)] = value;
}
"""


def numbers(start=0):
    return np.arange(start, start + PAGES, dtype=np.uint32)


@pytest.fixture(params=["mapped_device", "device", "fine_svm"])
def kind(request):
    return request.param


def test_reads_and_writes_in_the_background(hub, cl, kind):
    x = hub.empty((3, PAGES // 3), np.uint32, share=[cl], memory_kind=kind)
    asked = hub.ledger.asked_bytes
    data = numbers().reshape(3, -1)
    write = x.write_async(data)
    data[:] = 0  # it was copied
    assert write.wait() is None and write.done and write.wait() is None
    read = x.read_async()
    array = read.wait(20)
    assert read.done and array is read.wait() and array.shape == x.shape and array.dtype == np.uint32
    np.testing.assert_array_equal(array.reshape(-1), numbers())
    array[0, 0] = 77
    assert x.read()[0, 0] == 0, "the array is the caller's own"
    part = x[1].read_async().wait()
    np.testing.assert_array_equal(part, numbers().reshape(3, -1)[1])
    x[2].write_async(5).wait()
    assert (x.read()[2] == 5).all() and (x.read()[1] == part).all()
    assert hub.ledger.asked_bytes > asked
    with pytest.raises(ob.InvalidArgument, match="not contiguous"):
        x[:, ::2].read_async()
    with pytest.raises(ob.InvalidArgument, match="shape"):
        x.write_async(np.ones((7, 7)))
    del write, read


def test_transfers_are_ordered_with_kernels_and_time_out(hub, cl):
    slow = cl.kernel(SLOW)
    x = hub.empty(PAGES, np.uint32, share=[cl], memory_kind="device")
    x.fill(1)
    slow(x, 2000)
    transfer = x.read_async()
    try:
        transfer.wait(0.0)
    except ob.Timeout:
        pass
    value = 1
    for _ in range(2000):
        value = (value * 1664525 + 1013904223) % (1 << 32)
    assert (transfer.wait() == value).all()
    slow(x, 2000)
    x.write_async(3)  # its end waits for it
    assert (x.read() == 3).all()


def test_transfers_of_lent_buffers(hub, cl):
    x = hub.array(numbers(), share=[cl])
    array = np.asarray(x)
    array[:10] = 9
    read = x.read_async()
    assert read.done and (read.wait()[:10] == 9).all() and (read.wait()[10:] == numbers()[10:]).all()
    assert x.write_async(4).wait() is None and (array == 4).all(), "by the map that the host has"
    with pytest.raises(ob.Busy, match="lent to the host"):
        x.copy_from(hub.array(numbers()))
    with pytest.raises(ob.Busy, match="lent to the host"):
        hub.array(numbers()).copy_from(x)
    x.fill(6)
    assert (array == 6).all()
    del array
    x.copy_from(hub.array(numbers()))
    np.testing.assert_array_equal(x.read(), numbers())


def test_fills(hub, cl, kind):
    for dtype, value in [("uint8", 200), ("float16", 0.5), ("int32", -7), ("float64", 1e300), ("complex128", 2 - 3j), ("bool", True)]:
        x = hub.empty((4, 4096), dtype, share=[cl], memory_kind=kind)
        x.fill(value)
        assert (x.read() == np.dtype(dtype).type(value)).all(), dtype
        x[2].fill(0)
        assert (x.read()[2] == 0).all() and (x.read()[[0, 1, 3]] == np.dtype(dtype).type(value)).all()
        x[:, ::2].fill(0)
        assert not x.read()[:, ::2].any() and x.read()[0, 1] == np.dtype(dtype).type(value)
    x.fill(np.arange(4096) % 2)
    assert (x.read() == (np.arange(4096) % 2 == 1)).all(), "more than one value is written"
    with pytest.raises(ob.InvalidArgument, match="shape"):
        x.fill([1, 2, 3])
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":  # before, a read-only array has no DLPack
        frozen = numbers()
        frozen.flags.writeable = False
        with pytest.raises(ob.Unsupported, match="read-only"):
            hub.from_dlpack(frozen).fill(0)


@pytest.mark.parametrize("first", ["mapped_device", "device"])
@pytest.mark.parametrize("second", ["mapped_device", "device"])
def test_copies_between_buffers(hub, cl, other, first, second):
    for here, there in [(cl, cl), (cl, other), (other, cl)]:
        x = hub.array(numbers(), share=[here], memory_kind=first)
        y = hub.empty(PAGES, np.uint32, share=[there], memory_kind=second)
        told = y.copy_from(x)
        assert told["bytes"] == x.nbytes and told["way"], told
        np.testing.assert_array_equal(y.read(), numbers())
        y[4096:8192].copy_from(x[:4096])
        expected = numbers()
        expected[4096:8192] = numbers()[:4096]
        np.testing.assert_array_equal(y.read(), expected)
    second_hub = ob.discover(only=["opencl"])
    z = second_hub.empty(PAGES, np.uint32, share=[cl.id])
    z.copy_from(y)
    np.testing.assert_array_equal(z.read(), expected)
    with pytest.raises(ob.InvalidArgument, match="must be the same"):
        z.copy_from(x[1:])
    with pytest.raises(ob.InvalidArgument, match="must be the same"):
        z.copy_from(x.view(np.float32))


def test_discarded_contents_are_not_copied(hub, cl, other):
    kernels = {device: device.kernel("kernel void f(global uint *x) { x[get_global_id(0)] = get_global_id(0); }") for device in (cl, other)}
    x = hub.empty(PAGES, np.uint32, share=[cl, other], route="staged")
    for discards in (False, True):
        kernels[cl](x)
        implied = hub.ledger.implied_bytes
        if discards:
            x.discard()
        kernels[other](x)
        assert (hub.ledger.implied_bytes - implied == 0) == discards, "the control copies"
        np.testing.assert_array_equal(x.read(), numbers())
    with pytest.raises(ob.InvalidArgument, match="a part"):
        x[:4096].discard()
    with x.map():
        with pytest.raises(ob.Busy):
            x.discard()


def test_a_release_ahead_changes_nothing_else(hub, cl, other, proven):
    gain = {device: device.kernel("kernel void f(global float *x) { x[get_global_id(0)] *= 2; }") for device in (cl, other)}
    x = hub.array(np.ones(PAGES, np.float32), share=[cl, other], copies="forbid")
    for _ in range(5):
        gain[cl](x)
        x.release_to(other)
        gain[other](x)
        x.release_to(cl, write=False)
    assert (x.read() == 1024).all()
    with pytest.raises(ob.NotShared):
        hub.empty(4, share=[cl]).release_to(other)


def test_parts_and_shapes(hub):
    x = hub.array(np.arange(24, dtype=np.int16).reshape(4, 6))
    assert x.reshape(-1).shape == (24,) and x.reshape(2, -1).shape == (2, 12) and x.reshape((-1, 3)).shape == (8, 3)
    for wrong in [(-1, -1), (5, -1), (-1, 0), (-2, 3)]:
        with pytest.raises(ob.InvalidArgument):
            x.reshape(wrong)
    assert x.T.shape == (6, 4) and not x.T.contiguous and x.T.T.contiguous
    np.testing.assert_array_equal(x.T.read(), x.read().T)
    x.T[1] = 9
    assert (x.read()[:, 1] == 9).all()
    assert x[1, 2].shape == () and x[1, 2].read() == 8 and x[1, 2].read().shape == ()
    x[1, 2].write(100)
    x[1, 3] = 101
    assert list(x.read()[1, 2:4]) == [100, 101]
    assert hub.array(5.0).read() == 5


def test_foreign_memory_says_so(hub):
    assert not hub.empty(4).is_foreign
    array = np.ones(64, np.float32)
    assert isinstance(hub.from_dlpack(array).is_foreign, bool)


def test_memory_travels_by_descriptors(tmp_path):
    """On the stub drivers, whose exported memory is really shared."""
    import stubs

    ran = stubs.run("""
        x = hub.empty((3, 1000), np.uint32, share=[cuda], memory_kind="exportable")
        x.write(np.arange(3000).reshape(3, 1000))
        before = len(os.listdir("/proc/self/fd"))
        told = x.export_fd()
        assert told["kind"] == "opaque_fd" and told["bytes"] == 12000 and told["allocation_bytes"] >= 12000, told
        assert len(os.listdir("/proc/self/fd")) == before + 1
        y = hub.import_fd(told["fd"], cl, (3, 1000), np.uint32, allocation_bytes=told["allocation_bytes"], offset=told["offset"])
        os.close(told["fd"])
        seen = by_opencl(y, lambda words: words * 2 + 1)
        assert (seen == np.arange(3000)).all()
        y.free()                                       # the stub has a cache: its end brings the bytes
        cl.finish()
        assert (x.read().reshape(-1) == 2 * np.arange(3000) + 1).all(), "one memory"
        for call, word in [
            (lambda: hub.import_fd(-1, cl, 4), "descriptor"),
            (lambda: hub.import_fd(before + 900, cl, 4), "descriptor"),
            (lambda: hub.import_fd(0, cl, 4, kind="nonsense"), "unknown variant"),
            (lambda: x[0].export_fd(), "a part"),
            (lambda: hub.empty(4).export_fd(), ""),
        ]:
            try:
                call()
            except ob.Error as why:
                assert word in str(why), why
            else:
                raise AssertionError(word)
        print("done", len(os.listdir("/proc/self/fd")) - before)
    """)
    assert ran.returncode == 0, ran
    assert ran.stdout.splitlines()[-1] == "done 0", ran.stdout


def test_memory_that_nothing_exports_is_refused(hub, cl):
    with pytest.raises(ob.Error, match="needs|supported"):
        hub.empty(4096, share=[cl]).export_fd()
