"""An OpenCL kernel with a gradient, as a function of PyTorch."""
# Needs: torch

import torch

import onebuf as ob

TEXT = """
kernel void square(global const float *x, global float *y) { y[get_global_id(0)] = x[get_global_id(0)] * x[get_global_id(0)]; }
kernel void gradient(global const float *x, global const float *gy, global float *gx) {
    gx[get_global_id(0)] = 2 * x[get_global_id(0)] * gy[get_global_id(0)];
}
"""
square, gradient = ob.kernel(TEXT, "square"), ob.kernel(TEXT, "gradient")


class Square(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        y = torch.empty_like(x)
        square(x.detach().contiguous(), y)
        return y

    @staticmethod
    def backward(context, gy):
        (x,) = context.saved_tensors
        gx = torch.empty_like(x)
        gradient(x.detach().contiguous(), gy.contiguous(), gx)
        return gx


x = torch.linspace(-1, 1, 5, requires_grad=True)
Square.apply(x).sum().backward()
print(x.grad)
assert torch.allclose(x.grad, 2 * x.detach())
