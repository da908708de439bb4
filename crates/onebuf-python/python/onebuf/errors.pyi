__all__ = [
    "ApplicationError",
    "BuildFailed",
    "Busy",
    "CacheError",
    "CopyForbidden",
    "DeviceLost",
    "DriverError",
    "Error",
    "ExportError",
    "ForeignContext",
    "InvalidArgument",
    "NotShared",
    "OutOfMemory",
    "PeerLost",
    "PeerRefused",
    "Timeout",
    "Unavailable",
    "Unsupported",
]

class Error(Exception): ...

class Unavailable(Error):
    what: str
    tried: list[str]

class Unsupported(Error):
    needs: str

class CopyForbidden(Error):
    route: str
    why: str

class NotShared(Error):
    device: str

class Busy(Error): ...

class OutOfMemory(Error, MemoryError):
    device: str
    asked: int
    limit: int | None

class DeviceLost(Error):
    device: str

class PeerLost(Error): ...
class PeerRefused(Error): ...
class InvalidArgument(Error, ValueError): ...
class ForeignContext(Error): ...

class BuildFailed(Error):
    device: str
    log: str

class Timeout(Error, TimeoutError):
    after_ms: int

class DriverError(Error):
    api: str
    call: str
    code: int
    name: str

class CacheError(Error):
    path: str

class ApplicationError(Error): ...
class ExportError(Error, BufferError): ...
