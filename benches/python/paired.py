"""Two functions, timed alternately (ABBA) in one process: medians, and the ratio with its quartiles."""

import json
import statistics
import sys
import time
import traceback

ROUNDS = 24
_results = []


def host_time(finish=lambda: None):
    """A timer: microseconds of a call, of which a batch fits into the driver's queue. The queue is emptied outside of the time."""

    def timed(run, batch):
        finish()
        began = time.perf_counter()
        for _ in range(batch):
            run()
        took = (time.perf_counter() - began) / batch * 1e6
        finish()
        return took

    return timed


def compare(name, ours, theirs, batch, timed, *, theirs_timed=None, bar=None):
    """Prints one line of JSON. `timed` measures a batch of calls; `bar` is the ratio that must not be exceeded."""
    sides = {"value": (ours, timed), "baseline": (theirs, theirs_timed or timed)}
    times = {side: [] for side in sides}
    for run, measure in sides.values():
        measure(run, batch)
    for _ in range(ROUNDS):
        for side in ("value", "baseline", "baseline", "value"):
            run, measure = sides[side]
            times[side].append(measure(run, batch))
    ratios = sorted(a / b for a, b in zip(times["value"], times["baseline"]))
    quarter = len(ratios) // 4
    result = {
        "name": name,
        "value": round(statistics.median(times["value"]), 3),
        "unit": "us",
        "baseline": round(statistics.median(times["baseline"]), 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_low": round(ratios[quarter], 3),
        "ratio_high": round(ratios[-quarter - 1], 3),
        "n": len(ratios),
        "bar": bar,
    }
    _results.append(result)
    print(json.dumps(result), flush=True)


def main(*parts):
    """Runs all parts, also after one that fails, and prints the table. Exits with status 1 if one has failed."""
    failed = False
    for part in parts:
        try:
            part()
        except Exception:
            failed = True
            traceback.print_exc()
    table()
    sys.exit(failed)


def table():
    """Prints all results in columns, with a word where there is a bar."""
    print(f"\n{'':50} {'ours us':>9} {'theirs us':>9} {'ratio':>6}  quartiles    bar")
    for one in _results:
        held = "" if one["bar"] is None else f"{one['bar']:5.2f}  {'held' if one['ratio'] <= one['bar'] else 'EXCEEDED'}"
        print(
            f"{one['name']:50} {one['value']:9.3f} {one['baseline']:9.3f} {one['ratio']:6.3f}"
            f"  {one['ratio_low']:.3f}-{one['ratio_high']:.3f}  {held}"
        )
