"""Fences, and queues that wait for them."""

import threading

import numpy as np
import pytest

import onebuf as ob

from test_copies import SLOW


@pytest.fixture(scope="module")
def slow(cl):
    return cl.kernel(SLOW)


def test_a_fence_is_reached_when_the_work_is_done(hub, cl, slow):
    x = hub.empty(20000, np.uint32, share=[cl])
    fence = slow(x, 20000, fence=True)
    assert isinstance(fence, ob.Fence) and slow(x, 1) is None
    with pytest.raises(ob.Timeout):
        fence.wait(0.0)
    fence.wait(30)
    assert fence.done and "reached" in repr(fence)
    fence.wait()
    for later in (x.fence(), x.uses(), cl.queue().fence()):
        later.wait(30)
        assert later.done
    assert fence.sync_method == "host_wait"


def test_queues_wait_for_fences(hub, cl, other, slow):
    first, second = cl.queue(), other.queue()
    x, y = hub.empty(20000, np.uint32, share=[cl]), hub.empty(64, np.uint32, share=[other])
    note = other.kernel("kernel void note(global uint *y) { y[get_global_id(0)] = 1; }")
    slow(x, 20000, queue=first)
    at = first.fence()
    assert second.wait_for(at) in ("same_queue", "semaphore", "event", "wait_value", "callback", "host_wait")
    note(y, queue=second)
    second.finish()
    assert at.done, "the second queue's work came after it"
    assert second.wait_for(at) and second.out_of_order is False and second.profiling is False


def test_a_profile_has_the_devices_times(hub, cl, slow):
    queue = cl.queue(profiling=True)
    assert queue.profiling
    x = hub.empty(20000, np.uint32, share=[cl])
    short, long = slow(x, 1, queue=queue, fence=True), slow(x, 20000, queue=queue, fence=True)
    queue.finish()
    times = [fence.profile() for fence in (short, long)]
    for one in times:
        assert one["queued_ns"] <= one["submitted_ns"] <= one["started_ns"] <= one["ended_ns"]
    ran = [one["ended_ns"] - one["started_ns"] for one in times]
    assert ran[1] > ran[0], "twenty thousand rounds are more than one"
    with pytest.raises(ob.Unsupported):
        slow(x, 1, fence=True).profile()


def test_an_out_of_order_queue_is_ordered_by_its_buffers(hub, cl):
    queue = cl.queue(out_of_order=True)
    assert queue.out_of_order
    step = cl.kernel("kernel void step(global uint *x, uint i) { x[get_global_id(0)] = x[get_global_id(0)] * 3 + i; }")
    all = [hub.empty(4096, np.uint32, share=[cl]) for _ in range(4)]
    value = 0
    for i in range(50):
        value = (value * 3 + i) % (1 << 32)
        for x in all:
            step(x, i, queue=queue)
    assert all and {int(word) for x in all for word in (x.read().min(), x.read().max())} == {value}


def test_bad_input(hub, cl, gain):
    x = hub.empty(64, share=[cl])
    with pytest.raises(TypeError):
        cl.queue().wait_for("now")
    with pytest.raises(ob.InvalidArgument, match="for buffers"):
        ob.kernel("kernel void f(global float *x) { x[get_global_id(0)] = 1; }")(np.ones(64, np.float32), fence=True)
    with pytest.raises(ob.InvalidArgument, match="seconds"):
        gain(x, 1.0, fence=True).wait(-1)


def test_other_threads_wait_for_one_fence(hub, cl, slow):
    x = hub.empty(20000, np.uint32, share=[cl])
    fence = slow(x, 20000, fence=True)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(fence.wait(30) or fence.done)) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert seen == [True] * 4
