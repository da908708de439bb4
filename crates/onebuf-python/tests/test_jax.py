"""JAX on the CPU, both ways. Its arrays do not change, so buffers over them are read-only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onebuf as ob


def test_jax_takes_a_buffer(hub, cl, gain):
    x = hub.array(np.arange(4096, dtype=np.float32), share=[cl])
    gain(x, 2.0)
    array = jax.dlpack.from_dlpack(x)
    np.testing.assert_array_equal(np.asarray(jnp.sqrt(array)), np.sqrt(2 * np.arange(4096, dtype=np.float32)))
    del array


def test_a_buffer_takes_jaxs_memory_for_reading(hub, cl, gain):
    array = jnp.arange(4096, dtype=jnp.float32)
    y = hub.from_dlpack(array, share=[cl])
    assert y.readonly
    np.testing.assert_array_equal(y.read(), np.arange(4096))
    add = cl.kernel("kernel void add(global const float *x, global float *y) { y[get_global_id(0)] += x[get_global_id(0)]; }")
    z = hub.array(np.ones(4096, np.float32), share=[cl])
    add(y, z)
    np.testing.assert_array_equal(z.read(), np.arange(4096) + 1)
    with pytest.raises(ob.Unsupported, match="read-only"):
        gain(y, 2.0)
    np.testing.assert_array_equal(np.asarray(array), np.arange(4096))


def test_kernels_do_not_write_jaxs_arrays():
    array = jnp.ones(16)
    with pytest.raises(ob.Unsupported, match="read-only"):
        ob.kernel("kernel void f(global float *x) { x[get_global_id(0)] = 2; }")(array)
    assert bool((array == 1).all())
