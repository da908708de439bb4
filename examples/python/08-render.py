"""A tensor in a buffer that OpenGL or Vulkan draws from, without a copy, to a picture.

With a CUDA GPU the tensor is PyTorch's own, allocated by onebuf; elsewhere it is a NumPy array of memory that the host shares with OpenGL or
Vulkan. The picture is written to `render.png`, or to the path in the first argument.
"""

import struct
import sys
import zlib

import numpy as np

import onebuf as ob

WIDTH, HEIGHT = 640, 400
SHADER = """#version 450
layout(local_size_x = 16, local_size_y = 16) in;
layout(std430, binding = 0) readonly buffer Field { float height[]; };
layout(std430, binding = 1) buffer Picture { uint pixel[]; };
layout(std140, binding = 2) uniform Size { uint width; uint rows; };

float at(uint x, uint y) { return height[min(y, rows - 1u) * width + min(x, width - 1u)]; }

void main() {
    uvec2 p = gl_GlobalInvocationID.xy;
    if (p.x >= width || p.y >= rows) return;
    float here = at(p.x, p.y);
    vec3 slope = normalize(vec3(here - at(p.x + 1u, p.y), here - at(p.x, p.y + 1u), 0.04));
    float light = 0.35 + 0.65 * max(dot(slope, normalize(vec3(0.5, 0.6, 0.7))), 0.0);
    vec3 colour = mix(vec3(0.05, 0.18, 0.45), vec3(0.98, 0.85, 0.55), clamp(here * 0.5 + 0.5, 0.0, 1.0)) * light;
    uvec3 whole = uvec3(clamp(colour, 0.0, 1.0) * 255.0);
    pixel[p.y * width + p.x] = whole.r | whole.g << 8 | whole.b << 16 | 0xff000000u;
}
"""


def graphics(hub):
    """The device that draws: OpenGL's, or Vulkan's."""
    for api in ("gl", "vulkan"):
        for device in hub.devices:
            if device.api == api:
                return device
    return None


def png(pixels):
    """The bytes of a PNG file of (rows, columns, 4) bytes."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows, columns, _ = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1)
    head = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines.tobytes())) + chunk(b"IEND", b"")


def waves(library, xs, ys):
    """A field of heights, with any library's functions."""
    return library.sin(8 * (xs * xs + ys * ys)) * library.cos(3 * xs) * 0.6 + 0.3 * library.sin(5 * ys)


def of_torch(hub, device, draw, picture):
    """PyTorch computes the field; the device draws from the tensor's own memory."""
    import torch

    allocator = ob.torch_allocator([device], hub=hub, trust_declared=True)
    allocator.install()
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, HEIGHT, device="cuda"), torch.linspace(-1.6, 1.6, WIDTH, device="cuda"), indexing="ij")
    field = waves(torch, xs, ys).contiguous()
    with ob.shared(field, on=[device]) as x:
        draw(x, picture)
        picture.wait()
    return field.cpu().numpy()


def of_numpy(hub, device, draw, picture):
    """NumPy computes the field, in memory that the device draws from."""
    x = hub.empty((HEIGHT, WIDTH), np.float32, share=[device])
    ys, xs = np.meshgrid(np.linspace(-1, 1, HEIGHT), np.linspace(-1.6, 1.6, WIDTH), indexing="ij")
    with x.map() as field:
        field[:] = waves(np, xs, ys)
        kept = np.array(field)
    draw(x, picture)
    picture.wait()
    return kept


def has_cuda(hub):
    if not any(device.api == "cuda" for device in hub.devices):
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def main(path):
    hub = ob.discover()
    device = graphics(hub)
    if device is None:
        print("neither OpenGL nor Vulkan is installed:", hub.unavailable)
        return
    kernel = device.kernel(SHADER, parameters=["const float*", "uint*", "uint", "uint"])
    picture = hub.empty((HEIGHT, WIDTH), np.uint32, share=[device])

    def draw(x, picture):
        kernel[(WIDTH + 15) // 16 * 16, (HEIGHT + 15) // 16 * 16](x, picture, WIDTH, HEIGHT, local=(16, 16))

    field = (of_torch if has_cuda(hub) else of_numpy)(hub, device, draw, picture)
    pixels = picture.read().view(np.uint8).reshape(HEIGHT, WIDTH, 4)
    with open(path, "wb") as file:
        file.write(png(pixels))
    # Hills are brighter than valleys: what was drawn is what was computed.
    red = pixels[..., 0].astype(float)
    assert red[field > 0.5].mean() > 2 * red[field < -0.5].mean() > 0
    print(f"{path}: {WIDTH} x {HEIGHT}, drawn by {device.id} ({device.name}); copied unasked: {hub.ledger.implied_bytes} bytes")


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "render.png")
