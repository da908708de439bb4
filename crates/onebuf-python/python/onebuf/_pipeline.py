"""Pipelines: a source fills slots, stages enqueue work on them, a sink consumes the results."""

import time

from ._onebuf import Work, _Pipeline
from ._progress import Line, clock
from .errors import InvalidArgument

__all__ = ["Pipeline", "Work"]


def _itself(slot):
    return slot


class Progress:
    """Frames, rate, latency and losses of a run, as `Line` shows them. With `total`, the number of frames to come, also the part that is done
    and the time that is left.
    """

    def __init__(self, total=None, stream=None, interval=0.1):
        self._total = total
        self._line = Line(stream)
        self._interval = interval
        self._next = 0.0

    def __call__(self, report):
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            self._line.show(*self._said(report))

    def end(self, report):
        """Shows the last state, and ends the line."""
        self._line.end(*self._said(report))

    def _said(self, report):
        frames, elapsed, rate = report["frames"], report["elapsed"], report["frames_per_second"]
        times, part, count = clock(elapsed), None, f"{frames} frames"
        if self._total:
            part, count = frames / self._total, f"{frames}/{self._total} frames"
            if 0 < frames < self._total:
                times += f"<{clock((self._total - frames) / rate)}"
        text = f"{count} [{times}, {rate:.1f}/s"
        latency = report["latency"]["p50"]
        if latency is not None:
            text += f", latency {latency * 1e3:.2f} ms"
        for word in ("dropped", "incomplete"):
            if report[word]:
                text += f", {report[word]} {word}"
        return f"{text}]", part


def _of_bar(bar):
    """A function of the report that updates a bar of tqdm."""
    before = bar.n
    return lambda report: bar.update(before + report["frames"] - bar.n)


class Pipeline:
    """Processes a stream of frames, with a thread for the source and for each stage.

    `slot` makes the object that a frame lives in: a buffer, or anything that has buffers. `source` is a function of the slot and the
    frame's number, which fills the slot; `False` or `StopIteration` ends the stream, "idle" and "incomplete" are known, too. Each
    of `stages` is a name, a device and a function of a `Work`; it enqueues kernels with `queue=work.queue`. `sink` is a function of the
    slot and the number, called in order. `onebuf.sources` and `onebuf.sinks` have sources and sinks that need no function; `feed` and
    `drain` say which buffer of a slot they use, if a slot is not a buffer.

    >>> import onebuf as ob, numpy as np
    >>> hub = ob.discover()
    >>> seen = []
    >>> def fill(slot, number):
    ...     if number == 3:
    ...         return False
    ...     slot.write(number)
    >>> line = ob.Pipeline(2, lambda: hub.empty(8), source=fill, sink=lambda slot, n: seen.append(slot.read()[0]))
    >>> line.run()["frames"], [float(one) for one in seen]
    (3, [0.0, 1.0, 2.0])
    """

    def __init__(
        self,
        depth,
        slot,
        *,
        source,
        sink,
        stages=(),
        feed=None,
        drain=None,
        batch=None,
        when_full="block",
        one_thread=False,
    ):
        for what, part in (("slot", slot), ("feed", feed or _itself), ("drain", drain or _itself)):
            if not callable(part):
                raise InvalidArgument(f"`{what}` must be a function")
        self._line = _Pipeline(
            depth,
            slot,
            source,
            [(name, device, run) for name, device, run in stages],
            sink,
            feed or _itself,
            drain or _itself,
            batch,
            when_full,
            one_thread,
        )

    def run(self, progress=None, total=None):
        """Runs until the source ends, `stop` is called, or a part fails; returns the report as a dictionary, times in seconds.

        `progress=True` shows a line in a terminal or a notebook, with a bar if `total` says how many frames are expected. `progress` can also be
        a bar of tqdm, or a function of the report so far, which is called on this thread about 20 times a second. Ctrl-C stops the
        pipeline: frames in flight are completed first. An exception of a part is raised here, with a note that names it.
        """
        if total is not None and total <= 0:
            raise InvalidArgument(f"total={total}: a number of frames, or None")
        if progress is True:
            shown = Progress(total)
            try:
                return self._line.run(shown)
            finally:
                shown.end(self._line.report())
        if progress is None or progress is False or callable(progress):
            return self._line.run(progress or None)
        if not hasattr(progress, "update"):
            raise InvalidArgument("`progress` must be True, a function, or a bar of tqdm")
        update = _of_bar(progress)
        report = self._line.run(update)
        update(report)
        return report

    def stop(self):
        """Asks a running pipeline to end, from any thread."""
        self._line.stop()

    def report(self):
        """The counters and times so far, also while it runs."""
        return self._line.report()

    def pulse(self):
        """Whether it runs, and how fast: a dictionary with `state` ("ready", "running", "finished" or "failed"), `frames_per_second` of the last
        seconds, the time `since_last` frame came out, and for how long it has `stalled`, or None.
        """
        return self._line.pulse()

    def explain(self):
        """How frames come and go, and where each stage runs and why."""
        return self._line.explain()
