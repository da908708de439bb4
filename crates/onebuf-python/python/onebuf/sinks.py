"""Sinks of frames that the library has, for `onebuf.Pipeline`."""

from ._onebuf import Sink
from ._onebuf import sink_file as file
from ._onebuf import sink_npy as npy
from ._onebuf import sink_udp as udp

__all__ = ["Sink", "file", "npy", "udp"]
