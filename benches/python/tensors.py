"""What launches and hand-overs on a CUDA device cost from Python, over CuPy's.

Batches alternate (ABBA) in one process, as in `launch.py`; the numbers are medians, the ratio has its quartiles. A launch is
timed without the wait for its work; a kernel's own time is that of a batch between two events. Run it with the package, PyTorch and
CuPy installed: `python benches/python/tensors.py`.
"""

import json
import statistics
import time

import cupy
import numpy as np
import torch

import onebuf as ob

TEXT = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"
RAW = 'extern "C" __global__ void gain(float *x, float by) { x[(size_t)blockIdx.x * blockDim.x + threadIdx.x] *= by; }'
ROUNDS = 24


def host_time(run, batch):
    """Microseconds of a call, of which `batch` fit into the driver's queue."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(batch):
        run()
    took = (time.perf_counter() - began) / batch * 1e6
    torch.cuda.synchronize()
    return took


def device_time(run, batch):
    """Microseconds that a call's work takes on the device, back to back."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(batch):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / batch * 1e3


def compare(name, ours, theirs, batch, timed=host_time):
    times = {"value": [], "baseline": []}
    sides = {"value": ours, "baseline": theirs}
    for run in sides.values():
        timed(run, batch)
    for _ in range(ROUNDS):
        for side in ("value", "baseline", "baseline", "value"):
            times[side].append(timed(sides[side], batch))
    ratios = sorted(a / b for a, b in zip(times["value"], times["baseline"]))
    quarter = len(ratios) // 4
    print(
        json.dumps(
            {
                "name": name,
                "value": round(statistics.median(times["value"]), 3),
                "unit": "us",
                "baseline": round(statistics.median(times["baseline"]), 3),
                "ratio": round(statistics.median(ratios), 3),
                "ratio_low": round(ratios[quarter], 3),
                "ratio_high": round(ratios[-quarter - 1], 3),
                "n": len(ratios),
            }
        ),
        flush=True,
    )


def launches():
    """A launch of a small kernel: OpenCL C grafted, over CUDA C by CuPy's `RawKernel`."""
    gain, raw = ob.kernel(TEXT), cupy.RawKernel(RAW, "gain")
    n, by = 4096, np.float32(1.0)
    x, t = cupy.ones(n, np.float32), torch.ones(n, device="cuda")
    theirs = lambda: raw((n // 256,), (256,), (x, by))  # noqa: E731
    compare("python_launch_on_cupy_over_rawkernel", lambda: gain(x, 1.0), theirs, 200)
    launch = gain[n]
    compare("python_launch_on_cupy_grid_over_rawkernel", lambda: launch(x, 1.0), theirs, 200)
    compare("python_launch_on_torch_over_rawkernel", lambda: gain(t, 1.0), theirs, 200)
    compare("python_launch_on_torch_grid_over_rawkernel", lambda: launch(t, 1.0), theirs, 200)
    many = "kernel void mix(global float *y, global const float *a, global const float *b, float p, float q) { size_t i = get_global_id(0); y[i] = a[i] * p + b[i] * q; }"
    raw_many = 'extern "C" __global__ void mix(float *y, const float *a, const float *b, float p, float q) { size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; y[i] = a[i] * p + b[i] * q; }'
    mix, raw_mix = ob.kernel(many), cupy.RawKernel(raw_many, "mix")
    a, b, y = (cupy.ones(n, np.float32) for _ in range(3))
    theirs = lambda: raw_mix((n // 256,), (256,), (y, a, b, by, by))  # noqa: E731
    compare("python_launch_of_5_on_cupy_over_rawkernel", lambda: mix(y, a, b, 1.0, 1.0), theirs, 200)
    p, q, r = (torch.ones(n, device="cuda") for _ in range(3))
    compare("python_launch_of_5_on_torch_over_rawkernel", lambda: mix(r, p, q, 1.0, 1.0), theirs, 200)


def kernels():
    """The same kernel's time on the device, of 4 and 256 MiB."""
    gain, raw, by = ob.kernel(TEXT), cupy.RawKernel(RAW, "gain"), np.float32(1.0)
    for n in (1 << 20, 1 << 26):
        t = torch.ones(n, device="cuda")
        x = cupy.ones(n, np.float32)
        compare(
            f"python_opencl_kernel_{n * 4 >> 20}MiB_over_cuda_c",
            lambda: gain(t, 1.0),
            lambda: raw((n // 256,), (256,), (x, by)),
            100,
            device_time,
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

    compare("python_torch_from_dlpack_over_cupys", lambda: torch.from_dlpack(x), lambda: torch.from_dlpack(c), 200)
    compare("python_torch_and_back_over_cupys", ours, theirs, 200)
    t = torch.zeros(4096, device="cuda")
    compare("python_from_torch_over_cupys", lambda: hub.from_dlpack(t), lambda: cupy.from_dlpack(t), 200)


launches()
kernels()
exchanges()
