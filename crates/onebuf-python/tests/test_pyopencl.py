"""pyopencl: its contexts, queues and buffers wrapped, and ours in its hands."""

import gc
import sys

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


def test_their_events_order_the_buffer(hub, theirs):
    context, queue = theirs
    (device,) = hub.wrap_context(context)
    gain = device.kernel(GAIN)
    buffer = pycl.Buffer(context, pycl.mem_flags.READ_WRITE, 4 * 4096)
    y = hub.from_pyopencl(buffer, dtype=np.float32)
    held = pycl.UserEvent(context)
    theirs_next = pycl.CommandQueue(context)
    written = pycl.enqueue_copy(theirs_next, buffer, np.arange(4096, dtype=np.float32), is_blocking=False, wait_for=[held])
    fence = hub.wrap_event(written)
    y.written_until(fence)
    gain(y, 2.0)
    after = y.fence()
    assert not fence.done and not after.done, "the control: their write is held up"
    held.set_status(pycl.command_execution_status.COMPLETE)
    after.wait(30)
    assert fence.done and isinstance(fence, ob.Fence)
    np.testing.assert_array_equal(y.read(), 2 * np.arange(4096))
    with pytest.raises(ob.InvalidArgument, match="pyopencl.Event"):
        hub.wrap_event(queue)


def test_our_work_is_an_event_of_theirs(hub, theirs):
    context, queue = theirs
    (device,) = hub.wrap_context(context)
    gain = device.kernel(GAIN)
    buffer = pycl.Buffer(context, pycl.mem_flags.READ_WRITE, 4 * 4096)
    y = hub.from_pyopencl(buffer, dtype=np.float32)
    out = np.empty(4096, np.float32)
    for turn in range(1, 20):
        y.fill(turn)
        fence = gain(y, 3.0, fence=True)
        # By events in a wait list, then by their queue, which waits for all work on the buffer.
        if turn % 2:
            pycl.enqueue_copy(queue, out, buffer, wait_for=fence.pyopencl_events())
        else:
            y.hand_to(queue)
            pycl.enqueue_copy(queue, out, buffer)
        assert (out == 3 * turn).all()
        pycl.enqueue_fill_buffer(queue, buffer, np.float32(-turn), 0, 4 * 4096)
        y.written_until(queue)
        assert (y.read() == -turn).all()
        y.hand_to(queue)
        done = pycl.enqueue_copy(queue, out, buffer, is_blocking=False)
        y.read_until(hub.wrap_queue(queue))
        y.fill(0)
        done.wait()
        assert (out == -turn).all(), "their read came before our write"
    assert all(isinstance(event, pycl.Event) for event in fence.pyopencl_events())
    references = queue.reference_count
    for _ in range(50):
        y.hand_to(queue)
        hub.wrap_event(pycl.enqueue_marker(queue)).wait()
        fence.pyopencl_events()
    gc.collect()
    assert queue.reference_count <= references + 2
    with pytest.raises(ob.InvalidArgument, match="stream"):
        y.hand_to("queue", device=device)


def test_their_shared_virtual_memory(hub, theirs):
    context, queue = theirs
    memory = pycl.SVMAllocation(context, 4 * 5000, 64, pycl.svm_mem_flags.READ_WRITE, queue=queue)
    pycl.enqueue_copy(queue, memory, np.arange(5000, dtype=np.float32))
    with pytest.raises(ob.InvalidArgument, match="queue"):
        hub.from_pyopencl(memory, dtype=np.float32)
    y = hub.from_pyopencl(memory, dtype=np.float32, queue=queue)
    assert y.shape == (5000,) and y.is_foreign
    (device,) = hub.wrap_context(context)
    device.kernel(GAIN)(y, 3.0)
    np.testing.assert_array_equal(y.read(), 3 * np.arange(5000))
    y.hand_to(queue)
    out = np.empty(5000, np.float32)
    pycl.enqueue_copy(queue, out, memory)
    np.testing.assert_array_equal(out, 3 * np.arange(5000))
    kept = sys.getrefcount(memory)
    del y
    gc.collect()
    assert sys.getrefcount(memory) == kept - 1, "the buffer kept it"
    with pytest.raises(ob.InvalidArgument, match="its memory has 64"):
        hub.from_pyopencl(pycl.SVMAllocation(context, 64, 64, pycl.svm_mem_flags.READ_WRITE, queue=queue), 64, "float32", queue=queue)


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
    with pytest.raises(ob.InvalidArgument, match="needs 256 bytes, its memory has 64"):
        hub.from_pyopencl(buffer, 64, "float32")
