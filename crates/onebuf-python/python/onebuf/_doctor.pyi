from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any, Literal

from ._onebuf import Device, Hub

__all__ = ["doctor"]

def doctor(
    devices: Iterable[Device | str] | None = None,
    *,
    hub: Hub | None = None,
    fresh: bool = False,
    reach: int | None = None,
    progress: Callable[[int, int, str], object] | Literal[True] | None = None,
    cache: str | PathLike[str] | None = None,
) -> dict[str, Any]: ...
