from . import cache as cache
from . import errors as errors
from . import sinks as sinks
from . import sources as sources
from ._arrays import MappedArray as MappedArray
from ._doctor import doctor as doctor
from ._kernel import kernel as kernel
from ._onebuf import Buffer as Buffer
from ._onebuf import Device as Device
from ._onebuf import Fence as Fence
from ._onebuf import Hub as Hub
from ._onebuf import InFlight as InFlight
from ._onebuf import Kernel as Kernel
from ._onebuf import LU as LU
from ._onebuf import Launch as Launch
from ._onebuf import Ledger as Ledger
from ._onebuf import Local as Local
from ._onebuf import Map as Map
from ._onebuf import Offer as Offer
from ._onebuf import Peer as Peer
from ._onebuf import Pool as Pool
from ._onebuf import Published as Published
from ._onebuf import Queue as Queue
from ._onebuf import TensorKernel as TensorKernel
from ._onebuf import TensorLaunch as TensorLaunch
from ._onebuf import Trace as Trace
from ._onebuf import Transfer as Transfer
from ._onebuf import View as View
from ._onebuf import World as World
from ._onebuf import Work as Work
from ._onebuf import __version__ as __version__
from ._onebuf import attach as attach
from ._onebuf import discover as discover
from ._onebuf import fft as fft
from ._onebuf import log_level as log_level
from ._onebuf import lu as lu
from ._onebuf import matmul as matmul
from ._onebuf import solve as solve
from ._pipeline import Pipeline as Pipeline
from ._torch import SharedArray as SharedArray
from ._torch import TorchAllocator as TorchAllocator
from ._torch import shared as shared
from ._torch import torch_allocator as torch_allocator
from .errors import ApplicationError as ApplicationError
from .errors import BuildFailed as BuildFailed
from .errors import Busy as Busy
from .errors import CacheError as CacheError
from .errors import CopyForbidden as CopyForbidden
from .errors import DeviceLost as DeviceLost
from .errors import DriverError as DriverError
from .errors import Error as Error
from .errors import ExportError as ExportError
from .errors import ForeignContext as ForeignContext
from .errors import InvalidArgument as InvalidArgument
from .errors import NotShared as NotShared
from .errors import OutOfMemory as OutOfMemory
from .errors import PeerLost as PeerLost
from .errors import PeerRefused as PeerRefused
from .errors import Timeout as Timeout
from .errors import Unavailable as Unavailable
from .errors import Unsupported as Unsupported

__all__ = [
    "Buffer",
    "Device",
    "Fence",
    "Hub",
    "InFlight",
    "Kernel",
    "LU",
    "Launch",
    "Ledger",
    "Local",
    "Map",
    "MappedArray",
    "Offer",
    "Peer",
    "Pipeline",
    "Pool",
    "Published",
    "Queue",
    "SharedArray",
    "TensorKernel",
    "TensorLaunch",
    "TorchAllocator",
    "Trace",
    "Transfer",
    "View",
    "Work",
    "World",
    "attach",
    "cache",
    "discover",
    "doctor",
    "errors",
    "fft",
    "kernel",
    "log_level",
    "lu",
    "matmul",
    "shared",
    "sinks",
    "solve",
    "sources",
    "torch_allocator",
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
