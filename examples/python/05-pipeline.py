"""A stream of frames: a computed signal, a kernel, a function of NumPy."""

import numpy as np

import onebuf as ob

hub = ob.discover()
cl = hub["opencl:0"]
power = cl.kernel("""
    kernel void power(global const float2 *x, global float *y) {
        float2 z = x[get_global_id(0)];
        y[get_global_id(0)] = dot(z, z);
    }
""")

loudest = []


def slot():
    return {"in": hub.empty((8, 512), np.complex64, share=[cl]), "out": hub.empty((8, 512), share=[cl])}


def sink(slot, number):
    with slot["out"].map("r") as a:
        loudest.append(float(a.max()))


line = ob.Pipeline(
    3,
    slot,
    source=ob.sources.synthetic(8, 512, frames=20),
    feed=lambda slot: slot["in"],
    stages=[("power", cl, lambda work: power(work.slot["in"], work.slot["out"], queue=work.queue))],
    sink=sink,
)
report = line.run()
print(line.explain())
print(f"{report['frames']} frames, {report['frames_per_second']:.0f}/s, the loudest sample {max(loudest):.2f}")
assert report["frames"] == len(loudest) == 20
