"""JAX on the CPU, both ways. Its arrays do not change, so buffers over them are read-only."""

import gc
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onebuf as ob

COUNT = 60 * 1024 + 3  # sixty pages of float32, and a bit
NUMBERS = np.arange(COUNT, dtype=np.float32)


def address(x):
    """Where the host has the buffer."""
    with x.on(x.hub.host, write=False) as view:
        return view.address


def released(x):
    """Waits until JAX, which works in the background, has given the buffer back."""
    end = time.monotonic() + 30
    while x.host_users:
        assert time.monotonic() < end, "JAX still has the buffer"
        gc.collect()
        time.sleep(0.001)


@pytest.mark.parametrize("take", [jax.dlpack.from_dlpack, jnp.from_dlpack], ids=["jax.dlpack", "jax.numpy"])
def test_jax_takes_a_buffer_in_place(hub, cl, gain, take):
    x = hub.array(NUMBERS, share=[cl])
    gain(x, 2.0)
    at, implied = address(x), hub.ledger.implied_bytes
    array = take(x)
    assert array.unsafe_buffer_pointer() == at and hub.ledger.implied_bytes == implied
    assert jnp.array(array, copy=True).unsafe_buffer_pointer() != at, "the control"
    np.testing.assert_array_equal(np.asarray(array), 2 * NUMBERS)
    np.testing.assert_array_equal(np.asarray(jax.jit(jnp.sqrt)(array)), np.sqrt(2 * NUMBERS))
    assert x.host_users == 1
    with pytest.raises(ob.Busy, match=f"lent to the host \\(a DLPack consumer\\), so {cl.id} cannot use it"):
        gain(x, 2.0)
    del array
    released(x)
    gain(x, 0.5)
    np.testing.assert_array_equal(x.read(), NUMBERS)


def test_a_copy_is_jaxs_own(hub, cl, gain):
    x = hub.array(NUMBERS, share=[cl])
    array = jnp.array(jnp.from_dlpack(x), copy=True).block_until_ready()
    released(x)
    gain(x, 2.0)
    np.testing.assert_array_equal(np.asarray(array), NUMBERS)
    np.testing.assert_array_equal(x.read(), 2 * NUMBERS)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64"])
def test_types_both_ways(hub, dtype):
    values = (np.arange(15) % 2).reshape(3, 5).astype(dtype)
    array = jax.dlpack.from_dlpack(hub.array(values))
    assert array.dtype == dtype and array.shape == (3, 5)
    np.testing.assert_array_equal(np.asarray(array), values)
    back = hub.from_dlpack(array)
    assert back.dtype == dtype and back.shape == (3, 5) and back.readonly
    np.testing.assert_array_equal(back.read(), values)


def test_a_buffer_takes_jaxs_memory_for_reading(hub, cl, gain):
    array = jax.jit(lambda: jnp.arange(COUNT, dtype=jnp.float32) * 3)()
    y = hub.from_dlpack(array, share=[cl])
    assert y.readonly
    np.testing.assert_array_equal(y.read(), 3 * NUMBERS)
    add = cl.kernel("kernel void add(global const float *x, global float *y) { y[get_global_id(0)] += x[get_global_id(0)]; }")
    z = hub.array(np.ones(COUNT, np.float32), share=[cl])
    add(y, z)
    np.testing.assert_array_equal(z.read(), 3 * NUMBERS + 1)
    for write in (lambda: gain(y, 2.0), lambda: y.write(0), lambda: y.fill(0), lambda: y.map().__enter__()):
        with pytest.raises(ob.Unsupported, match="read-only"):
            write()
    np.testing.assert_array_equal(np.asarray(array), 3 * NUMBERS)
    with y.map("r") as a:
        assert np.asarray(a).ctypes.data == array.unsafe_buffer_pointer(), "in place"
    # JAX asks without a version, and memory that must not be written cannot be marked then.
    with pytest.raises(BufferError, match="max_version"):
        jax.dlpack.from_dlpack(y)


def test_jaxs_memory_lives_as_long_as_the_buffer(hub):
    array = jnp.arange(COUNT, dtype=jnp.float32)
    y = hub.from_dlpack(array)
    del array
    gc.collect()
    churn = [jnp.full(COUNT, number, jnp.float32) for number in range(20)]
    np.testing.assert_array_equal(y.read(), NUMBERS)
    del churn


def test_kernels_do_not_write_jaxs_arrays():
    array = jnp.ones(16)
    with pytest.raises(ob.Unsupported, match="read-only"):
        ob.kernel("kernel void f(global float *x) { x[get_global_id(0)] = 2; }")(array)
    assert bool((array == 1).all())
    total = np.zeros(16, np.float32)
    ob.kernel("kernel void f(global const float *x, global float *y) { y[get_global_id(0)] = x[get_global_id(0)]; }")(array, total)
    assert (total == 1).all()


def test_what_cannot_be_exchanged_says_why(hub):
    with pytest.raises(ob.InvalidArgument, match="bfloat16"):
        hub.from_dlpack(jnp.ones(4, jnp.bfloat16))
    with pytest.raises(ob.InvalidArgument, match="no element"):
        hub.from_dlpack(jnp.ones(0))
    gone = jnp.ones(64)
    gone.delete()
    with pytest.raises(ob.InvalidArgument, match="deleted"):
        hub.from_dlpack(gone)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(hub.from_dlpack)(jnp.ones(4))
    x = hub.array(NUMBERS)
    with pytest.raises(Exception, match="strid"):
        jax.dlpack.from_dlpack(x[::2])
    with pytest.raises(BufferError, match="negative stride"):
        jax.dlpack.from_dlpack(x[::-1])
    released(x)
