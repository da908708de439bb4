from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, TextIO, TypeAlias

from ._onebuf import Buffer, Device, Sink, Source
from ._onebuf import Work as Work

__all__ = ["Pipeline", "Work"]

_Report: TypeAlias = dict[str, Any]

class _Bar(Protocol):
    n: Any
    def update(self, n: int) -> object: ...

class Progress:
    def __init__(self, total: int | None = None, stream: TextIO | None = None, interval: float = 0.1) -> None: ...
    def __call__(self, report: _Report) -> None: ...
    def end(self, report: _Report) -> None: ...

class Pipeline:
    def __init__(
        self,
        depth: int,
        slot: Callable[[], Any],
        *,
        source: Callable[[Any, int], object] | Source,
        sink: Callable[[Any, int], object] | Sink,
        stages: Iterable[tuple[str, Device, Callable[[Work], object]]] = (),
        feed: Callable[[Any], Buffer] | None = None,
        drain: Callable[[Any], Buffer] | None = None,
        batch: int | None = None,
        when_full: Literal["block", "drop_oldest", "drop_newest"] = "block",
        one_thread: bool = False,
    ) -> None: ...
    def run(self, progress: Callable[[_Report], object] | _Bar | bool | None = None, total: int | None = None) -> _Report: ...
    def stop(self) -> None: ...
    def report(self) -> _Report: ...
    def pulse(self) -> dict[str, Any]: ...
    def explain(self) -> str: ...
