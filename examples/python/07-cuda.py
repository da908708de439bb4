"""One buffer of OpenCL and CUDA in PyTorch, and an OpenCL kernel on PyTorch's own tensors."""
# Needs: torch, cupy

import cupy
import numpy as np
import torch

import onebuf as ob

hub = ob.discover()
cl, cuda = hub["opencl:0"], hub["cuda:0"]
x = hub.empty((64, 65536), np.complex64, share=[cl, cuda], copies="forbid", trust_declared=True)
x[...] = 1 + 1j

# An OpenCL kernel, then PyTorch, then the kernel again: the same bytes, ordered on PyTorch's current stream.
gain = cl.kernel("kernel void gain(global float2 *x, float by) { x[get_global_id(0)] *= by; }")
gain(x, 2.0)
with x.on(cuda) as v:
    torch.from_dlpack(v).mul_(2)
gain(x, 0.5)
print(x.read()[0, 0], hub.ledger.implied_bytes, "bytes were copied")

# Lent until the tensor is gone.
t = torch.from_dlpack(x)
try:
    gain(x, 2.0)
except ob.Busy as why:
    print(why)
del t
gain(x, 1.0)

# OpenCL C on tensors and arrays, in the stream that their library uses now.
kernel = ob.kernel("kernel void add(global float *y, global const float *x, float by) { y[get_global_id(0)] += by * x[get_global_id(0)]; }")
a, b = torch.ones(4096, device="cuda"), torch.full((4096,), 3.0, device="cuda")
kernel(a, b, 2.0)
c, d = cupy.zeros(4096, np.float32), cupy.full(4096, 5, np.float32)
kernel(c, d, 2.0)
print(float(a[0]), float(c[0]))
assert float(a.sum()) == 7 * 4096 and float(c.sum()) == 10 * 4096
assert (x.read() == 2 + 2j).all()
