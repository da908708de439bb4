"""Sources of frames that the library has, for `onebuf.Pipeline`."""

from ._onebuf import Source
from ._onebuf import source_file as file
from ._onebuf import source_memory as memory
from ._onebuf import source_npy as npy
from ._onebuf import source_synthetic as synthetic
from ._onebuf import source_tcp as tcp
from ._onebuf import source_udp as udp

__all__ = ["Source", "file", "memory", "npy", "synthetic", "tcp", "udp"]
