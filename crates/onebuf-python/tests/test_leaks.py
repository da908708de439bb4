"""Nothing adds up: everything is made and dropped some thousand times, and the process is compared with its start.

Objects of the package refer to their classes, so the references of a class count its objects. Each part runs in a process of its own.
"""

import os
import subprocess
import sys
import textwrap

import pytest

START = """
import ctypes, gc, os, sys, threading
import numpy as np
import onebuf as ob

hub = ob.discover(without=["gl", "vulkan"])
cl = next(device for device in hub.devices if device.api == "opencl" and "portable" in device.platform.lower())
GAIN = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"
gain = cl.kernel(GAIN)
CLASSES = [one for one in vars(ob._onebuf).values() if isinstance(one, type)]
COUNT = 16384


class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks mapped usmblks fsmblks used free keepcost".split()]


libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap


def megabytes():
    "Of the process, and of what was allocated and not freed."
    heap = libc.mallinfo2()
    resident = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(resident.split()[1]) / 1024, (heap.used + heap.mapped) / 2**20


def state():
    gc.collect()
    objects = {one.__name__: sys.getrefcount(one) for one in CLASSES}
    objects["all that Python tracks"] = len(gc.get_objects())
    return objects, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), *megabytes(), sys.getallocatedblocks()


def compare(turn, times):
    "Runs it until what is kept once is there, and then some thousand times."
    for _ in range(max(times // 20, 3)):
        turn()
    before = state()
    for _ in range(times):
        turn()
    after = state()
    grown = {name: count - before[0][name] for name, count in after[0].items() if count - before[0][name] > times // 100 + 3}
    assert not grown, grown
    assert after[1] <= before[1] + 2, f"{before[1]} and {after[1]} descriptors"
    assert after[2] <= before[2] + 4, f"{before[2]} and {after[2]} threads"
    assert after[3] <= before[3] + 64, f"{before[3]} and {after[3]} MiB"
    assert after[4] <= before[4] + 4, f"{before[4]} and {after[4]} MiB were allocated"
    # Python's own caches vary by some hundred.
    assert after[5] <= before[5] + 1500, f"{before[5]} and {after[5]} blocks of Python"
    print("the same")
"""

PARTS = {
    "buffers": (
        3000,
        """
        def turn():
            x = hub.empty((4, COUNT // 4), share=[cl])
            gain(x, 2.0)
            part = x[1:3].reshape(-1)
            part.write(1)
            x.T, x.view(np.uint32), x.plan(), x.explain(), x.fence(), x.uses()
            x.read()
            if x.shape[0] == 4:
                x.free()
        """,
    ),
    "maps and arrays": (
        3000,
        """
        x = hub.empty(COUNT, share=[cl])
        def turn():
            with x.map() as a:
                a[1:5] += 1
                kept = a[2:]
            y = hub.empty(COUNT)
            array, view, dense = np.asarray(y), memoryview(y[::2]), np.from_dlpack(x)
            try:
                gain(x, 1.0)
            except ob.Busy:
                pass
            with y.on(hub.host) as v:
                v.address
            mapping = y.map("r")
        """,
    ),
    "capsules": (
        3000,
        """
        x = hub.empty(COUNT, share=[cl])
        def turn():
            capsules = [x.__dlpack__(), x.__dlpack__(max_version=(1, 0)), x.__dlpack__(copy=True, max_version=(1, 0))]
            y = np.from_dlpack(x)
            z = hub.from_dlpack(np.ones(COUNT, np.float32), share=[cl])
            gain(z, 2.0)
            with z.map("r"):
                pass
            del capsules[1:]
        """,
    ),
    "kernels and queues": (
        2000,
        """
        x = hub.empty(COUNT, share=[cl])
        both = ob.kernel(GAIN)
        def turn():
            kernel = cl.kernel(GAIN)
            fence = kernel[COUNT](x, 1.0, fence=True)
            both(x, 1.0)
            queue = cl.queue()
            queue.wait_for(fence)
            kernel(x, 1.0, queue=queue)
            queue.fence().wait()
            ob.kernel(GAIN), kernel[8], both[8], ob.Local(16)
            with x.on(cl, queue=queue) as v:
                v.queue.int_ptr
        """,
    ),
    "errors": (
        3000,
        """
        x = hub.empty(16)
        def turn():
            for call in (lambda: gain(x, 1.0), lambda: x[40], lambda: hub.empty(4, nothing=1), lambda: x.__dlpack__(dl_device=(4, 0)), lambda: x.map("no"),
                         lambda: hub.empty(1 << 62), lambda: cl.kernel("kernel void f( {}") if turn.first else hub["none"]):
                try:
                    call()
                except (ob.Error, IndexError, TypeError):
                    pass
            turn.first = False
        turn.first = True
        """,
    ),
    "transfers and copies": (
        2000,
        """
        x, y = hub.empty(COUNT, share=[cl], memory_kind="device"), hub.empty(COUNT, share=[cl])
        def turn():
            x.write_async(1)
            array = x.read_async().wait()
            x.read_async()
            y.copy_from(x)
            y.fill(3)
        """,
    ),
    "pools": (
        3000,
        """
        pool = ob.Pool(hub, limit=1 << 24)
        def turn():
            all = [pool.empty(COUNT, share=[cl]) for _ in range(4)]
            gain(all[0], 2.0)
            other = ob.Pool(hub)
            other.empty(64)
            other.trim()
        """,
    ),
    "pipelines": (
        400,
        """
        def turn():
            seen = []
            line = ob.Pipeline(
                2, lambda: hub.empty(64, share=[cl]), source=lambda slot, number: number < 3,
                stages=[("gain", cl, lambda work: gain(work.slot, 2.0, queue=work.queue))], sink=lambda slot, number: seen.append((line, number)),
            )
            line.run()
            line.report(), line.pulse(), line.explain()
            ob.Pipeline(1, lambda: hub.empty(64), source=ob.sources.memory(np.ones((2, 64), np.float32)), sink=lambda *_: None).run()
            failing = ob.Pipeline(1, lambda: hub.empty(64), source=lambda *_: 1 / 0, sink=lambda *_: None)
            try:
                failing.run()
            except ZeroDivisionError:
                pass
        """,
    ),
    "peers": (
        150,
        """
        x = hub.empty(COUNT, memory_kind="host_pages")
        def turn():
            offer = ob.Offer(x, f"leaks-{os.getpid()}")
            seen = []
            def visit():
                peer = ob.attach(f"leaks-{os.getpid()}", hub, timeout=20)
                peer.wait(20)
                seen.append(float(peer.buffer.read()[0]))
                peer.hand_over()
                peer.leave()
            other = threading.Thread(target=visit)
            other.start()
            peer = offer.accept(20)
            x.write(7)
            peer.hand_over()
            peer.wait(20)
            other.join()
            peer.leave()
            offer.close()
            assert seen == [7]
        """,
    ),
    "hubs and what they show": (
        100,
        """
        def turn():
            own = ob.discover(only=["host"], trace=64)
            x = own.empty(64)
            x.write(1)
            with own.publish(f"leaks-{os.getpid()}"):
                own.trace.events()
            own.routes(), own.notes, own.devices[0].limits, own.ledger.entries
        """,
    ),
    "a hub with a driver": (
        60,
        """
        def turn():
            own = ob.discover(only=["opencl"])
            x = own.empty(64, share=[cl.id])
            own[cl.id].kernel(GAIN)(x, 2.0)
            x.read()
        """,
    ),
    "maths": (
        1000,
        """
        a, b, c = (hub.array(np.eye(16) + 1) for _ in range(3))
        def turn():
            ob.matmul(a, b, c)
            lu = ob.lu(hub.array(np.eye(16) * 2))
            lu.invert(c)
            ob.fft(hub.empty((4, 64), "complex64"))
        """,
    ),
}


def run(text, **named):
    command = [sys.executable, "-X", "faulthandler", "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, **named)


@pytest.mark.parametrize("part", PARTS)
def test_nothing_adds_up(part):
    times, text = PARTS[part]
    ran = run(START + textwrap.dedent(text) + f"\ncompare(turn, {times})\n")
    assert ran.stdout == "the same\n" and ran.returncode == 0, ran


def test_what_adds_up_is_seen():
    """The control."""
    for kept, every in (("x[1:2]", 40), ("x.__dlpack__()", 1), ("os.dup(1)", 40), ("bytearray(1 << 18)", 40), ("[1]", 40)):
        text = f"""
        x, all = hub.empty(COUNT), [[]] * 4
        def turn():
            turn.count += 1
            if turn.count % {every} == 0:
                all.append({kept})
        turn.count = 0
        """
        ran = run(START + textwrap.dedent(text) + "\ncompare(turn, 2000)\n")
        assert ran.returncode != 0 and "AssertionError" in ran.stderr, (kept, ran)


def test_the_interpreter_ends_with_everything_at_once():
    ran = run(START + textwrap.dedent("""
        x, y, z = (hub.empty(COUNT, share=[cl]) for _ in range(3))
        gain(x, 2.0)
        kept = [np.from_dlpack(y), memoryview(z), z.map("rw"), x.__dlpack__, gain, gain[4], cl.queue(), x.fence(), x.read_async(), x.write_async(1)]
        kept[2].__enter__()
        view = hub.empty(COUNT, share=[cl]).on(cl)
        view.__enter__()
        pool = ob.Pool(hub)
        kept += [pool.empty(64), ob.Offer(hub.empty(64, memory_kind="host_pages"), f"end-{os.getpid()}"), hub.publish(f"end-{os.getpid()}")]
        traced = ob.discover(only=["host"], trace=True)
        kept += [traced.trace, ob.lu(hub.array(np.eye(4))), ob.sources.memory(np.ones(4)), np.from_dlpack(hub.array(np.ones(9)))]
        line = ob.Pipeline(2, lambda: hub.empty(64), source=lambda slot, number: True, sink=lambda slot, number: None)
        runs = threading.Thread(target=line.run)
        runs.start()
        def stop():
            line.stop()
        threading.Timer(0.2, stop).start()
        print("ends")
    """))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ends\n", ""), ran


FORKED = """
import multiprocessing, time

def child(pipe):
    tried = []
    for name, use in USES:
        try:
            use()
            tried.append((name, "worked"))
        except ob.Error as error:
            tried.append((name, type(error).__name__, "fork" in str(error)))
        except BaseException as error:
            tried.append((name, repr(error)))
    pipe.send(tried)
    pipe.close()

x = hub.empty(64, share=[cl])
gain(x, 2.0)
x.wait()
queue, pool, host = cl.queue(), ob.Pool(hub), hub.empty(64)
USES = [
    ("launch", lambda: gain(x, 2.0)), ("read", lambda: x.read()), ("write", lambda: x.write(1)), ("empty", lambda: hub.empty(4, share=[cl])),
    ("kernel", lambda: cl.kernel("kernel void g(global int *x) { x[0] = 1; }")), ("queue", lambda: cl.queue()),
    ("finish", lambda: queue.finish()), ("discover", lambda: ob.discover()), ("fill", lambda: x.fill(1)), ("pool", lambda: pool.empty(4, share=[cl])),
    ("view", lambda: x.on(cl).__enter__()), ("map", lambda: x.map().__enter__()), ("dlpack", lambda: x.__dlpack__()), ("async", lambda: x.read_async()),
]
context = multiprocessing.get_context("fork")
mine, theirs = context.Pipe()
process = context.Process(target=child, args=(theirs,))
process.start()
assert mine.poll(60), "the child hangs"
for told in mine.recv():
    print(*told)
process.join(60)
print("exit", process.exitcode, float(x.read().sum()))
"""


def test_a_forked_worker_gets_an_error_for_every_use():
    ran = run(START + FORKED)
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0 and lines[-1] == "exit 0 0.0", ran
    wrong = [line for line in lines[:-1] if not line.endswith("True")]
    assert len(lines) == 15 and not wrong, wrong


def test_a_spawned_worker_has_a_hub_of_its_own(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent("""
        import multiprocessing
        import numpy as np
        import onebuf as ob

        def work(number):
            hub = ob.discover(only=["opencl"])
            x = hub.array(np.full(64, number, np.float32), share=["opencl:0"])
            ob.kernel("kernel void f(global float *x) { x[get_global_id(0)] *= 2; }")(x)
            return float(x.read().sum())

        if __name__ == "__main__":
            ob.discover(only=["opencl"]).empty(4).write(1)
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(pool.map(work, [1, 2, 3]))
    """))
    command = [sys.executable, str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ, cwd=tmp_path)
    assert ran.stdout == "[128.0, 256.0, 384.0]\n", ran
