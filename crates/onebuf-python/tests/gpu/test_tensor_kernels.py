"""OpenCL kernels on tensors: grafted onto the CUDA device, in the stream that the tensor's library uses now."""

from on_gpu import cl, cuda, hub  # noqa: F401, I001: first, because it skips where there is no GPU

import subprocess
import sys

import cupy
import numpy as np
import pytest
import torch

import onebuf as ob

GAIN = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"
N = (16 << 20) + 96


@pytest.fixture(scope="session")
def gain(cl):
    return ob.kernel(GAIN)


def test_in_the_current_stream(gain):
    a = torch.randn(4096, 4096, device="cuda")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            x = torch.zeros(N, device="cuda")
            for turn in range(10):
                torch.mm(a, a)
                x.add_(1)
                gain(x, 2.0)
            assert torch.equal(x, torch.full_like(x, 2046.0))
        torch.cuda.synchronize()


def test_every_element(cl):
    text = "kernel void mix(global uint *y, global const uint *x, uint by) { size_t i = get_global_id(0); y[i] = x[i] * 2654435761u + by + (uint)i; }"
    mix = ob.kernel(text, each=True)
    x = torch.randint(0, 2**31 - 1, (N,), device="cuda", dtype=torch.int32)
    y = torch.zeros_like(x)
    mix(y, x, 7)
    expected = x.cpu().numpy().view(np.uint32) * np.uint32(2654435761) + np.uint32(7) + np.arange(N, dtype=np.uint32)
    np.testing.assert_array_equal(y.cpu().numpy().view(np.uint32), expected)
    with pytest.raises(ob.InvalidArgument, match="elements for"):
        mix(y, x[:-32], 7)


def test_local_memory_and_grids(cl):
    text = """kernel void turn(global float *x, local float *part) {
        size_t l = get_local_id(0), n = get_local_size(0), i = get_global_id(0);
        part[l] = x[i];
        barrier(CLK_LOCAL_MEM_FENCE);
        x[i] = part[n - 1 - l];
    }"""
    turn = ob.kernel(text)
    x = torch.arange(4096, dtype=torch.float32, device="cuda")
    turn[4096](x, ob.Local(256), local=64)
    np.testing.assert_array_equal(x.cpu().numpy().reshape(-1, 64), np.arange(4096, dtype=np.float32).reshape(-1, 64)[:, ::-1])
    grid = ob.kernel("kernel void at(global int *x, int w) { x[get_global_id(1) * w + get_global_id(0)] = get_global_id(1) * 1000 + get_global_id(0); }")
    y = torch.zeros(24, 64, dtype=torch.int32, device="cuda")
    grid[64, 24](y, 64)
    rows, columns = np.indices((24, 64))
    np.testing.assert_array_equal(y.cpu().numpy(), rows * 1000 + columns)


def test_cupy(gain):
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            x = cupy.ones(N, np.float32)
            for _ in range(5):
                x += 1
                gain(x, 0.5)
            assert bool((x == 1).all())
    half = ob.kernel("#pragma OPENCL EXTENSION cl_khr_fp16 : enable\nkernel void twice(global half *x) { x[get_global_id(0)] *= 2; }")
    try:
        x = cupy.ones(4096, np.float16)
        half(x)
        assert bool((x == 2).all())
    except ob.BuildFailed as why:
        print("half:", why)
    z = cupy.full(4096, 1 + 1j, np.complex64)
    ob.kernel("kernel void c(global float2 *x, float2 by) { x[get_global_id(0)] += by; }")(z, (1.0, 2.0))
    assert bool((z == 2 + 3j).all())


def test_bad_input(hub, cuda, gain):
    x = torch.ones(64, device="cuda")
    freed = hub.empty(64, np.float32, share=[cuda])
    freed.free()
    for args, why in [
        ((torch.ones(8, 8, device="cuda")[:, ::2], 1.0), "not contiguous"),
        ((torch.ones(64, device="cuda", requires_grad=True), 1.0), "gradient"),
        ((torch.ones(64, device="cuda", dtype=torch.float64), 1.0), "float64 elements"),
        ((torch.ones(64, device="cuda", dtype=torch.bfloat16), 1.0), "bfloat16"),
        ((x,), "takes 2 arguments, 1 were given"),
        ((x, "a"), "a number is needed"),
        ((x, x), "a number is needed"),
        ((torch.zeros(0, device="cuda"), 1.0), "no element"),
        ((freed, 1.0), "freed"),
        ((hub.empty(64, np.float32, share=[cuda]), x), "arrays and buffers"),
    ]:
        with pytest.raises((ob.InvalidArgument, ob.Error), match=why):
            gain(*args)
    two = ob.kernel("kernel void add(global float *x, global const float *y) { x[get_global_id(0)] += y[get_global_id(0)]; }")
    with pytest.raises(ob.InvalidArgument, match="on host, another is on cuda:0"):
        two(x, torch.ones(64))
    conjugated = torch.ones(64, dtype=torch.complex64, device="cuda").conj()
    with pytest.raises(ob.InvalidArgument, match="conj"):
        ob.kernel("kernel void c(global float2 *x) { x[get_global_id(0)] *= 2; }")(conjugated)
    with pytest.raises(ob.BuildFailed):
        ob.kernel("kernel void wrong(global float *x) { x[0] = nothing; }")(x)
    with pytest.raises(ob.InvalidArgument, match="a stream is"):
        gain(x, 1.0, stream="a")
    with pytest.raises(ob.InvalidArgument, match="divide"):
        gain[60](x, 1.0, local=64)
    assert float(x.sum()) == 64


def test_graph_capture(gain):
    x = torch.ones(N, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gain(x, 1.0)  # compiled and loaded before the capture
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gain(x, 2.0)
        x.add_(1)
        gain(x, 3.0)
    torch.cuda.synchronize()
    assert torch.equal(x, torch.ones_like(x)), "a capture runs nothing"
    value = 1.0
    for _ in range(3):
        graph.replay()
        value = (value * 2 + 1) * 3
    torch.cuda.synchronize()
    assert torch.equal(x, torch.full_like(x, value))


def test_graph_capture_of_cupy(gain):
    x = cupy.ones(4096, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        gain(x, 1.0)
        stream.synchronize()
        stream.begin_capture()
        gain(x, 2.0)
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    assert bool((x == 8).all())


def test_an_export_under_capture_is_an_error():
    """A buffer's work is not in the graph: the driver refuses the wait for it, and says so. In a process of its own, because PyTorch's
    random numbers do not survive a capture that failed."""
    text = """
import numpy as np, onebuf as ob, torch
hub = ob.discover(without=["gl", "vulkan"])
x = hub.empty(4096, np.float32, share=[hub["cuda:0"]])
x[...] = 1
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        torch.from_dlpack(x).add_(1)
except (RuntimeError, BufferError) as why:
    print("refused:", why)
else:
    raise AssertionError
torch.cuda.synchronize()
assert x.device_users == 0 and (x.read() == 1).all()
torch.from_dlpack(x).add_(1)
assert (x.read() == 2).all()
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    print(done.stdout, done.stderr)
    assert done.returncode == 0 and "refused" in done.stdout, f"{done.stdout}\n{done.stderr[-3000:]}"


def test_threads(gain):
    import threading

    tensors = [torch.ones(4096, device="cuda") for _ in range(4)]
    faults = []

    def work(x):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(200):
                    gain(x, 2.0)
                    gain(x, 0.5)
                torch.cuda.current_stream().synchronize()
        except Exception as why:
            faults.append(why)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(x,)) for x in tensors]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not faults, faults
    assert all(bool((x == 1).all()) for x in tensors)


def test_inside_a_custom_function(gain):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.detach().clone()
            gain(y, 3.0)
            return y

        @staticmethod
        def backward(ctx, g):
            g = g.clone()
            gain(g, 3.0)
            return g

    x = torch.ones(1024, device="cuda", requires_grad=True)
    Scale.apply(x).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3.0))
