"""PyTorch works in place on a buffer between two OpenCL kernels, and a kernel works in place on a tensor."""
# Needs: torch

import torch

import onebuf as ob

TEXT = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"

hub = ob.discover()
cl = hub["opencl:0"]
gain = cl.kernel(TEXT)

x = hub.empty((16, 256), share=[cl])
x.write(1)
gain(x, 2.0)
with x.on("host") as view:
    torch.from_dlpack(view).add_(5)  # the same bytes, after the kernel
gain(x, 10.0)
print(x.read()[0, :4])
assert (x.read() == 70).all() and hub.ledger.implied_bytes == 0

tensor = torch.from_dlpack(x)  # lent until the tensor is gone
try:
    gain(x, 2.0)
except ob.Busy as why:
    print(why)
del tensor
gain(x, 2.0)

tensor = torch.ones(1000)
ob.kernel(TEXT)(tensor, 3.0)  # an OpenCL kernel on a tensor
assert bool((tensor == 3).all())
