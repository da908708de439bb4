"""pyopencl: its contexts, queues and buffers wrapped, and ours in its hands."""

import gc

import numpy as np
import pyopencl as pycl
import pyopencl.array
import pytest

import onebuf as ob

from conftest import GAIN


@pytest.fixture(scope="module")
def theirs(cl):
    """A context and a queue of pyopencl's on the same driver."""
    for platform in pycl.get_platforms():
        if platform.name == cl.platform:
            context = pycl.Context(platform.get_devices()[:1])
            return context, pycl.CommandQueue(context)
    return pytest.fail(f"pyopencl has no platform {cl.platform}")


def settled(buffer, count):
    """Whether an object has its references again."""
    gc.collect()
    return buffer.reference_count == count


def test_their_buffer_is_used_in_their_context(hub, theirs):
    context, queue = theirs
    buffer = pycl.Buffer(context, pycl.mem_flags.READ_WRITE, 4 * 4096)
    references = buffer.reference_count
    pycl.enqueue_copy(queue, buffer, np.arange(4096, dtype=np.float32), is_blocking=False)
    before = hub.ledger.implied_bytes
    y = hub.from_pyopencl(buffer, dtype=np.float32, queue=queue)
    assert y.shape == (4096,)
    (device,) = hub.wrap_context(context)
    gain = device.kernel(GAIN)
    ours = hub.wrap_queue(queue)
    for _ in range(3):
        gain(y, 2.0, queue=ours)
    out = np.empty(4096, np.float32)
    pycl.enqueue_copy(queue, out, buffer)  # in the same queue: after our launches
    np.testing.assert_array_equal(out, 8 * np.arange(4096))
    gain(y, 0.5)
    np.testing.assert_array_equal(y.read(), 4 * np.arange(4096))
    assert hub.ledger.implied_bytes == before
    del y, gain, ours, device
    assert settled(buffer, references)


def test_their_arrays_have_shapes_and_types(hub, theirs):
    context, queue = theirs
    array = pyopencl.array.to_device(queue, np.arange(64, dtype=np.float32).reshape(8, 8))
    y = hub.from_pyopencl(array)
    assert (y.shape, y.dtype) == ((8, 8), np.float32)
    hub.wrap_context(context)[0].kernel(GAIN)(y, 3.0)
    y.wait()
    np.testing.assert_array_equal(array.get(), 3 * np.arange(64).reshape(8, 8))
    rows = hub.from_pyopencl(array[2:4])
    np.testing.assert_array_equal(rows.read(), 3 * np.arange(16, 32).reshape(2, 8))
    with pytest.raises(ob.InvalidArgument, match="not contiguous"):
        hub.from_pyopencl(array[:, ::2])


def test_their_buffer_is_shared_with_another_platform(hub, theirs, other, gain_there):
    context, queue = theirs
    buffer = pycl.Buffer(context, pycl.mem_flags.READ_WRITE | pycl.mem_flags.ALLOC_HOST_PTR, 4 * 65536)
    pycl.enqueue_copy(queue, buffer, np.arange(65536, dtype=np.float32))
    y = hub.from_pyopencl(buffer, dtype=np.float32, queue=queue, share=[other])
    gain_there(y, 2.0)
    np.testing.assert_array_equal(y.read(), 2 * np.arange(65536))
    y.free()
    gc.collect()
    out = np.empty(65536, np.float32)
    pycl.enqueue_copy(queue, out, buffer)
    np.testing.assert_array_equal(out, 2 * np.arange(65536))


def test_our_buffer_is_used_by_their_calls(hub, cl):
    context = pycl.Context.from_int_ptr(cl.native_handles["cl_context"], retain=True)
    program = pycl.Program(context, GAIN).build()
    x = hub.empty(4096, share=[cl], memory_kind="mapped_device")
    x.write(np.arange(4096))
    with x.on(cl) as view:
        queue = pycl.CommandQueue.from_int_ptr(view.queue.int_ptr, retain=True)
        memory = pycl.MemoryObject.from_int_ptr(view.cl_mem, retain=True)
        program.gain(queue, (4096,), None, memory, np.float32(5))
        with pytest.raises(ob.Busy):
            x.read()
    np.testing.assert_array_equal(x.read(), 5 * np.arange(4096))
    with pytest.raises(ob.InvalidArgument, match="with"):
        view.cl_mem


def test_what_is_no_object_of_theirs_is_refused(hub, theirs):
    context, queue = theirs
    for wrong in (
        lambda: hub.from_pyopencl(np.zeros(4)),
        lambda: hub.from_pyopencl(queue),
        lambda: hub.wrap_queue(context),
        lambda: hub.wrap_context(queue),
        lambda: hub.wrap_queue(7),
    ):
        with pytest.raises(ob.InvalidArgument, match="pyopencl"):
            wrong()
    buffer = pycl.Buffer(context, pycl.mem_flags.READ_WRITE, 64)
    with pytest.raises(ob.InvalidArgument, match="needs 256 bytes"):
        hub.from_pyopencl(buffer, 64, "float32")
