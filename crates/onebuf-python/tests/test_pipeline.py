"""Pipelines of Python functions, and of the library's sources and sinks."""

import contextlib
import gc
import io
import threading
import time
import weakref

import numpy as np
import pytest

import onebuf as ob
import onebuf._progress
from onebuf import sinks, sources

from conftest import GAIN


def frames(count, size=64):
    def source(slot, number):
        if number == count:
            return False
        slot.write(np.arange(size, dtype=np.float32) + number)
        return True

    return source


def test_frames_pass_through_the_stages_in_order(hub, cl, other, gain, gain_there):
    seen = []
    line = ob.Pipeline(
        3,
        lambda: hub.empty(64, share=[cl, other]),
        source=frames(40),
        stages=[
            ("double", cl, lambda work: gain(work.slot, 2.0, queue=work.queue)),
            ("triple", other, lambda work: gain_there(work.slot, 3.0, queue=work.queue)),
        ],
        sink=lambda slot, number: seen.append((number, slot.read())),
    )
    report = line.run()
    assert [number for number, _ in seen] == list(range(40))
    for number, data in seen:
        np.testing.assert_array_equal(data, 6 * (np.arange(64) + number))
    assert (report["frames"], report["dropped"], report["incomplete"]) == (40, 0, 0)
    assert [(stage["name"], stage["device"], stage["frames"]) for stage in report["stages"]] == [
        ("double", cl.id, 40),
        ("triple", other.id, 40),
    ]
    assert report["elapsed"] > 0 and report["latency"]["p50"] > 0
    assert line.report()["frames"] == 40 and cl.id in line.explain()


def test_sources_say_how_a_slot_was_filled(hub):
    said = iter(["frame", None, "incomplete", "idle", True])
    seen = []
    line = ob.Pipeline(
        2, lambda: hub.empty(4), source=lambda slot, number: next(said), sink=lambda slot, number: seen.append(number)
    )
    report = line.run()
    assert report["frames"] == 3 == len(seen) and report["incomplete"] == 1, "the iterator's end is the stream's"
    with pytest.raises(ob.InvalidArgument, match="marble"):
        ob.Pipeline(2, lambda: hub.empty(4), source=lambda *_: "marble", sink=lambda *_: None).run()


@pytest.mark.parametrize("part", ["source", "stage", "sink"])
def test_an_exception_of_a_part_comes_out_with_its_place(hub, cl, part):
    class Mine(Exception):
        pass

    def fail(where, number):
        if where == part and number == 2:
            raise Mine(where)

    def source(slot, number):
        fail("source", number)
        return number < 5

    line = ob.Pipeline(
        2,
        lambda: hub.empty(4, share=[cl]),
        source=source,
        stages=[("work", cl, lambda work: fail("stage", work.frame))],
        sink=lambda slot, number: fail("sink", number),
    )
    with pytest.raises(Mine, match=part) as caught:
        line.run()
    assert any("frame 2" in note for note in caught.value.__notes__)


def test_a_failed_launch_stops_the_pipeline(hub, cl, gain):
    line = ob.Pipeline(
        2,
        lambda: hub.empty(4, np.float64, share=[cl]),
        source=lambda slot, number: True,
        stages=[("wrong", cl, lambda work: gain(work.slot, 1.0, queue=work.queue))],
        sink=lambda slot, number: None,
    )
    with pytest.raises(ob.InvalidArgument, match="float64"):
        line.run()


def test_slots_are_any_object(hub, cl):
    add = cl.kernel("kernel void add(global const float *x, global float *y) { y[get_global_id(0)] = x[get_global_id(0)] + 1; }")
    data = np.arange(5 * 16, dtype=np.float32).reshape(5, 16)
    seen = []
    line = ob.Pipeline(
        2,
        lambda: {"in": hub.empty(16, share=[cl]), "out": hub.empty(16, share=[cl])},
        source=sources.memory(data, times=2),
        feed=lambda slot: slot["in"],
        stages=[("add", cl, lambda work: add(work.slot["in"], work.slot["out"], queue=work.queue))],
        sink=lambda slot, number: seen.append(slot["out"].read()),
    )
    assert line.run()["frames"] == 10
    np.testing.assert_array_equal(seen, np.concatenate([data, data]) + 1)
    assert "in place" in line.explain()


def test_files_of_numpy_go_in_and_out(hub, cl, gain, tmp_path):
    data = np.random.default_rng(1).random((12, 4, 8)).astype(np.float32)
    np.save(tmp_path / "in.npy", data)
    line = ob.Pipeline(
        3,
        lambda: hub.empty((4, 8), share=[cl]),
        source=sources.npy(tmp_path / "in.npy", np.float32),
        stages=[("gain", cl, lambda work: gain(work.slot, 4.0, queue=work.queue))],
        sink=sinks.npy(tmp_path / "out.npy", (4, 8), np.float32),
    )
    assert line.run()["frames"] == 12
    del line
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 4 * data)
    source = sources.file(tmp_path / "in.npy")
    line = ob.Pipeline(1, lambda: hub.empty(1), source=source, sink=lambda *_: None)
    with pytest.raises(ob.Busy, match="another pipeline"):
        ob.Pipeline(1, lambda: hub.empty(1), source=source, sink=lambda *_: None)
    with pytest.raises(ob.Error):
        sources.npy(tmp_path / "none.npy", np.float32)
    with pytest.raises(ob.InvalidArgument, match="a part"):
        ob.Pipeline(1, lambda: hub.empty((2, 64))[0], source=sources.memory(data), sink=lambda *_: None)


def test_frames_travel_by_udp(hub):
    data = np.arange(20 * 1000, dtype=np.float32).reshape(20, 1000)
    source = sources.udp("127.0.0.1:0", timeout=20.0, receive_buffer=1 << 20, busy_poll=1e-5, takeover_after=30)
    seen = []
    receiver = ob.Pipeline(4, lambda: hub.empty(1000), source=source, sink=lambda slot, n: seen.append(slot.read()))
    thread = threading.Thread(target=receiver.run)
    thread.start()
    sink = sinks.udp(source.address, rate=2e6)
    sender = ob.Pipeline(2, lambda: hub.empty(1000), source=sources.memory(data), sink=sink)
    assert sender.run()["frames"] == 20
    sink.finish()
    thread.join()
    assert len(seen) == source.counts["frames"] == 20 and source.counts["lost_packets"] == 0
    assert all(source.counts[name] > 0 for name in ("bytes", "batches", "receive_buffer_bytes"))
    assert source.counts["takeovers"] == 0 and source.counts["moved_packets"] >= 0
    np.testing.assert_array_equal(seen, data)
    assert sink.counts["packets"] >= 20 and sink.counts["frames"] == 20, sink.counts


def test_the_computed_signal_is_the_same_each_time(hub):
    seen = []
    for _ in range(2):
        line = ob.Pipeline(
            2,
            lambda: hub.empty((4, 256), np.complex64),
            source=sources.synthetic(4, 256, frames=3, seed=5),
            sink=lambda slot, number: seen.append(slot.read()),
        )
        line.run()
    np.testing.assert_array_equal(seen[:3], seen[3:])
    assert np.abs(seen[0]).max() > 0


def test_the_waves_of_the_computed_signal_are_chosen(hub):
    seen = []
    source = sources.synthetic(4, 256, frames=1, noise=0.0, waves=[(2.0, 0.125, 30.0)])
    ob.Pipeline(1, lambda: hub.empty((4, 256), np.complex64), source=source, sink=lambda slot, _: seen.append(slot.read())).run()
    spectrum = np.abs(np.fft.fft(seen[0])) / 256
    assert (spectrum.argmax(axis=1) == 32).all() and np.allclose(spectrum.max(axis=1), 2, atol=1e-3)
    turn = np.angle(seen[0][1:] / seen[0][:-1])
    assert np.allclose(np.abs(turn), np.pi / 2, atol=1e-3), "half a wavelength apart, from 30 degrees"


def test_progress_and_stop(hub):
    reports = []
    line = None

    def progress(report):
        reports.append(report["frames"])
        if len(reports) == 3:
            line.stop()

    def source(slot, number):
        time.sleep(0.005)

    line = ob.Pipeline(2, lambda: hub.empty(4), source=source, sink=lambda *_: None)
    report = line.run(progress)
    assert 3 <= len(reports) <= 6 and report["frames"] > 0 and reports == sorted(reports)
    again = line.run(lambda report: line.stop())
    assert again["frames"] > 0
    with pytest.raises(ZeroDivisionError):
        line.run(lambda report: 1 // 0)


@pytest.fixture
def columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


class Terminal(io.StringIO):
    """What a terminal of 80 columns is sent."""

    encoding = "utf-8"

    def isatty(self):
        return True

    def states(self):
        assert self.getvalue().endswith("\n") and self.getvalue().count("\n") == 1
        states = self.getvalue().removesuffix("\n").split("\r")[1:]
        assert all(len(one) < 80 for one in states)
        return states


def ticking(hub, count):
    def source(slot, number):
        time.sleep(0.01)
        return number < count

    return ob.Pipeline(2, lambda: hub.empty(4), source=source, sink=lambda *_: None)


def test_a_line_of_progress_in_a_terminal(hub, columns):
    with contextlib.redirect_stderr(Terminal()) as terminal:
        ticking(hub, 50).run(progress=True, total=50)
    states = terminal.states()
    assert len(states) > 3 and all("/50 frames [00:00" in one for one in states), states
    assert "100% ███" in states[-1] and "50/50 frames" in states[-1] and "<" not in states[-1], states
    assert any("<00:00" in one for one in states), "the time that is left"
    shares = [int(one.split("%")[0]) for one in states]
    assert shares == sorted(shares) and shares[0] < 60, states


def test_a_line_of_progress_without_an_end(hub, columns):
    with contextlib.redirect_stderr(Terminal()) as terminal:
        ticking(hub, 30).run(progress=True)
    states = terminal.states()
    assert len(states) > 2 and not any("%" in one or "/50" in one for one in states) and states[-1].startswith("30 frames ["), states


def test_a_line_of_progress_ends_with_an_exception(hub, columns):
    def fail(slot, number):
        time.sleep(0.05)
        if number == 5:
            raise ValueError("mine")

    line = ob.Pipeline(2, lambda: hub.empty(4), source=fail, sink=lambda *_: None)
    with contextlib.redirect_stderr(Terminal()) as terminal, pytest.raises(ValueError, match="mine"):
        line.run(progress=True)
    assert terminal.states(), "the message begins on a line of its own"


def test_progress_in_a_file_is_its_last_state(hub):
    with contextlib.redirect_stderr(io.StringIO()) as file:
        ticking(hub, 30).run(progress=True)
    assert file.getvalue().startswith("30 frames [") and file.getvalue().count("\n") == 1 and "\r" not in file.getvalue()


def test_a_shorter_line_erases_the_one_before(columns):
    terminal = Terminal()
    line = onebuf._progress.Line(terminal)
    line.show("a longer text")
    line.end("short")
    assert terminal.getvalue() == "\ra longer text\rshort        \n"
    assert onebuf._progress.bar(0.5, 4, unicode=False) == "##  " and onebuf._progress.bar(0.57, 2) == "█▏"
    assert [onebuf._progress.clock(one) for one in (0.9, 61, 3661)] == ["00:00", "01:01", "1:01:01"]


def test_a_bar_of_another_library(hub):
    class Bar:
        n = 7

        def update(self, more):
            self.n += more

    bar = Bar()
    assert ticking(hub, 30).run(progress=bar)["frames"] == 30 and bar.n == 37
    for progress, total in ((3, None), (True, 0), (True, -1)):
        with pytest.raises(ob.InvalidArgument, match="progress|total"):
            ticking(hub, 3).run(progress=progress, total=total)


def test_a_pipeline_runs_once_at_a_time(hub):
    line = ob.Pipeline(2, lambda: hub.empty(4), source=lambda *_: time.sleep(0.01), sink=lambda *_: None)
    thread = threading.Thread(target=line.run)
    thread.start()
    time.sleep(0.1)
    with pytest.raises(ob.Busy, match="runs already"):
        line.run()
    line.stop()
    thread.join()


def test_wrong_parts_are_refused(hub):
    good = {"source": lambda *_: False, "sink": lambda *_: None}
    for depth, named, error in [
        (0, good, ob.InvalidArgument),
        (2, {**good, "batch": 3}, ob.InvalidArgument),
        (2, {**good, "when_full": "panic"}, ob.InvalidArgument),
        (2, {**good, "feed": 3}, ob.InvalidArgument),
        (2, {**good, "stages": [("x", "opencl:0", print)]}, TypeError),
    ]:
        with pytest.raises(error):
            ob.Pipeline(depth, lambda: hub.empty(4), **named)
    with pytest.raises(TypeError):
        ob.Pipeline(2, lambda: 3, source=sources.memory(b"1234"), sink=lambda *_: None)


def test_a_pipeline_that_refers_to_itself_is_collected(hub):
    class Owner:
        def __init__(self):
            self.buffers = []
            self.line = ob.Pipeline(2, self.slot, source=self.fill, sink=self.take, stages=[("s", hub["opencl:0"], self.work)])

        def slot(self):
            self.buffers.append(hub.empty(4, share=["opencl:0"]))
            return [self, self.buffers[-1]]

        def fill(self, slot, number):
            return number < 3

        def work(self, work):
            assert work.slot[0] is self

        def take(self, slot, number):
            pass

    owner = Owner()
    assert owner.line.run()["frames"] == 3
    gone = [weakref.ref(owner), weakref.ref(owner.buffers[0])]
    del owner
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_pipelines_drop_frames_if_asked(hub):
    line = ob.Pipeline(
        2,
        lambda: hub.empty(4),
        source=lambda slot, number: number < 50,
        sink=lambda *_: time.sleep(0.01),
        when_full="drop_oldest",
    )
    report = line.run()
    assert report["dropped"] > 0 and report["frames"] + report["dropped"] == 50
