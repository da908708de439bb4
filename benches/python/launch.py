"""What a launch from Python costs, over pyopencl's launch of the same kernel; and DLPack, over NumPy's.

Batches alternate (ABBA) in one process; the numbers are medians, the ratio has its quartiles. Run it with the package installed:
`python benches/python/launch.py`. The queues are emptied between batches, outside of the time.
"""

import json
import statistics
import time

import numpy as np

import onebuf as ob

TEXT = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"
BATCH, ROUNDS = 1000, 24


def timed(run, after):
    began = time.perf_counter()
    for _ in range(BATCH):
        run()
    took = (time.perf_counter() - began) / BATCH * 1e6
    after()
    return took


def compare(name, ours, theirs, ours_after=lambda: None, theirs_after=lambda: None):
    sides = {"value": (ours, ours_after), "baseline": (theirs, theirs_after)}
    times = {side: [] for side in sides}
    for run, after in sides.values():
        timed(run, after)
    for _ in range(ROUNDS):
        for side in ("value", "baseline", "baseline", "value"):
            times[side].append(timed(*sides[side]))
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
        )
    )


def launches():
    try:
        import pyopencl as cl
    except ImportError:
        print("skip: pyopencl: not installed")
        return
    hub = ob.discover()
    device = hub["opencl:0"]
    x, gain = hub.empty(64, share=[device]), device.kernel(TEXT)
    platform = next(one for one in cl.get_platforms() if one.name == device.platform)
    context = cl.Context(platform.get_devices()[:1])
    queue = cl.CommandQueue(context)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, x.nbytes)
    kernel, by = cl.Program(context, TEXT).build().gain, np.float32(1.0)
    compare(
        "python_launch_over_pyopencl",
        lambda: gain(x, 1.0),
        lambda: kernel(queue, (64,), None, buffer, by),
        device.finish,
        queue.finish,
    )


def exchanges():
    x = ob.discover().empty(4096)
    array = np.zeros(4096, np.float32)
    compare("python_dlpack_over_numpys", lambda: np.from_dlpack(x), lambda: np.from_dlpack(array))


launches()
exchanges()
