"""A training step of a small network with onebuf's allocator over one with PyTorch's own: `python bench_allocator.py [STEPS [PROCESSES]]`.

Each run is a process of its own, because an allocator is PyTorch's for the whole process; the kinds take turns, with one or two processes of each.
"""

import json
import statistics
import subprocess
import sys
import time


def network(torch):
    """A step of a small convolutional network with Adam, whose batch sizes change now and then."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 12 * 12, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pictures = torch.randn(256, 1, 28, 28, device="cuda")
    labels = torch.randint(0, 10, (256,), device="cuda")

    def step(number):
        size = 128 if number % 10 else 256
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(pictures[:size]), labels[:size])
        loss.backward()
        optimizer.step()
        return loss

    return step


def child(kind, steps):
    import torch

    if kind != "own":
        import onebuf as ob

        allocator = ob.torch_allocator(trust_declared=True)
        if kind == "onebuf":
            allocator.install()
    if kind == "pool":
        with torch.cuda.use_mem_pool(allocator.pool()):
            print(json.dumps(measure(torch, steps)), flush=True)
    else:
        print(json.dumps(measure(torch, steps)), flush=True)


def measure(torch, steps):
    step = network(torch)
    for number in range(300):
        step(number)
    torch.cuda.synchronize()
    times = []
    for batch in range(20):
        began = time.perf_counter()
        for number in range(steps // 20):
            step(number)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / (steps // 20))
    began = time.perf_counter()
    for _ in range(20000):
        torch.empty(1000, device="cuda")
    empty = (time.perf_counter() - began) / 20000
    return {"step": statistics.median(times), "empty": empty}


def main(steps, processes):
    kinds = ["own", "onebuf", "pool"]
    results = {kind: [] for kind in kinds}
    for kind in [*kinds, *reversed(kinds)][: len(kinds) * processes]:
        ran = subprocess.run([sys.executable, __file__, "--child", kind, str(steps)], capture_output=True, text=True, timeout=150)
        if ran.returncode:
            print(kind, "ended with", ran.returncode, ran.stderr[-1500:], flush=True)
        if ran.stdout.startswith("{"):
            results[kind].append(json.loads(ran.stdout.splitlines()[0]))
    own = {name: statistics.median(one[name] for one in results["own"]) for name in ("step", "empty")}
    for kind, all in results.items():
        if not all:
            continue
        step, empty = (statistics.median(one[name] for one in all) for name in ("step", "empty"))
        print(
            f"{kind:7} step {step * 1e6:8.1f} us, {step / own['step']:.3f} of PyTorch's own "
            f"(runs {[round(one['step'] * 1e6, 1) for one in all]}); "
            f"torch.empty {empty * 1e6:.2f} us, {empty / own['empty']:.2f}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 2000, int(sys.argv[2]) if sys.argv[2:] else 2)
