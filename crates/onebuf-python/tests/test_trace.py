"""Traces, the live view, and the log."""

import json
import logging
import os
import subprocess
import sys
import textwrap
import time

import pytest

import onebuf as ob

from conftest import GAIN


@pytest.fixture(scope="module")
def traced():
    hub = ob.discover(only=["opencl"], trace=True, trace_devices=True)
    cl = next(device for device in hub.devices if "portable" in device.platform.lower())
    return hub, cl, cl.kernel(GAIN)


def test_events_tell_what_happened(traced):
    hub, cl, gain = traced
    hub.trace.clear()
    x = hub.empty(5000, share=[cl], name="signal")
    x.write(1)
    gain(x, 2.0)
    assert (x.read() == 2).all()
    events = hub.trace.events()
    copies = [event for event in events if event["what"] == "copy" and event["buffer"] == "signal"]
    assert sum(event["bytes"] for event in copies) >= 40000 and {event["cause"] for event in copies} == {"asked"}
    (launch,) = [event for event in events if event["what"] == "launch" and event["clock"] == "host"]
    assert (launch["name"], launch["device"], launch["failed"]) == ("gain", cl.id, False)
    assert all(0 <= event["start"] <= event["end"] <= hub.trace.now for event in events if event["clock"] == "host")
    assert hub.trace.dropped == 0 and f"{len(hub.trace.events())} events" in repr(hub.trace)
    hub.trace.clear()
    assert hub.trace.events() == []


def test_a_trace_is_a_file_for_perfetto(traced, tmp_path):
    hub, cl, gain = traced
    x = hub.empty(64, share=[cl])
    gain(x, 2.0)
    x.read()
    hub.trace.save(tmp_path / "trace.json")
    saved = json.loads((tmp_path / "trace.json").read_text())
    names = {event.get("name") for event in saved["traceEvents"]}
    assert "gain" in names
    with pytest.raises(FileNotFoundError):
        hub.trace.save(tmp_path / "none" / "trace.json")


def test_where_the_time_went_adds_up(traced):
    hub, cl, gain = traced
    x = hub.empty(1 << 20, share=[cl])
    start = hub.trace.now
    for _ in range(5):
        gain(x, 1.0)
    x.wait()
    hub.trace.catch_up()
    end = hub.trace.now
    account = hub.trace.account(start, end)
    assert account["total"] == pytest.approx(end - start, abs=1e-6)
    parts = sum(row["seconds"] for row in account["work"]) + sum(account["idle"].values())
    assert parts == pytest.approx(account["total"], abs=1e-6)
    assert {(row["device"], row["name"]) for row in account["work"]} == {(cl.id, "gain")}
    with pytest.raises(ob.InvalidArgument, match="before"):
        hub.trace.account(2.0, 1.0)


def test_a_trace_keeps_as_many_events_as_it_was_told(hub):
    assert hub.trace is None
    small = ob.discover(only=["host"], trace=4)
    x = small.empty(16)
    for _ in range(10):
        x.write(1)
    assert len(small.trace.events()) == 4 and small.trace.dropped > 0
    assert ob.discover(only=["host"], trace=False).trace is None


def top(name):
    """What `onebuf top` sees."""
    command = [sys.executable, "-m", "onebuf", "top", name, "--once", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_onebuf_top_shows_the_program(tmp_path):
    hub = ob.discover(only=["host"])
    name = f"python-{os.getpid()}"
    with hub.publish(name) as shown:
        assert os.path.exists(shown.path)
        x = hub.empty(1000, name="frames")
        line = ob.Pipeline(2, lambda: hub.empty(8), source=lambda slot, number: number < 5, sink=lambda slot, number: None)
        shown.pipeline("counting", line)
        line.run()
        seen = top(name)
        assert {buffer["name"]: buffer["bytes"] for buffer in seen["buffers"]}["frames"] == x.nbytes
        (pipeline,) = seen["pipelines"]
        assert (pipeline["name"], pipeline["frames"], pipeline["state"]) == ("counting", 5, "finished")
        with pytest.raises(ob.Busy):
            hub.publish(name)
        with pytest.raises(ob.InvalidArgument, match="Pipeline"):
            shown.pipeline("wrong", "thing")
    assert not os.path.exists(shown.path)
    with pytest.raises(ob.InvalidArgument, match="not published"):
        shown.pipeline("late", line)
    shown.close()
    assert line.pulse()["state"] == "finished" and line.pulse()["stalled"] is None


@pytest.fixture
def level():
    yield ob.log_level
    ob.log_level()


def logged(caplog, name, at_least=1):
    """Records of a logger; the library's own thread brings them."""
    end = time.monotonic() + 20
    while True:
        found = [record for record in caplog.records if record.name == name]
        if len(found) >= at_least:
            return found
        assert time.monotonic() < end, [record.name for record in caplog.records]
        time.sleep(0.01)


def test_implied_copies_are_logged_where_they_are_to_be(hub, cl, other, caplog):
    kernels = [device.kernel(GAIN) for device in (cl, other)]
    for copies in ("allow", "warn"):
        x = hub.empty(4096, share=[cl, other], allocate_on=cl.id, route="staged", copies=copies, name=f"to {copies}")
        for kernel in kernels:
            kernel(x, 1.0)
    records = logged(caplog, "onebuf.copies")
    assert {record.levelno for record in records} == {logging.WARNING}
    text = " ".join(record.getMessage() for record in records)
    assert "to warn" in text and "bytes=16384" in text and other.id in text
    assert "to allow" not in text, "the control"


def test_the_level_is_chosen(hub, cl, other, caplog, level):
    kernels = [device.kernel(GAIN) for device in (cl, other)]

    def copy(name):
        x = hub.empty(4096, share=[cl, other], allocate_on=cl.id, route="staged", copies="warn", name=name)
        for kernel in kernels:
            kernel(x, 1.0)

    level("off")
    copy("unheard")
    level("onebuf::copies=warn")
    copy("heard")
    assert "unheard" not in " ".join(record.getMessage() for record in logged(caplog, "onebuf.copies"))
    for wrong in ("loud", "warn,loud", "onebuf=loud"):
        with pytest.raises(ob.InvalidArgument, match="log level .*loud"):
            level(wrong)


def run(*parts, **environment):
    text = "".join(textwrap.dedent(part) for part in parts)
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", text],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


WARNS = """
    import onebuf as ob
    hub = ob.discover(only=["opencl"])
    devices = hub.select("opencl")[:2]
    x = hub.empty(4096, share=devices, allocate_on=devices[0].id, route="staged", copies="warn", name="frame")
    for device in devices:
        device.kernel("kernel void f(global float *x) { x[get_global_id(0)] += 1; }")(x)
"""


def test_warnings_reach_standard_error_without_any_setting():
    ran = run(WARNS, "print('ends')")
    assert ran.returncode == 0 and ran.stdout == "ends\n" and "an implied copy" in ran.stderr and "frame" in ran.stderr, ran
    quiet = run(WARNS, ONEBUF_LOG="off")
    assert quiet.returncode == 0 and "implied" not in quiet.stderr


def test_a_handler_may_call_the_library():
    ran = run("""
        import logging
        class Handler(logging.Handler):
            def emit(self, record):
                seen.append((record.name, hub.ledger.implied_bytes, x.read().shape))
        seen = []
        logging.getLogger("onebuf").addHandler(Handler())
    """, WARNS, """
        import time
        end = time.monotonic() + 20
        while not seen and time.monotonic() < end:
            time.sleep(0.01)
        print(seen[0])
    """)
    assert ran.returncode == 0 and ran.stdout == "('onebuf.copies', 16384, (4096,))\n", ran


def test_messages_of_the_end_are_told():
    ran = run(WARNS, """
        import atexit
        print("ends")
    """)
    assert "an implied copy" in ran.stderr, ran
    bad = run("import onebuf as ob; ob.discover(only=['host']); print('runs')", ONEBUF_LOG="=,=loud")
    assert bad.stdout == "runs\n", bad


def test_arrays_of_a_failing_handler_do_not_stop_the_program():
    ran = run("""
        import logging
        class Handler(logging.Handler):
            def emit(self, record):
                raise RuntimeError("a handler fails")
        logging.getLogger("onebuf").addHandler(Handler())
    """, WARNS, "print(float(x.read().sum()))")
    assert ran.returncode == 0 and ran.stdout == "8192.0\n" and "a handler fails" in ran.stderr, ran

