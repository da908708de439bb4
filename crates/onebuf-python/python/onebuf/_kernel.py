"""Kernels on arrays of other libraries: `onebuf.kernel(source)(array, 2.0)`."""

import threading

from ._onebuf import Buffer, Queue, discover
from .errors import InvalidArgument, Unavailable

_lock = threading.Lock()
_hub = None


def _default_hub():
    """The hub that arrays of other libraries are wrapped in."""
    global _hub
    with _lock:
        if _hub is None:
            _hub = discover()
        return _hub


def _cpu(hub):
    """The OpenCL device that computes on the host's memory: PoCL's rather than others."""
    found = [device for device in hub.devices if device.api == "opencl" and device.kind == "cpu"]
    if not found:
        raise Unavailable("a kernel on arrays of the host needs an OpenCL driver for the CPU, such as PoCL")
    return min(found, key=lambda device: "portable computing" not in device.platform.lower())


class TensorKernel:
    """A kernel that is compiled once for each device that its arguments are on: see `kernel`."""

    def __init__(self, source, name=None, *, options="", each=False):
        self._built = {}  # by device
        self._lock = threading.Lock()
        self._source = (source, name, options, each)

    def on(self, device):
        """The kernel for one device."""
        with self._lock:
            found = self._built.get(device)
            if found is None:
                source, name, options, each = self._source
                found = self._built[device] = device.kernel(source, name, options=options, each=each)
            return found

    def __getitem__(self, grid):
        return lambda *args, **named: self(*args, grid=grid, **named)

    def __call__(self, *args, grid=None, local=None, queue=None):
        buffers = [one for one in args if isinstance(one, Buffer)]
        arrays = [one for one in args if not isinstance(one, Buffer) and hasattr(one, "__dlpack__")]
        if queue is not None and not isinstance(queue, Queue):
            raise InvalidArgument("`queue` is an `onebuf.Queue`")
        if not arrays:
            device = queue.device if queue is not None else _device_of(buffers)
            self.on(device)(*args, grid=grid, local=local, queue=queue)
            return
        if buffers:
            raise InvalidArgument("arrays and buffers in one launch: wrap the arrays with `Hub.from_dlpack`")
        self._on_host(args, grid, local)

    def _on_host(self, args, grid, local):
        """Wraps the arrays, launches on a CPU's device, and returns when their memory has the results."""
        hub = _default_hub()
        device = _cpu(hub)
        kernel = self.on(device)
        if len(args) != len(kernel.parameters):
            raise InvalidArgument(
                f"kernel `{kernel.name}` takes {len(kernel.parameters)} arguments, {len(args)} were given"
            )
        wrapped = {}
        taken = []
        for one in args:
            if hasattr(one, "__dlpack__") and getattr(one, "ndim", 1) > 0:
                if id(one) not in wrapped:
                    # In place where the array is aligned as the driver needs it, else by a copy, which the hub's ledger counts.
                    wrapped[id(one)] = hub.from_dlpack(one, share=[device], trust_declared=True)
                one = wrapped[id(one)]
            taken.append(one)
        kernel(*taken, grid=grid, local=local)
        for buffer in wrapped.values():
            # To the host: what the kernel wrote is in the array after this.
            with buffer.map("r"):
                pass


def _device_of(buffers):
    """The OpenCL device that the first buffer is shared with."""
    if not buffers:
        raise InvalidArgument("a kernel without buffers needs a device: use `Device.kernel`")
    hub = buffers[0].hub
    for route in buffers[0].plan()["routes"]:
        device = hub.device(route["to"])
        if device.api == "opencl":
            return device
    raise InvalidArgument("the buffer is not shared with an OpenCL device")


def kernel(source, name=None, *, options="", each=False):
    """An OpenCL kernel for buffers and for arrays of NumPy, PyTorch and others in the host's memory.

    It is compiled once for each device: on buffers that device is the OpenCL device that the first one is shared with; arrays of the
    host are wrapped in place, and computed on by an OpenCL driver for the CPU. A launch on arrays returns when they have the
    results; a launch on buffers returns when it is enqueued.

    The kernel is trusted to stay inside of its arguments; see `Device.kernel` for `each`.
    """
    return TensorKernel(source, name, options=options, each=each)
