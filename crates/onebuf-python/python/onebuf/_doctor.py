"""Proves which devices share memory: `onebuf.doctor`."""

import os
import time
import warnings

from . import _kernel, _onebuf
from ._program import program
from ._progress import Line
from .errors import InvalidArgument, Unavailable

__all__ = ["doctor"]


def _shown():
    """A function that shows a line in a terminal or a notebook."""
    line = Line()

    def show(done, total, what):
        text = f"{done} of {total} pairs {what}".rstrip()
        (line.end if done == total else line.show)(text, done / total if total else None)

    return show


def doctor(devices=None, *, hub=None, fresh=False, reach=None, progress=None, cache=None):
    """Proves by experiment which routes between devices work, and which of them copy nothing. Verdicts are kept: hubs that are discovered
    afterwards plan with them.

    Each experiment runs in a process of its own, so that a driver may crash there. What has a verdict already is not tried again, unless with
    `fresh`. `devices` restricts it to the pairs of these. `reach` is the size in bytes up to which every page is tried. `progress` is a function of
    the number of pairs that are done, of all pairs, and of the pair in work; `True` shows a line. Ctrl-C ends it after the pair in
    work; verdicts so far are kept. `cache` is another folder than the user's.

    Returns a dictionary: `routes` and `grafts` are lists of verdicts as `onebuf doctor --json` prints them; `experiments` is how many were made,
    `seconds` how long they took, `saved` whether the verdicts were kept.

    >>> import onebuf as ob
    >>> told = ob.doctor(["host"])             # one device has no route to prove
    >>> told["routes"], told["experiments"]
    ([], 0)
    """
    helper = program()
    if not os.access(helper, os.X_OK):
        raise Unavailable(f"{helper} is missing: this package was put together without the program that makes experiments")
    hub = hub if hub is not None else _onebuf.discover()
    if reach is not None and not 0 < reach < 1 << 64:
        raise InvalidArgument(f"reach={reach}: a size in bytes")
    chosen = hub.devices if devices is None else [hub[one] if isinstance(one, str) else one for one in devices]
    pairs = [(start, end) for start in chosen for end in chosen if start != end or start.api == "opencl"]
    show = _shown() if progress is True else progress
    began = time.monotonic()
    told = {"routes": [], "grafts": [], "experiments": 0, "saved": True}
    said = set()
    for done, (start, end) in enumerate(pairs):
        if show:
            show(done, len(pairs), f"{start.id} -> {end.id}")
        found = _onebuf._doctor(hub, start, end, helper, fresh=fresh, reach=reach, cache=cache)
        for name in ("routes", "grafts"):
            told[name] += found[name]
        told["experiments"] += found["experiments"]
        told["saved"] = told["saved"] and found["saved"]
        for warning in set(found["warnings"]) - said:
            said.add(warning)
            warnings.warn(warning, stacklevel=2)
    if show:
        show(len(pairs), len(pairs), "")
    told["seconds"] = time.monotonic() - began
    if cache is None:
        # The hub for arrays is discovered again, with what is known now.
        _kernel._hub = None
    return told
