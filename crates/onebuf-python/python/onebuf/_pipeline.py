"""Pipelines: a source fills slots, stages enqueue work on them, a sink consumes the results."""

import sys
import time

from ._onebuf import Work, _Pipeline
from .errors import InvalidArgument

__all__ = ["Pipeline", "Work"]


def _itself(slot):
    return slot


class Progress:
    """One line with frames, rate and losses, in a terminal or a notebook."""

    def __init__(self, stream=None, interval=0.2):
        self._stream = stream if stream is not None else sys.stderr
        self._interval = interval
        self._next = 0.0
        self._shown = False

    def __call__(self, report):
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval
        self._show(report, "\r")

    def _show(self, report, start):
        latency = report["latency"]["p50"]
        text = f"{report['frames']} frames, {report['frames_per_second']:.1f}/s"
        if latency is not None:
            text += f", latency {latency * 1e3:.2f} ms"
        for word in ("dropped", "incomplete"):
            if report[word]:
                text += f", {report[word]} {word}"
        self._stream.write(f"{start}{text:<78}")
        self._stream.flush()
        self._shown = True

    def end(self, report):
        """Shows the last state, and ends the line."""
        self._show(report, "\r")
        self._stream.write("\n")
        self._stream.flush()


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

    def run(self, progress=None):
        """Runs until the source ends, `stop` is called, or a part fails; returns the report as a dictionary, times in seconds.

        `progress` is a function of the report so far, called on this thread about 20 times a second; `True` shows a line. Ctrl-C
        stops the pipeline: frames in flight are completed first. An exception of a part is raised here, with a note that names it.
        """
        shown = Progress() if progress is True else None
        report = self._line.run(shown or progress or None)
        if shown is not None:
            shown.end(report)
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
