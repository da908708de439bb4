"""What a launch from Python costs, over pyopencl's launch of the same kernel; and DLPack, over NumPy's.

Run it with the package installed: `python benches/python/launch.py`. `paired.py` says how it is measured.
"""

import numpy as np
from paired import compare, host_time, main

import onebuf as ob

TEXT = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"
BATCH = 1000


def launches():
    try:
        import pyopencl as cl
    except ImportError:
        print("skip: a launch over pyopencl's: pyopencl is not installed")
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
        BATCH,
        host_time(device.finish),
        theirs_timed=host_time(queue.finish),
        bar=1.0,
    )


def exchanges():
    x = ob.discover().empty(4096)
    array = np.zeros(4096, np.float32)
    compare("python_dlpack_over_numpys", lambda: np.from_dlpack(x), lambda: np.from_dlpack(array), BATCH, host_time())


main(launches, exchanges)
