"""PyTorch on buffers, and buffers over PyTorch's memory: in place, ordered both ways on PyTorch's current stream."""

from on_gpu import cl, cuda, hub, shared  # noqa: F401, I001: first, because it skips where there is no GPU

import gc
import threading

import cupy
import numpy as np
import pytest
import torch

import onebuf as ob

GAIN = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"
COUNT = "kernel void count(global uint *x, uint by) { x[get_global_id(0)] = (uint)get_global_id(0) + by; }"
# 64 MiB and a bit: every page is looked at, and the last one is not full.
N = (16 << 20) + 1000


@pytest.fixture
def busy():
    """Enqueues work that takes some milliseconds on PyTorch's current stream."""
    a = torch.randn(4096, 4096, device="cuda")

    def enqueue(times=4):
        for _ in range(times):
            torch.mm(a, a)

    return enqueue


@pytest.fixture(params=["default stream", "own stream"])
def stream(request):
    if request.param == "default stream":
        yield torch.cuda.current_stream()
        return
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        yield stream


def test_versions_are_reported(hub, cuda, cl, capsys):
    with capsys.disabled():
        print(f"\ntorch {torch.__version__}, CuPy {cupy.__version__}, NumPy {np.__version__}, onebuf {ob.__version__}")
        print(hub)
        for device in (cuda, cl):
            print(device.id, device.name, device.driver, device.memory_bytes >> 30, "GiB")
        print("zero_copy", hub.zero_copy(cl, cuda), "exchange api", hasattr(torch.Tensor, "__dlpack_c_exchange_api__"))


def test_in_place_and_both_ways(hub, cuda, cl, shared, stream, busy):
    x = hub.empty(N, np.uint32, **shared)
    count = cl.kernel(COUNT)
    before = hub.ledger.implied_bytes
    for turn in range(3):
        count(x, turn)
        t = torch.from_dlpack(x)
        assert t.is_cuda and t.dtype == torch.uint32 and t.numel() == N
        t = t.view(torch.int32)
        expected = torch.arange(N, dtype=torch.int32, device="cuda") + turn
        assert torch.equal(t, expected), "PyTorch sees what OpenCL wrote, in every page"
        busy()
        t.mul_(3)
        busy()
        t.add_(1)
        del t
        np.testing.assert_array_equal(x.read(), (np.arange(N, dtype=np.uint32) + turn) * 3 + 1)
    assert hub.ledger.implied_bytes == before, "nothing was copied"
    x[N - 1 : N] = 5
    last = int(torch.from_dlpack(x).view(torch.int32)[-1])
    assert last == 5
    assert x.device_users == 0


def test_the_control_of_the_order(hub, cuda, busy):
    """Without the protocol, a stream that does not wait sees old contents: the tests above can fail."""
    x = hub.empty(N, np.float32, share=[cuda], memory_kind="device")
    x[...] = 1
    ours = torch.cuda.Stream()
    with torch.cuda.stream(ours):
        t = torch.from_dlpack(x)
        busy(40)
        t.fill_(2)
    with torch.cuda.stream(torch.cuda.Stream()):
        early = t[-1:].cpu()
    torch.cuda.synchronize()
    assert float(early) == 1.0, "a read that is not ordered comes too early"
    del t
    assert (x.read() == 2).all()


def test_a_view(hub, cuda, cl, shared, stream, busy):
    x = hub.empty((64, 65536), np.complex64, **shared)
    x[...] = 1 + 2j
    before = hub.ledger.implied_bytes
    gain = cl.kernel("kernel void gain(global float2 *x, float by) { x[get_global_id(0)] *= by; }")
    for _ in range(5):
        gain(x, 2.0)
        busy(1)
        with x.on(cuda) as v:
            torch.from_dlpack(v).mul_(0.5)
    with x.on(cuda) as v:
        t = torch.from_dlpack(v)
        busy(8)
        t.mul_(2)
    with pytest.raises(ob.Busy, match="lent to cuda:0"):
        gain(x, 1.0)
    del t
    gain(x, 1.0)
    assert (x.read() == 2 + 4j).all()
    assert hub.ledger.implied_bytes == before, "nothing was copied"


def test_many_hand_overs_with_a_busy_stream(hub, cuda, stream):
    """10,000 turns: a kernel of ours on our queue, PyTorch on its stream, and never a wait of the host."""
    n = 4096
    x = hub.empty(n, np.int32, share=[cuda], memory_kind="device")
    x[...] = 0
    step = ob.kernel("kernel void step(global int *x) { x[get_global_id(0)] += 1; }").on(cuda)
    free = []
    for turn in range(10_000):
        step(x)
        t = torch.from_dlpack(x)
        t.add_(1)
        del t
        if turn % 1000 == 999:
            got = x.read()
            assert (got == 2 * (turn + 1)).all(), (turn, got[:4])
            free.append(torch.cuda.mem_get_info()[0] >> 20)
    torch.cuda.synchronize()
    free.append(torch.cuda.mem_get_info()[0] >> 20)
    print("MiB free after each thousand turns, and after a synchronisation:", free)
    # The driver's own memory grows while thousands of events are in flight, and then no more.
    assert free[4] - free[-1] <= 64, free


def test_kernels_on_a_lent_buffer(hub, cuda, stream, busy):
    x = hub.empty(N, np.int32, share=[cuda], memory_kind="device")
    x[...] = 0
    step = ob.kernel("kernel void step(global int *x, int mul, int add) { size_t i = get_global_id(0); x[i] = x[i] * mul + add; }")
    t = torch.from_dlpack(x)
    value = 0
    for turn in range(20):
        busy(1)
        t.add_(1)
        step.on(cuda)(x, 3, turn)  # after PyTorch's work, and before what follows
        step(x, 1, 1)
        t.mul_(2)
        value = (((value + 1) * 3 + turn + 1) * 2 + 2**31) % 2**32 - 2**31
    assert torch.equal(t, torch.full_like(t, value))
    del t
    assert (x.read() == value).all()


def test_which_device(hub, cuda, cl, shared):
    x = hub.empty(N, np.float32, **shared)
    assert x.__dlpack_device__() == (2, 0)
    assert torch.from_dlpack(x).is_cuda
    host = hub.empty(16, np.float32, share=[cl])
    assert host.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(2, 7))
    with pytest.raises(BufferError, match="ambiguous"):
        x.__dlpack__(stream=0)


def test_a_tensor_as_a_buffer(hub, cuda, cl, stream, busy):
    t = torch.zeros(N, dtype=torch.int32, device="cuda")
    busy(20)
    t.add_(7)
    y = hub.from_dlpack(t)
    assert (y.read() == 7).all(), "ordered after PyTorch's work"
    step = ob.kernel("kernel void step(global int *x) { x[get_global_id(0)] *= 2; }")
    for _ in range(3):
        step(y)
        y.hand_to(torch.cuda.current_stream())
        busy(2)
        t.add_(1)
        y.written_until(torch.cuda.current_stream())
    y.wait()
    assert torch.equal(t, torch.full_like(t, ((7 * 2 + 1) * 2 + 1) * 2 + 1))
    assert (y.read() == 63).all()
    with pytest.raises(ob.CopyForbidden):
        hub.from_dlpack(torch.zeros(1024, device="cuda"), share=[cl], copies="forbid")
    staged = hub.from_dlpack(torch.full((1024,), 3.0, device="cuda"), share=[cl])
    cl.kernel(GAIN)(staged, 2.0)
    assert (staged.read() == 6).all()


def test_back_again_is_the_same_buffer(hub, cuda):
    x = hub.empty((4, 1024), np.float32, share=[cuda])
    t = torch.from_dlpack(x)
    y = hub.from_dlpack(t[1])
    c = cupy.from_dlpack(t)
    z = hub.from_dlpack(c[2])
    del t, c
    y[...] = 3
    z[...] = 4
    np.testing.assert_array_equal(x.read(), np.repeat([0, 3, 4, 0], 1024).reshape(4, 1024))


def test_deleters_on_other_threads(hub, cuda, busy):
    x = hub.empty(N, np.float32, share=[cuda], memory_kind="device")
    x[...] = 1

    def use(kept):
        t = kept.pop()
        with torch.cuda.stream(torch.cuda.Stream()):
            pass
        del t

    for _ in range(50):
        kept = [torch.from_dlpack(x)]
        kept[0].mul_(1)
        thread = threading.Thread(target=use, args=(kept,))
        thread.start()
        thread.join()
        assert x.device_users == 0
    assert (x.read() == 1).all()


def test_bad_tensors(hub, cuda):
    for tensor, why in [
        (torch.zeros(8, 8, device="cuda")[:, ::2], "not contiguous"),
        (torch.zeros(8, device="cuda", requires_grad=True), "grad"),
        (torch.zeros(8, device="cuda", dtype=torch.bfloat16), "bfloat16"),
        (torch.zeros(0, device="cuda"), "no element"),
    ]:
        with pytest.raises((ob.Error, RuntimeError, BufferError), match=why):
            hub.from_dlpack(tensor)
    assert hub.from_dlpack(torch.zeros(8)).shape == (8,)


def test_nothing_leaks(hub, cuda):
    import os

    x = hub.empty(1 << 20, np.float32, share=[cuda], memory_kind="device")
    t = torch.zeros(1 << 20, device="cuda")

    def turn():
        torch.from_dlpack(x).add_(1)
        y = hub.from_dlpack(t)
        y.wait()
        z = hub.empty(1 << 20, np.float32, share=[cuda])
        torch.from_dlpack(z).add_(1)
        del y, z

    for _ in range(20):
        turn()
    gc.collect()
    torch.cuda.synchronize()
    files, free, objects = len(os.listdir("/proc/self/fd")), torch.cuda.mem_get_info()[0], len(gc.get_objects())
    for _ in range(300):
        turn()
    gc.collect()
    torch.cuda.synchronize()
    assert len(os.listdir("/proc/self/fd")) <= files + 2
    assert free - torch.cuda.mem_get_info()[0] <= 64 << 20
    assert len(gc.get_objects()) - objects < 1000
