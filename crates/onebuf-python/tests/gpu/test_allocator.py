"""The allocator for PyTorch, on a CUDA GPU: with pytest, or as a program that needs none, `python test_allocator.py`.

An allocator is PyTorch's for the whole process, so each test is a process of its own.
"""

import subprocess
import sys
import time

N = (1 << 24) + 1029  # 64 MiB and a bit
STEP = """kernel void onebuf_gpu_step(global uint *x, uint mul, uint add, uint n)
{ uint i = get_global_id(0); if (i < n) x[i] = x[i] * mul + add; }"""
SHADER = """#version 450
layout(local_size_x = 256) in;
layout(std430, binding = 0) buffer A { uint x[]; };
layout(std140, binding = 1) uniform V { uint mul; uint add; uint n; };
void main() {
    uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < n; i += stride) x[i] = x[i] * mul + add;
}"""


def start(pool=False, **named):
    """The package, PyTorch, the hub and an installed allocator."""
    import torch

    import onebuf as ob

    hub = ob.discover()
    allocator = ob.torch_allocator(hub=hub, trust_declared=True, **named)
    if not pool:
        allocator.install()
    return ob, torch, hub, allocator


def partners(allocator):
    found = allocator.share[0]
    print("shared with", [f"{one.id} {one.name}" for one in found])
    return found


def stepper(device):
    """A kernel of that device, as a function of a buffer and two numbers."""
    if device.api == "opencl":
        kernel = device.kernel(STEP)
        return lambda x, mul, add: kernel[(x.size + 255) // 256 * 256](x, mul, add, x.size, local=256)
    kernel = device.kernel(SHADER, parameters=["uint*", "uint", "uint", "uint"])
    return lambda x, mul, add: kernel[256 * 1024](x, mul, add, x.size, local=256)


def both_ways(ob, torch, hub, t, device):
    """PyTorch writes, the device computes, PyTorch looks at every element; and the control."""
    step = stepper(device)
    want = torch.arange(t.numel(), device="cuda", dtype=torch.int64)
    t.copy_(torch.arange(t.numel(), device="cuda", dtype=torch.int32))
    for turn in range(3):
        with ob.shared(t, on=[device]) as x:
            step(x.view("uint32"), 3, turn + 1)
        want = want * 3 + turn + 1
        t += 5
        want = (want + 5) & 0xFFFFFFFF
        got = t.to(torch.int64) & 0xFFFFFFFF
        assert torch.equal(got, want), (device.id, turn, int((got != want).sum()))
    with ob.shared(t, on=[device]):
        pass  # the control: without the kernel the elements are other ones
    assert not torch.equal(t.to(torch.int64) & 0xFFFFFFFF, (want * 3 + 9) & 0xFFFFFFFF)
    assert hub.ledger.implied_bytes == 0, str(hub.ledger)


def child_in_place():
    ob, torch, hub, allocator = start()
    print(torch.__version__, torch.cuda.get_device_name(), allocator)
    t = torch.empty(N, dtype=torch.int32, device="cuda")
    small = torch.empty(1031, dtype=torch.int32, device="cuda")
    for device in partners(allocator):
        for one in (t, small):
            both_ways(ob, torch, hub, one, device)
        print(device.id, "every element, both ways")
    assert len(partners(allocator)) > 0
    print(allocator.stats)


def child_pool():
    ob, torch, hub, allocator = start(pool=True)
    pool = allocator.pool()
    plain = torch.ones(1024, dtype=torch.int32, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        t = torch.empty(N, dtype=torch.int32, device="cuda")
        t2 = torch.empty(5000, dtype=torch.int32, device="cuda")
    for device in partners(allocator):
        for one in (t, t2):
            both_ways(ob, torch, hub, one, device)
    try:
        ob.shared(plain).__enter__()
        raise AssertionError("PyTorch's own memory was accepted")
    except ob.InvalidArgument as error:
        print("control:", error)
    print(allocator.stats, torch.cuda.memory_allocated())


def child_busy_stream():
    """The stream is busy when the tensor is shared, and other streams work beside it."""
    ob, torch, hub, allocator = start(share=["opencl:0"])
    (device,) = allocator.share[0]
    step = stepper(device)
    big = torch.randn(4096, 4096, device="cuda")
    t = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    side = torch.cuda.Stream()
    want, wrong = 0, 0
    began = time.perf_counter()
    for turn in range(300):
        stream = side if turn % 2 else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                big @ big
            t.add_(1)
            with ob.shared(t) as x:
                step(x.view("uint32"), 3, 1)
            wrong = wrong + (t != (((want + 1) * 3 + 1 + 2**31) % 2**32 - 2**31)).sum()
        torch.cuda.current_stream().wait_stream(stream)
        want = ((want + 1) * 3 + 1 + 2**31) % 2**32 - 2**31
    assert int(wrong) == 0, int(wrong)
    print(f"300 hand-overs on busy streams, {(time.perf_counter() - began) / 300 * 1e6:.0f} us each")


def child_out_of_memory():
    ob, torch, hub, allocator = start()
    kept = torch.ones(1000, device="cuda")
    for turn in range(3):
        try:
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
            raise AssertionError("32 TiB were allocated")
        except torch.cuda.OutOfMemoryError as error:
            print(type(error).__name__, str(error).splitlines()[0][:160])
    idle = torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
    del idle
    free = torch.cuda.mem_get_info()[0]
    again = torch.empty(free + (10 << 30), dtype=torch.uint8, device="cuda")
    again[-1] = 1
    print("an idle segment was freed for", again.numel() >> 30, "GiB; free before", free >> 30, allocator.stats)
    try:
        ob.shared(again, on=["opencl:0"]).__enter__()
        print("it is shared with OpenCL as well")
    except ob.NotShared as error:
        print("too large for OpenCL:", error)
    del again
    allocator.empty_cache()
    assert float(kept.sum()) == 1000 and allocator.stats["reserved_bytes"] <= 4 << 20, allocator.stats


def child_record_stream():
    ob, torch, hub, allocator = start()
    side = torch.cuda.Stream()
    big = torch.randn(8192, 8192, device="cuda")
    bad = 0
    for turn in range(50):
        t = torch.full((1 << 20,), turn, dtype=torch.int32, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            big @ big
            copied = t.clone()
        t.record_stream(side)
        del t
        reused = torch.full((1 << 20,), -1, dtype=torch.int32, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        bad += int((copied != turn).sum())
        del reused, copied
    assert bad == 0, bad
    print("record_stream: 50 turns", allocator.stats)


def child_threads_and_exceptions():
    import threading

    ob, torch, hub, allocator = start()
    failed = []

    def work(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for turn in range(200):
                    t = torch.full((1000 + seed * 37 + turn,), seed, device="cuda")
                    u = t * 2
                    try:
                        torch.ones(3, device="cuda") @ torch.ones(4, device="cuda")
                    except RuntimeError:
                        pass
                    assert bool((u == 2 * seed).all())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    assert not failed, failed
    print("8 threads", allocator.stats)


def child_exit():
    """Tensors, a running block, work on a stream and on other devices, a hub and a kernel at the end of the process."""
    ob, torch, hub, allocator = start()
    globals()["kept"] = [torch.ones(100_000, device="cuda") for _ in range(10)]
    block = ob.shared(globals()["kept"][0])
    globals()["view"] = block.__enter__()
    for device in allocator.share[0]:
        step = stepper(device)
        t = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
        with ob.shared(t) as x:
            step(x.view("uint32"), 3, 1)
        globals()[device.id] = t, step, hub
    big = torch.randn(8192, 8192, device="cuda")
    globals()["product"] = [big @ big for _ in range(20)]
    print("ends", flush=True)


def child_flat():
    """Memory over 10,000 steps of training."""
    from bench_allocator import network

    ob, torch, hub, allocator = start()
    step = network(torch)
    seen = []
    for number in range(10_000):
        step(number)
        if number in (500, 5000, 9999):
            torch.cuda.synchronize()
            seen.append((allocator.stats["reserved_bytes"], allocator.stats["blocks"], torch.cuda.mem_get_info()[0]))
    print("reserved, blocks, free on the device after 500, 5000 and 10000 steps:", seen)
    assert seen[0] == seen[1] == seen[2], seen


CHILDREN = [name for name in list(globals()) if name.startswith("child_")]


def run(name):
    began = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", __file__, "--child", name], capture_output=True, text=True, timeout=150
    )
    print(f"--- {name}: {ran.returncode}, {time.perf_counter() - began:.1f} s\n{ran.stdout}{ran.stderr[-2500:]}", flush=True)
    return ran.returncode


try:
    import pytest

    @pytest.mark.parametrize("name", CHILDREN)
    def test_allocator(name):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        assert run(name) == 0
except ImportError:
    pass

if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        globals()[sys.argv[2]]()
    else:
        chosen = [name for name in CHILDREN if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
        results = {name: run(name) for name in chosen}
        print(results)
        sys.exit(any(results.values()))
