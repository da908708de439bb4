from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeAlias

from ._onebuf import Buffer, Device, Hub

__all__ = ["SharedArray", "TorchAllocator", "shared", "torch_allocator"]

_Devices: TypeAlias = Device | str | Iterable[Device | str]

class TorchAllocator:
    @property
    def share(self) -> dict[int, list[Device]]: ...
    @property
    def stats(self) -> dict[str, int]: ...
    def empty_cache(self) -> int: ...
    def install(self) -> None: ...
    def pool(self) -> Any: ...
    def __repr__(self) -> str: ...

class SharedArray:
    def __enter__(self) -> Buffer: ...
    def __exit__(
        self, kind: type[BaseException] | None = None, error: BaseException | None = None, trace: TracebackType | None = None, /
    ) -> bool: ...

def torch_allocator(
    share: _Devices | None = None,
    *,
    hub: Hub | None = None,
    trust_declared: bool = False,
    limit: int | None = None,
) -> TorchAllocator: ...
def shared(array: Any, on: _Devices = (), *, stream: Any = None) -> SharedArray: ...
