"""Buffers: shapes, types, slices, reads and writes."""

import gc

import numpy as np
import pytest

import onebuf as ob

DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


def numbers(shape, dtype, seed=0):
    made = np.random.default_rng(seed).integers(0, 100, shape)
    return (made + 1j * made[::-1]).astype(dtype) if np.dtype(dtype).kind == "c" else made.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_goes_in_and_out(hub, cl, dtype):
    data = numbers((7, 11), dtype)
    x = hub.array(data, share=[cl])
    assert (x.shape, x.dtype, x.strides) == (data.shape, data.dtype, data.strides)
    assert (x.ndim, x.size, x.nbytes, x.itemsize, len(x)) == (2, 77, data.nbytes, data.itemsize, 7)
    np.testing.assert_array_equal(x.read(), data)
    with x.map("r") as a:
        assert a.dtype == data.dtype
        np.testing.assert_array_equal(a, data)
    np.testing.assert_array_equal(np.asarray(x), data)


def test_a_new_buffer_is_zero(hub, cl):
    assert not hub.empty((3, 5), np.complex128, share=[cl]).read().any()


@pytest.mark.parametrize(
    "shape, dtype, why",
    [
        ((), "S4", "S4"),
        (0, "float32", "no element"),
        ((3, 0), "float32", "no element"),
        (-1, "float32", "negative"),
        ((1 << 40, 1 << 40), "float32", "larger than any memory"),
        ("x", "float32", "shape"),
        (4, ">f4", ">f4"),
    ],
)
def test_wrong_shapes_and_types_are_refused(hub, shape, dtype, why):
    with pytest.raises(ob.InvalidArgument, match=why):
        hub.empty(shape, dtype)


KEYS = [
    3,
    -1,
    slice(1, 5),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(6, 1, -2),
    (slice(None), 2),
    (2, slice(1, 4)),
    (Ellipsis, 0),
    (1, Ellipsis),
    (slice(1, 3), slice(None, None, 3), -2),
    Ellipsis,
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_slices_are_the_same_memory_as_numpy_says(hub, cl, key):
    data = numbers((8, 9, 5), "int32")
    x = hub.array(data, share=[cl])
    part = x[key]
    assert (part.shape, part.strides) == (data[key].shape, data[key].strides) or data[key].ndim == 0
    np.testing.assert_array_equal(part.read(), data[key])
    before = hub.ledger.implied_bytes
    part.write(7)
    data[key] = 7
    np.testing.assert_array_equal(x.read(), data)
    x[key] = 9
    data[key] = 9
    np.testing.assert_array_equal(x.read(), data)
    assert hub.ledger.implied_bytes == before, "slices copy nothing that was not asked for"


def test_wrong_indices_are_refused(hub):
    x = hub.empty((4, 4))
    for key, error in ((4, IndexError), ((0, 0, 0), ob.InvalidArgument), (slice(2, 2), ob.InvalidArgument)):
        with pytest.raises(error):
            x[key]
    with pytest.raises(ob.InvalidArgument, match="copy"):
        x[np.array([True] * 4)]


def test_other_shapes_and_types_of_the_same_bytes(hub):
    x = hub.array(np.arange(24, dtype=np.float32))
    np.testing.assert_array_equal(x.reshape(4, 6)[1:3].read(), np.arange(24).reshape(4, 6)[1:3])
    assert x.reshape((2, 12)).shape == (2, 12)
    np.testing.assert_array_equal(x.view("uint32").read(), np.arange(24, dtype=np.float32).view("uint32"))
    assert x.view(np.complex64).shape == (12,) and x.view("uint8").shape == (96,)
    for wrong in (lambda: x.reshape(5, 5), lambda: x[::2].reshape(3, 4), lambda: x[:3].view("float64")):
        with pytest.raises(ob.InvalidArgument):
            wrong()


def test_reads_and_writes_check_what_they_are_given(hub):
    x = hub.empty((2, 3))
    out = np.empty((2, 3), np.float32)
    x.write(np.arange(3))
    assert x.read(out) is out
    np.testing.assert_array_equal(out, [[0, 1, 2]] * 2)
    for wrong in (np.empty((3, 2), np.float32), np.empty((2, 3)), np.empty((3, 2), np.float32).T, [1, 2]):
        with pytest.raises(ob.InvalidArgument):
            x.read(wrong)
    with pytest.raises(ob.InvalidArgument, match="shape"):
        x.write(np.zeros((5, 5)))


def test_a_freed_buffer_is_an_error(hub, gain, cl):
    x = hub.array(np.ones(4096, np.float32), share=[cl])
    part = x[1024:2048]
    x.free()
    x.free()
    for use in (x.read, x.explain, x.map, lambda: x.write(1), lambda: gain(x, 1.0), lambda: x[0], lambda: memoryview(x)):
        with pytest.raises((ob.InvalidArgument, BufferError), match="freed"):
            use()
    assert "freed" in repr(x)
    gain(part, 3.0)
    assert (part.read() == 3).all(), "slices keep the memory"


def test_a_copy_instead_of_a_share_would_be_noticed(hub, cl, gain):
    """The control of the tests for zero copies: a copy differs from the buffer afterwards."""
    x = hub.array(np.ones(4096, np.float32), share=[cl])
    with x.map() as a:
        copied = np.array(a)
    gain(x, 2.0)
    assert not (copied == x.read()).any()
    shared = np.asarray(x)
    np.testing.assert_array_equal(shared, x.read())


def test_explanations_say_where_the_memory_is(hub, cl):
    x = hub.empty(16, share=[cl], name="signal")
    assert cl.id in x.explain() and x.plan()["allocate_on"] == cl.id
    assert x.hub[cl.id] == cl and x.contiguous and not x.readonly and x.offset == 0
    assert "float32" in repr(x) and cl.id in repr(x)
    with pytest.raises(ob.InvalidArgument, match="memory_kind"):
        hub.empty(16, memory_kind="marble")


def test_policies_forbid_copies():
    hub = ob.discover(only=["opencl"], copies="forbid")
    devices = [device for device in hub.devices if device.api == "opencl"]
    if len(devices) > 1 and not hub.zero_copy(*devices):
        with pytest.raises(ob.CopyForbidden) as caught:
            hub.empty(1 << 20, share=devices)
        assert caught.value.route and caught.value.why


def test_memory_is_given_back(hub, cl):
    """Buffers that are dropped do not add up."""

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def turn():
        for _ in range(40):
            x = hub.empty(1 << 20, share=[cl])
            x.write(1)
            with x.map() as a:
                a += 1
            del x, a
        gc.collect()

    turn()
    before = resident()
    for _ in range(3):
        turn()
    assert resident() - before < 64 << 20, "480 MiB were allocated"
