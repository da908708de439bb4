"""The exceptions of onebuf: one class for each kind of error, all below `Error`.

The message is the library's own. What it consists of is an attribute where a program may want it: `BuildFailed.log`,
`CopyForbidden.why`, `DriverError.code`.

>>> import onebuf
>>> issubclass(onebuf.Timeout, onebuf.Error) and issubclass(onebuf.Timeout, TimeoutError)
True
"""

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


class Error(Exception):
    """What every exception of onebuf is."""


class Unavailable(Error):
    """A library, driver or device is not there: `what`, and `tried`, the places where it was looked for."""


class Unsupported(Error):
    """The device or route cannot do this; `needs` says what could."""


class CopyForbidden(Error):
    """The call would need an implied copy, which the policy forbids: `route`, and `why`."""


class NotShared(Error):
    """The buffer is not shared with this `device`: name it in `share`."""


class Busy(Error):
    """Something else has the buffer, or the work is not done; the message says who, and what to do."""


class OutOfMemory(Error, MemoryError):
    """Out of memory: `device`, `asked` bytes, and its `limit` or None."""


class DeviceLost(Error):
    """The `device` stopped working; what was queued on it is lost."""


class PeerLost(Error):
    """The process at the other end is gone."""


class PeerRefused(Error):
    """The process at the other end, or what it sent, cannot be trusted."""


class InvalidArgument(Error, ValueError):
    """An argument is wrong; the message names it and the rule."""


class ForeignContext(Error):
    """An object of one context or hub where another's is needed."""


class BuildFailed(Error):
    """The compiler refused the program: `device`, and its `log` with the lines of the source."""


class Timeout(Error, TimeoutError):
    """A wait took longer than `after_ms`. The work may still finish."""


class DriverError(Error):
    """A driver's status that has no other class: `api`, `call`, `code`, `name`."""


class CacheError(Error):
    """A file in onebuf's cache, at `path`, cannot be used."""


class ApplicationError(Error):
    """A function of the application failed."""


class ExportError(Error, BufferError):
    """The memory cannot be shown to another library: the `BufferError` of DLPack and of the buffer protocol."""
