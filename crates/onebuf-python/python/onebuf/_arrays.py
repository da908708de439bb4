"""NumPy's side of buffers: arrays that end with a map, and conversions."""

import weakref

import numpy as np

from .errors import InvalidArgument


def source(data, dtype):
    """An array that can be copied into a buffer."""
    return np.ascontiguousarray(data, dtype=dtype).reshape(np.shape(data))


def given(data, shape, dtype):
    """Data for `Buffer.write`: contiguous, of the buffer's type, broadcast to its shape."""
    if type(data).__module__.startswith("torch"):
        data = data.detach().cpu().numpy()
    array = np.asarray(data, dtype=dtype)
    if array.shape != shape:
        try:
            array = np.broadcast_to(array, shape)
        except ValueError as why:
            raise InvalidArgument(f"data of shape {array.shape} for a buffer of shape {shape}") from why
    # An array without dimensions has no shape in the buffer protocol.
    return np.ascontiguousarray(array)


def target(shape, dtype, out):
    """The array that `Buffer.read` fills."""
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype:
        raise InvalidArgument(f"`out` must be a NumPy array of shape {shape} and type {dtype}")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise InvalidArgument("`out` must be C-contiguous and writable")
    return out


def over(memory, shape, dtype):
    """An array over memory that a transfer has filled."""
    return np.frombuffer(memory, dtype).reshape(shape)


def element(value, dtype):
    """The bytes of one element; None for more than one."""
    array = np.asarray(value, dtype=dtype)
    return array.tobytes() if array.ndim == 0 else None


def in_place(buffer, dtype, copy):
    """An array over a buffer's memory; an error where the buffer protocol refuses it."""
    array = np.asarray(memoryview(buffer))
    if dtype is not None and np.dtype(dtype) != array.dtype:
        return array.astype(dtype)
    return array.copy() if copy else array


def copy_out(mapping, to):
    """Copies elements that are not contiguous."""
    with mapping as array:
        np.copyto(to, array._array)


def copy_in(mapping, data):
    """Copies into elements that are not contiguous."""
    with mapping as array:
        array._array[...] = np.asarray(data)


class _Block:
    """What the arrays of one `with` block share."""

    def __init__(self):
        # By identity: arrays compare by their elements.
        self.arrays = weakref.WeakValueDictionary()


def mapped(mapping):
    """The array of a map's block, and a weak reference to it."""
    array = MappedArray(np.asarray(memoryview(mapping)), _Block())
    return array, weakref.ref(array)


def _plain(value):
    """Arguments for NumPy: the arrays inside of mapped ones."""
    if isinstance(value, MappedArray):
        return value._array
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value


def _of_the_array(name, what):
    """A property that the array inside has."""
    return property(lambda self: getattr(self._array, name), doc=what)


class MappedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """A buffer's memory in place, as a NumPy array that ends with its `with` block.

    It takes part in NumPy's functions, operators and indexing as an array does; parts of it are arrays of this kind, too, and end
    with the same block. Results of computations are ordinary arrays. `numpy.asarray` returns the array inside, which must not outlive
    the block.

    >>> import onebuf, numpy as np
    >>> x = onebuf.discover().empty(4, np.float32)
    >>> with x.map() as a:
    ...     a[:] = [1, 2, 3, 4]
    ...     part = a[1:3]
    ...     part *= 10
    ...     total = float(a.sum())
    >>> total
    55.0
    >>> a[0]
    Traceback (most recent call last):
        ...
    onebuf.errors.InvalidArgument: the map has ended with its block: map the buffer again, or copy inside of the block
    """

    __array_priority__ = 100.0

    shape = _of_the_array("shape", "The number of elements along each axis.")
    strides = _of_the_array("strides", "The distance in bytes between neighbours along each axis.")
    dtype = _of_the_array("dtype", "The elements' type.")
    ndim = _of_the_array("ndim", "The number of axes.")
    size = _of_the_array("size", "The number of elements.")
    nbytes = _of_the_array("nbytes", "The bytes of all elements.")

    def __init__(self, inner, block):
        self._inner = inner
        self._block = block
        block.arrays[id(self)] = self

    def _end(self):
        """Ends all arrays of the block."""
        for array in list(self._block.arrays.values()):
            array._inner = None

    @property
    def _array(self):
        if self._inner is None:
            raise InvalidArgument(
                "the map has ended with its block: map the buffer again, or copy inside of the block"
            )
        return self._inner

    def _result(self, value):
        """A result: an array of this kind, if it is a part of the same memory."""
        if isinstance(value, np.ndarray) and np.may_share_memory(value, self._array):
            return MappedArray(value, self._block)
        if isinstance(value, tuple):
            return tuple(self._result(one) for one in value)
        return value

    def __array__(self, dtype=None, copy=None):
        array = self._array
        if dtype is not None and np.dtype(dtype) != array.dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **named):
        inputs = _plain(inputs)
        if out is not None:
            named["out"] = tuple(_plain(one) for one in out)
        result = getattr(ufunc, method)(*inputs, **_plain(named))
        if out is not None:
            return out[0] if len(out) == 1 else out
        return self._result(result) if result is not None else None

    def __array_function__(self, function, types, args, named):
        return self._result(function(*_plain(args), **_plain(named)))

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._array, name)
        if not callable(value):
            return self._result(value)

        def method(*args, **named):
            return self._result(getattr(self._array, name)(*_plain(args), **_plain(named)))

        return method

    def __getitem__(self, key):
        return self._result(self._array[_plain(key)])

    def __setitem__(self, key, value):
        self._array[_plain(key)] = _plain(value)

    def __len__(self):
        return len(self._array)

    def __iter__(self):
        return (self[at] for at in range(len(self)))

    def __contains__(self, value):
        return _plain(value) in self._array

    def __bool__(self):
        return bool(self._array)

    def __int__(self):
        return int(self._array)

    def __float__(self):
        return float(self._array)

    def __complex__(self):
        return complex(self._array)

    def __index__(self):
        return self._array.__index__()

    def __matmul__(self, other):
        return np.matmul(self._array, _plain(other))

    def __rmatmul__(self, other):
        return np.matmul(_plain(other), self._array)

    def __dlpack__(self, **named):
        return self._array.__dlpack__(**named)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __repr__(self):
        if self._inner is None:
            return "<onebuf.MappedArray, ended>"
        return f"MappedArray({self._inner!r})"

    def __str__(self):
        return str(self._array)
