"""The end of the interpreter, with buffers that are lent: each in a process of its own."""

from on_gpu import WHY  # noqa: F401, I001: first, because it skips where there is no GPU

import subprocess
import sys

import pytest

START = """
import onebuf as ob, numpy as np, torch, cupy, threading, sys, time
hub = ob.discover(without=["gl", "vulkan"])
cuda = hub["cuda:0"]
x = hub.empty(1 << 20, np.float32, share=[cuda])
a = torch.randn(4096, 4096, device="cuda")
"""


@pytest.mark.parametrize(
    "text",
    [
        "t = torch.from_dlpack(x); torch.mm(a, a); t.add_(1)",
        "t = torch.from_dlpack(x); del hub, cuda, x",
        "c = cupy.from_dlpack(x); c += 1",
        "v = x.on(cuda).__enter__(); t = torch.from_dlpack(v)",
        "t = torch.from_dlpack(x); keep = threading.Thread(target=lambda: time.sleep(60), daemon=True); keep.start(); keep.t = t",
        "y = hub.from_dlpack(a); k = ob.kernel('kernel void f(global float *x) { x[get_global_id(0)] *= 1; }'); k(a); k(y)",
        "k = ob.kernel('kernel void f(global float *x) { x[get_global_id(0)] *= 1; }')\nwith cupy.cuda.Stream(): z = cupy.ones(64, np.float32); k(z)",
        "torch.from_dlpack(x); sys.exit(0)",
    ],
)
def test_the_interpreter_may_end(text):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", START + text + "\nprint('end', flush=True)" * ("sys.exit" not in text)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
