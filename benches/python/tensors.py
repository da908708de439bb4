"""What launches, kernels and hand-overs on a CUDA device cost from Python, over CuPy's.

A launch is timed on the host, without the wait for its work. A kernel's own time is measured by two events of CUDA around a batch on the device; the
batch is captured in a CUDA graph, so that the launches themselves cost the same on both sides. Run it with the package, PyTorch and CuPy
installed: `python benches/python/tensors.py`. `paired.py` says how it is measured.
"""

import cupy
import numpy as np
import torch
from paired import compare, host_time, main

import onebuf as ob

TEXT = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"
RAW = 'extern "C" __global__ void gain(float *x, float by) { x[(size_t)blockIdx.x * blockDim.x + threadIdx.x] *= by; }'
# A polynomial of degree 255, so that arithmetic decides and not the memory.
HORNER = "float v = x[i], sum = by; for (int k = 0; k < 256; ++k) sum = sum * v + by; x[i] = sum * 1e-30f;"
LONG = f"kernel void horner(global float *x, float by) {{ size_t i = get_global_id(0); {HORNER} }}"
RAW_LONG = f'extern "C" __global__ void horner(float *x, float by) {{ size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; {HORNER} }}'
MANY = "kernel void mix(global float *y, global const float *a, global const float *b, float p, float q) { size_t i = get_global_id(0); y[i] = a[i] * p + b[i] * q; }"
RAW_MANY = 'extern "C" __global__ void mix(float *y, const float *a, const float *b, float p, float q) { size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; y[i] = a[i] * p + b[i] * q; }'

on_host = host_time(torch.cuda.synchronize)


def captured(run, count):
    """A function that runs a call so often, by one CUDA graph."""
    stream = torch.cuda.Stream()
    # Newer versions of CuPy have another name for it.
    older = getattr(cupy.cuda, "ExternalStream", None)
    with torch.cuda.stream(stream), older(stream.cuda_stream) if older else cupy.cuda.Stream.from_external(stream):
        run()  # compiled and loaded before the capture
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                run()
    return graph.replay


def on_device(count):
    """A timer: microseconds on the device of one of so many calls that a graph makes."""

    def timed(replay, batch):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        first.record()
        for _ in range(batch):
            replay()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / batch / count * 1e3

    return timed


def launches():
    """A launch of a small kernel: OpenCL C grafted, over CUDA C by CuPy's `RawKernel`."""
    gain, raw = ob.kernel(TEXT), cupy.RawKernel(RAW, "gain")
    n, by = 4096, np.float32(1.0)
    x, t = cupy.ones(n, np.float32), torch.ones(n, device="cuda")

    def theirs():
        raw((n // 256,), (256,), (x, by))

    launch = gain[n]
    for name, ours in [
        ("on_cupy", lambda: gain(x, 1.0)),
        ("on_cupy_grid", lambda: launch(x, 1.0)),
        ("on_torch", lambda: gain(t, 1.0)),
        ("on_torch_grid", lambda: launch(t, 1.0)),
    ]:
        compare(f"python_launch_{name}_over_rawkernel", ours, theirs, 200, on_host, bar=1.1)
    mix, raw_mix = ob.kernel(MANY), cupy.RawKernel(RAW_MANY, "mix")
    a, b, y = (cupy.ones(n, np.float32) for _ in range(3))
    p, q, r = (torch.ones(n, device="cuda") for _ in range(3))

    def theirs_of_5():
        raw_mix((n // 256,), (256,), (y, a, b, by, by))

    compare("python_launch_of_5_on_cupy_over_rawkernel", lambda: mix(y, a, b, 1.0, 1.0), theirs_of_5, 200, on_host, bar=1.1)
    compare("python_launch_of_5_on_torch_over_rawkernel", lambda: mix(r, p, q, 1.0, 1.0), theirs_of_5, 200, on_host, bar=1.1)


def kernels():
    """The same kernel's time on the device: limited by the memory, of 4 MiB to 512 MiB, and by arithmetic."""
    by = np.float32(1.0)
    for name, text, raw_text, mib in [
        ("gain", TEXT, RAW, 4),
        ("gain", TEXT, RAW, 64),
        ("gain", TEXT, RAW, 512),
        ("horner", LONG, RAW_LONG, 64),
    ]:
        ours, raw, n, count = ob.kernel(text), cupy.RawKernel(raw_text, name), mib << 18, 50
        t = torch.linspace(0, 1, n, device="cuda")
        x = cupy.from_dlpack(t).copy()
        ours(t, 1.5)
        raw((n // 256,), (256,), (x, np.float32(1.5)))
        assert torch.allclose(t, torch.from_dlpack(x), rtol=1e-4, atol=0) and float(t.max()) > 0, "both compute the same"
        compare(
            f"python_opencl_{name}_{mib}MiB_over_cuda_c",
            captured(lambda: ours(t, 1.0), count),
            captured(lambda: raw((n // 256,), (256,), (x, by)), count),
            2,
            on_device(count),
            bar=1.05,
        )


def exchanges():
    """`torch.from_dlpack` and back, of a buffer over CuPy's array."""
    hub = ob.discover(without=["gl", "vulkan"])
    x = hub.empty(4096, np.float32, share=[hub["cuda:0"]])
    c = cupy.zeros(4096, np.float32)

    def ours():
        t = torch.from_dlpack(x)
        return hub.from_dlpack(t)

    def theirs():
        t = torch.from_dlpack(c)
        return cupy.from_dlpack(t)

    compare("python_torch_from_dlpack_over_cupys", lambda: torch.from_dlpack(x), lambda: torch.from_dlpack(c), 200, on_host)
    compare("python_torch_and_back_over_cupys", ours, theirs, 200, on_host, bar=2.0)
    t = torch.zeros(4096, device="cuda")
    compare("python_from_torch_over_cupys", lambda: hub.from_dlpack(t), lambda: cupy.from_dlpack(t), 200, on_host)


main(launches, kernels, exchanges)
