"""What needs a process of its own: signals, the interpreter's end, forks, imports."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

START = """
import onebuf as ob, numpy as np, os, signal, sys, threading, time
hub = ob.discover(without=["gl", "vulkan"])
cl = next(device for device in hub.devices if device.api == "opencl" and "portable" in device.platform.lower())
"""

# Work that takes long, and ends by its own count. The fastest of some trials counts: others shared the processor.
SLOW = """
text = "kernel void slow(global uint *x, uint n) { uint v = x[0]; for (uint i = 0; i < n; ++i) v = v * 1664525u + 1013904223u + (v >> 7); x[0] = v; }"
slow = cl.kernel(text)
x = hub.empty(1, np.uint32, share=[cl])
slow[1](x, 1)
x.wait()
def trial():
    began = time.perf_counter(); slow[1](x, 1 << 23); x.wait()
    return time.perf_counter() - began
count = min(int((1 << 23) * SECONDS / min(trial() for _ in range(5))), (1 << 32) - 1)
"""


def run(text, **named):
    named = {"capture_output": True, "text": True, "timeout": 120, **named}
    return subprocess.run([sys.executable, "-X", "faulthandler", "-c", text], **named)


WAIT = """
print("waits", flush=True)
began = time.perf_counter()
try:
    {wait}
except KeyboardInterrupt:
    took = time.perf_counter() - began
{then}
    print("interrupted", took, flush=True)
    os._exit(0)
"""


def interrupted(wait, made="", then="", seconds=6):
    """Sends Ctrl-C to a process that waits, and returns after how many seconds the wait ended. `made` is run before the wait, and `then` after it."""
    text = START + SLOW.replace("SECONDS", str(seconds)) + made + WAIT.format(wait=wait, then=textwrap.indent(then, "    "))
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waits\n", process.stderr.read()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert "interrupted" in out, (out, err)
    return float(out.split()[-1])


WAITS = {
    "x.wait()": "",
    "x.read()": "",
    "x.write(1)": "",
    "x.fill(1)": "",
    "x.copy_from(y)": "y = hub.empty(1, np.uint32)",
    "y.copy_from(x)": "y = hub.empty(1, np.uint32)",
    "memoryview(x)": "",
    "x.map().__enter__()": "",
    "x.on(hub.host).__enter__()": "",
    "np.from_dlpack(x)": "",
    "x.__dlpack__(copy=True)": "",
    "cl.finish()": "",
    "fence.wait()": "",
    "transfer.wait()": "transfer = x.read_async()",
    "x.discard(); x.read()": "",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait(wait):
    took = interrupted(wait, "fence = slow[1](x, count, fence=True)\n" + WAITS[wait])
    assert took < 3, "the work takes six seconds"


VISITED = """
offer = ob.Offer(y, f"end-{os.getpid()}")
visitor = threading.Thread(target=lambda: setattr(ob, "visitor", ob.attach(offer.path, hub)), daemon=True)
visitor.start()
peer = offer.accept(20)
visitor.join()
"""
THERE = """
there = next(device for device in hub.devices if "rusticl" in device.platform.lower())
look = there.kernel("kernel void look(global uint *x) { x[0] += 1; }")
y = hub.empty(1, np.uint32, share=[cl, there], memory_kind="device")
look(y); slow[1](y, 1); y.wait()
"""
NUMBERS = "y, w = (hub.empty((4, 4), np.complex64, share=[cl]) for _ in range(2))\n"
# What waits for a kernel on `y`, and how that is made.
HAND_OVERS = {
    "look(y)": THERE,
    "y.on(there).__enter__()": THERE,
    "y.hand_to(there.queue())": THERE,
    "ob.fft(y)": NUMBERS,
    "ob.matmul(y, y, w)": NUMBERS,
    "ob.lu(y)": NUMBERS,
    "peer.hand_over()": "y = hub.empty(1, np.uint32, share=[cl], memory_kind='host_pages')" + VISITED,
}


@pytest.mark.parametrize("use", HAND_OVERS)
def test_ctrl_c_ends_a_hand_over(use):
    took = interrupted(use, HAND_OVERS[use] + "slow[1](y.view(np.uint32), count)")
    assert took < 3, "the work takes six seconds"


PAGES = 'y = hub.empty(64, memory_kind="host_pages")'
OFFER = PAGES + '; offer = ob.Offer(y, f"end-{os.getpid()}")'
# A listener whose queue is full does not answer.
SILENT = """
import socket
door = socket.create_server(("127.0.0.1", 0), backlog=0)
first = socket.create_connection(door.getsockname())
silent = "127.0.0.1:%d" % door.getsockname()[1]
"""
# What waits for another process or thread, and how that is made.
OTHERS = {
    "offer.accept(30)": OFFER,
    "peer.wait(30)": PAGES + VISITED + "peer.hand_over()",
    # Nobody accepts.
    "ob.attach(offer.path, hub, timeout=30)": OFFER,
    "pool.empty(1 << 20, np.uint8, timeout=30)": "pool = ob.Pool(hub, limit=1 << 20); all_of_it = pool.empty(1 << 20, np.uint8)",
    "ob.sources.tcp(silent, timeout=30)": SILENT,
}


@pytest.mark.parametrize("wait", OTHERS)
def test_ctrl_c_ends_a_wait_for_another_process(wait):
    assert interrupted(wait, OTHERS[wait], seconds=0.01) < 3


def test_ctrl_c_ends_a_launch_on_an_array_of_the_host():
    made = "array = np.ones(1, np.uint32); kernel = ob.kernel(text); kernel[1](array, 1)"
    assert interrupted("kernel[1](array, count)", made) < 3, "the work takes six seconds"


def test_ctrl_c_ends_the_doctor_and_keeps_its_verdicts(tmp_path):
    """Its experiments run in a process group of their own, which a terminal's Ctrl-C does not reach: the pair in work is completed."""
    doctor = "told = ob.doctor([hub.host, cl], hub=hub, cache=folder, reach=1 << 20)"
    then = f"""{doctor}
states = {{row["state"] for row in told["routes"]}}
assert "proven" in states and "refuted" not in states, states
"""
    interrupted(doctor, f"folder = {str(tmp_path)!r}", then, seconds=0.01)


def test_ctrl_c_stops_a_pipeline():
    made = "line = ob.Pipeline(2, lambda: hub.empty(4), source=lambda *_: time.sleep(0.01), sink=lambda *_: None)"
    then = 'assert line.pulse()["state"] == "finished" and line.report()["frames"] > 0'
    assert interrupted("line.run()", made, then, seconds=0.01) < 3


# Sources that wait for a sender: one that never comes, and one that is silent in the middle of a frame.
SOURCES = {
    "udp": "source = ob.sources.udp('127.0.0.1:0', timeout=30)",
    "tcp listens": "source = ob.sources.tcp('127.0.0.1:0', listen=True, timeout=30)",
    "tcp is silent": """
import socket
door = socket.create_server(("127.0.0.1", 0))
source = ob.sources.tcp("127.0.0.1:%d" % door.getsockname()[1], timeout=30)
sender, _ = door.accept()
sender.sendall(bytes(7))
""",
}


@pytest.mark.parametrize("source", SOURCES)
def test_ctrl_c_stops_a_pipeline_that_waits_for_a_sender(source):
    made = SOURCES[source] + "\nline = ob.Pipeline(2, lambda: hub.empty(4), source=source, sink=lambda *_: None)"
    then = 'assert line.pulse()["state"] == "finished" and line.report()["frames"] == 0'
    assert interrupted("line.run()", made, then, seconds=0.01) < 3, "the sources wait for 30 seconds"


def test_waits_release_the_interpreter():
    ran = run(START + SLOW.replace("SECONDS", "1.0") + textwrap.dedent("""
        counted = 0
        def count_up():
            global counted
            while not done:
                counted += 1
                time.sleep(0.001)
        done = False
        thread = threading.Thread(target=count_up)
        thread.start()
        slow[1](x, count)
        before = counted
        x.read()
        print(counted - before)
        done = True
        thread.join()
    """))
    assert ran.returncode == 0 and int(ran.stdout) > 100, ran


@pytest.mark.parametrize(
    "end",
    [
        "view = memoryview(x)",
        "array = np.asarray(x)",
        "array = np.from_dlpack(x)",
        "capsule = x.__dlpack__()",
        "mapped = x.map(); array = mapped.__enter__()",
        "guard = x.on(cl); guard.__enter__()",
        "kernel(x, 1.0)",
        "y = hub.from_dlpack(np.ones(4096, np.float32), share=[cl]); kernel(y, 1.0)",
        "import atexit; atexit.register(lambda: kernel(x, 1.0)); array = np.asarray(x[:0 or 16]); del array",
    ],
)
def test_the_interpreter_ends_with_lent_buffers(end):
    ran = run(START + textwrap.dedent(f"""
        kernel = cl.kernel("kernel void gain(global float *x, float by) {{ x[get_global_id(0)] *= by; }}")
        x = hub.empty(4096, share=[cl])
        {end}
        print("ends")
    """))
    assert (ran.returncode, ran.stdout) == (0, "ends\n"), ran


@pytest.mark.parametrize("use", ["x.read()", "x.write(1.0)", "add(x)", "hub.from_dlpack(np.ones(64, np.float32))", "fails()"])
def test_the_interpreter_ends_while_daemon_threads_use_the_library(use):
    """Threads are ended wherever they wait for the interpreter's lock: it takes several processes to meet all places."""
    text = textwrap.dedent(f"""
        import onebuf as ob, numpy as np, threading, time
        hub = ob.discover(only=["host"])
        x = hub.empty(1024)

        def add(x):
            try:
                with x.map() as a:
                    a[0] += 1
            except ob.Busy:
                pass

        def fails():
            try:
                x.map("no mode")
            except ob.InvalidArgument:
                pass

        def work():
            while True:
                {use}

        [threading.Thread(target=work, daemon=True).start() for _ in range(3)]
        time.sleep(0.05)
        print("ends", flush=True)
    """)
    ended = [run(text) for _ in range(12)]
    assert [(one.returncode, one.stdout) for one in ended] == [(0, "ends\n")] * 12, [one.stderr for one in ended]


def test_a_daemon_thread_that_waits_longer_than_the_end_does_not_return():
    ran = run(START + SLOW.replace("SECONDS", "6.0") + textwrap.dedent("""
        def wait():
            slow[1](x, count)
            waits.set()
            x.read()
            os._exit(3)
        waits = threading.Event()
        threading.Thread(target=wait, daemon=True).start()
        waits.wait()
        print("ends")
    """))
    assert (ran.returncode, ran.stdout) == (0, "ends\n"), ran


def test_the_package_needs_no_driver():
    none = {f"ONEBUF_{api}_LIB": "none" for api in ("OPENCL", "CUDA", "HIP", "VULKAN", "EGL")}
    ran = run(
        "import onebuf as ob; hub = ob.discover(); x = hub.empty(4); x.write(2); print(len(hub.devices), x.read().sum())",
        env={**os.environ, **none},
    )
    assert ran.stdout.split() == ["1", "8.0"], ran


def test_threads_that_lend_and_launch_at_random_neither_crash_nor_block():
    ran = run(START + textwrap.dedent("""
        import random
        kernel = cl.kernel("kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }")
        buffers = [hub.empty(4096, share=[cl]) for _ in range(3)]

        def exchange(x):
            y = hub.from_dlpack(np.ones(1000, np.float32), share=[cl])
            kernel(y, 2.0)
            assert (y.read() == 2).all()

        def add(x):
            with x.map() as a:
                a += 1

        def view(x):
            with x.on(cl):
                pass

        def work(seed):
            chosen, kept, end = random.Random(seed), [], time.monotonic() + 3
            uses = [lambda x: kernel(x, 1.0), add, view, exchange, lambda x: x.read(), lambda x: kept.clear(),
                    lambda x: kept.append(np.from_dlpack(x)), lambda x: kept.append(memoryview(x[::2]))]
            while time.monotonic() < end:
                try:
                    chosen.choice(uses)(chosen.choice(buffers))
                except (ob.Busy, ob.ExportError):
                    pass

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print([x.host_users for x in buffers])
    """), timeout=60)
    assert ran.stdout == "[0, 0, 0]\n", ran
