"""An OpenCL kernel as an operator of PyTorch: with a gradient, and known to `torch.compile`."""
# Needs: torch

import sys

import torch

import onebuf as ob

if not hasattr(torch.library, "custom_op"):
    print(f"skip: `torch.library.custom_op`: PyTorch {torch.__version__} has none, 2.4 and newer have")
    sys.exit()

TEXT = """
kernel void softsign(global const float *x, global float *y) {
    size_t i = get_global_id(0);
    y[i] = x[i] / (1 + fabs(x[i]));
}
kernel void softsign_gradient(global const float *x, global const float *gy, global float *gx) {
    size_t i = get_global_id(0);
    float below = 1 + fabs(x[i]);
    gx[i] = gy[i] / (below * below);
}
"""
forward, backward = ob.kernel(TEXT, "softsign", each=True), ob.kernel(TEXT, "softsign_gradient", each=True)


@torch.library.custom_op("onebuf_example::softsign", mutates_args=())
def softsign(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().contiguous()
    y = torch.empty_like(x)
    forward(x, y)
    return y


@torch.library.custom_op("onebuf_example::softsign_gradient", mutates_args=())
def softsign_gradient(x: torch.Tensor, gy: torch.Tensor) -> torch.Tensor:
    x, gy = x.detach().contiguous(), gy.detach().contiguous()
    gx = torch.empty_like(x)
    backward(x, gy, gx)
    return gx


# What `torch.compile` and meta tensors need to know: the shapes.
softsign.register_fake(lambda x: torch.empty_like(x, memory_format=torch.contiguous_format))
softsign_gradient.register_fake(lambda x, gy: torch.empty_like(x, memory_format=torch.contiguous_format))


# PyTorch passes these arguments by name.
def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def gradient(ctx, gy):
    (x,) = ctx.saved_tensors
    return softsign_gradient(x, gy)


softsign.register_autograd(gradient, setup_context=keep)

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.linspace(-3, 3, 4096, device=device, requires_grad=True)
y = softsign(x)
y.square().sum().backward()
mine = x.grad.clone()

x.grad = None
expected = torch.nn.functional.softsign(x)
expected.square().sum().backward()
assert torch.allclose(y, expected, atol=1e-6) and torch.allclose(mine, x.grad, atol=1e-6)
assert not torch.allclose(mine, 2 * x.grad, atol=1e-6), "the control"
torch.library.opcheck(softsign, (x,))
print(f"softsign on {device}: values and gradients of {x.numel()} elements are PyTorch's own")
