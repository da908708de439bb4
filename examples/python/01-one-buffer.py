"""One buffer for an OpenCL kernel and NumPy, without a copy."""

import numpy as np

import onebuf as ob

hub = ob.discover()
print(hub)

cl = hub["opencl:0"]
x = hub.empty((64, 1024), np.complex64, share=[cl], copies="forbid")
with x.map() as a:  # in place, as a NumPy array that ends with the block
    a[:] = np.arange(1024)

gain = cl.kernel("kernel void gain(global float2 *x, float by) { x[get_global_id(0)] *= by; }")
gain(x, 2.0)  # as many work-items as x has elements

with x.map("r") as a:  # waits for the kernel
    assert (a == 2 * np.arange(1024)).all()
print(x.explain())
print(hub.ledger)
assert hub.ledger.implied_bytes == 0
