"""An allocator for PyTorch whose tensors OpenCL, Vulkan and OpenGL use in place: `onebuf.torch_allocator`."""

import ctypes

from . import _onebuf
from ._kernel import _default_hub
from .errors import CopyForbidden, InvalidArgument, NotShared, Unavailable, Unsupported

__all__ = ["SharedArray", "TorchAllocator", "shared", "torch_allocator"]

# C++'s functions and PyTorch's class, by which exhausted memory is reported.
_THROWER = (
    "__cxa_allocate_exception",
    "__cxa_throw",
    "_Znwm",
    "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    "_ZTIN3c1016OutOfMemoryErrorE",
)


def _set_thrower(library):
    """Looks up in PyTorch's library, and those that it needs, how its exception is thrown; whether that was found."""
    try:
        addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _THROWER]
    except AttributeError:
        return False
    _onebuf._torch_thrower(*addresses)
    return True


class TorchAllocator:
    """Allocates the memory of PyTorch's tensors: see `torch_allocator`."""

    def __init__(self, devices):
        self._devices = devices
        self._kept = []

    @property
    def share(self):
        """The devices that use the tensors' memory in place, by PyTorch's number of the tensors' device."""
        return {number: list(share) for number, _, share in self._devices}

    @property
    def stats(self):
        """Counters: bytes in use and of all segments, with their peaks; those of segments that were too large for other APIs (`unshared_bytes`);
        segments, blocks and requests.
        """
        return _onebuf._torch_stats()

    def empty_cache(self):
        """Frees the segments that no tensor uses, after the work of their streams; returns the number of bytes."""
        return _onebuf._torch_empty_cache()

    def _pluggable(self, allocate, free, record=None):
        import torch

        _set_thrower(ctypes.CDLL(torch._C.__file__))
        made = torch.cuda.memory.CUDAPluggableAllocator(_onebuf.__file__, allocate, free)
        if record is not None and hasattr(made.allocator(), "set_record_stream_fn"):
            address = ctypes.cast(getattr(ctypes.CDLL(_onebuf.__file__), record), ctypes.c_void_p).value
            made.allocator().set_record_stream_fn(address)
        self._kept.append(made)
        return made

    def install(self):
        """Makes PyTorch allocate all memory of its CUDA tensors here. PyTorch allows that before its first CUDA tensor only.

        onebuf caches the memory. Exhausted memory is `torch.OutOfMemoryError`. PyTorch's own statistics of memory, and CUDA graphs, do not work with
        an allocator that is not its own: use `pool` for these.
        """
        import torch

        made = self._pluggable("onebuf_torch_alloc", "onebuf_torch_free", "onebuf_torch_record_stream")
        torch.cuda.memory.change_current_allocator(made)

    def pool(self):
        """A `torch.cuda.MemPool`: inside of `torch.cuda.use_mem_pool(pool)` tensors are allocated here, others as always.

        PyTorch's own cache divides the memory, with its statistics. Needs PyTorch 2.5 or newer.
        """
        import torch

        if not hasattr(torch.cuda, "MemPool"):
            raise Unsupported(f"PyTorch {torch.__version__} has no `torch.cuda.MemPool`: 2.5 has")
        made = self._pluggable("onebuf_torch_segment_alloc", "onebuf_torch_segment_free")
        return torch.cuda.MemPool(made.allocator())

    def __repr__(self):
        shown = "; ".join(f"{device.id} with {', '.join(one.id for one in share)}" for _, device, share in self._devices)
        return f"<onebuf.TorchAllocator {shown}>"


def torch_allocator(share=None, *, hub=None, trust_declared=False, limit=None):
    """Makes an allocator for PyTorch: any tensor that it allocates can be used in place by the devices in `share`.

    Without `share`, these are all devices that share memory with a CUDA (or HIP) device without a copy, as `onebuf doctor` has proven it;
    with `trust_declared` also as drivers declare it. `limit` is the most bytes that it allocates. There is one allocator in a process.

    >>> import onebuf as ob, torch                              # doctest: +SKIP
    >>> allocator = ob.torch_allocator(["opencl:0", "gl:0"])    # doctest: +SKIP
    >>> allocator.install()                                     # doctest: +SKIP
    >>> t = torch.ones(1024, device="cuda")                     # doctest: +SKIP
    >>> with ob.shared(t) as x:                                 # doctest: +SKIP
    ...     gain(x, 2.0)                                        # an OpenCL kernel, on the tensor's memory
    """
    hub = hub if hub is not None else _default_hub()
    own = [device for device in hub.devices if device.api in ("cuda", "hip")]
    if not own:
        raise Unavailable("an allocator for PyTorch needs a CUDA or HIP device: see `Hub.unavailable`")
    if share is not None:
        share = [share] if isinstance(share, str) or not hasattr(share, "__iter__") else share
        share = [hub[one] if isinstance(one, str) else one for one in share]
    devices = []
    for device in own:
        number = int(device.id.partition(":")[2])
        if share is not None:
            with_it = [one for one in share if one != device]
        else:
            with_it = _partners(hub, device, trust_declared)
        devices.append((number, device, with_it))
    if share is not None:
        # The devices that were named are of one chip: memory of other chips is not shared with them.
        able = [one for one in devices if _fits(hub, [one[1], *one[2]], trust_declared)]
        devices = able or devices[:1]
    _onebuf._torch_set(hub, devices, trust_declared, limit)
    return TorchAllocator(devices)


def _partners(hub, device, trust_declared):
    """The devices that share memory with this one, all of them at once."""
    found = []
    for other in hub.devices:
        if other.api in ("host", device.api):
            continue
        if _fits(hub, [device, *found, other], trust_declared):
            found.append(other)
    return found


def _fits(hub, devices, trust_declared):
    """Whether these devices share memory of the chip itself, without a copy."""
    try:
        plan = hub.plan(2 << 20, share=devices, copies="forbid", trust_declared=trust_declared)
    except (CopyForbidden, NotShared, Unsupported):
        return False
    return plan["memory_kind"] == "exportable"


class SharedArray:
    """A tensor's memory as a buffer, for the duration of a `with` block: see `shared`."""

    def __init__(self, array, on, stream):
        self._array = array
        self._on = on
        self._stream = stream
        self._buffer = None

    def __enter__(self):
        if self._buffer is not None:
            raise InvalidArgument("the block runs already: call `shared` again")
        if getattr(self._array, "requires_grad", False):
            raise InvalidArgument("the tensor requires a gradient, which onebuf's work would not be part of: `detach` it")
        facts = self._array.__cuda_array_interface__
        self._at = facts["data"][0]
        buffer, _, self._number = _onebuf._torch_view(
            self._at, facts["shape"], facts.get("strides"), facts["typestr"]
        )
        self._check(buffer)
        self._queue = _onebuf._torch_queue(self._number, _stream_of(self._array, self._number, self._stream, facts))
        self._hand_over(buffer)
        self._buffer = buffer
        return buffer

    def __exit__(self, *error):
        buffer, self._buffer = self._buffer, None
        try:
            self._hand_over(buffer)
            # The block may have been allocated for another stream, which may use it again after this one.
            _onebuf._torch_record(self._at, self._queue.int_ptr)
        finally:
            buffer.free()
        return False

    def _hand_over(self, buffer):
        """Orders the owner's stream after earlier work on the memory, and later work after what the stream has so far."""
        _onebuf._torch_hand_over(buffer, self._queue)

    def _check(self, buffer):
        if not self._on:
            return
        homes = {route["to"] for route in buffer.plan()["routes"]}
        for one in self._on:
            name = one if isinstance(one, str) else one.id
            if buffer.hub[name].id not in homes:
                raise NotShared(
                    f"this memory is not shared with {name}: name it in `onebuf.torch_allocator`; a tensor may also be larger than"
                    f" a buffer of {name} can be ({buffer.offset + buffer.nbytes} bytes here)"
                )


def _stream_of(array, number, stream, facts):
    """The stream that the array's owner works on: the given one, or the library's current one."""
    if stream is not None:
        return getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    module = type(array).__module__.partition(".")[0]
    if module == "torch":
        import torch

        return torch.cuda.current_stream(number).cuda_stream
    if module == "cupy":
        import cupy

        return cupy.cuda.get_current_stream().ptr
    return facts.get("stream") or 0


def shared(array, on=(), *, stream=None):
    """The memory of a tensor that `torch_allocator` has allocated, as a buffer: `with onebuf.shared(tensor) as x:`.

    Work on `x` comes after what the owner's stream has so far: PyTorch's current stream, or `stream`. When the block ends, that stream
    waits for the work on `x`, on the device where the drivers allow it. `on` names devices that must have the memory. The tensor
    must begin at a multiple of 512 bytes for kernels of other APIs, as new ones do. Using `x` after the block is an error.
    """
    on = [on] if isinstance(on, str) or not hasattr(on, "__iter__") else list(on)
    return SharedArray(array, on, stream)
