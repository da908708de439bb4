"""JAX on a CUDA device, where it has one: buffers as its arrays and its arrays as buffers, in place."""

from on_gpu import cuda, hub  # noqa: F401, I001: first, because it skips where there is no GPU

import gc
import os

import numpy as np
import pytest

import onebuf as ob

# Else JAX takes three quarters of the memory.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
jax = pytest.importorskip("jax")
try:
    DEVICE = jax.devices("cuda")[0]
except RuntimeError as why:
    pytest.skip(f"JAX has no CUDA device: {why}", allow_module_level=True)

N = (4 << 20) + 100


@pytest.fixture(scope="module")
def step():
    return ob.kernel("kernel void step(global int *x, int mul, int add) { size_t i = get_global_id(0); x[i] = x[i] * mul + add; }")


def test_a_buffer_as_an_array(hub, cuda, step):
    x = hub.empty(N, np.int32, share=[cuda], memory_kind="device")
    x[...] = np.arange(N)
    with x.on(cuda) as v:
        address = v.address
    for turn in range(20):
        step.on(cuda)(x, 1, 1)
        a = jax.dlpack.from_dlpack(x)
        assert a.devices() == {DEVICE} and a.unsafe_buffer_pointer() == address, "in place"
        assert bool((a == jax.numpy.arange(N, dtype=np.int32) + turn + 1).all()), "every element, after our kernel"
        assert not bool((a == jax.numpy.arange(N, dtype=np.int32) + turn).all()), "the control: before it"
        assert x.device_users == 1
        del a
        gc.collect()
        assert x.device_users == 0
    np.testing.assert_array_equal(x.read(), np.arange(N) + 20)


def test_an_array_as_a_buffer(hub, cuda, step):
    @jax.jit
    def slow(a):
        return jax.lax.fori_loop(0, 2000, lambda _, b: b * 3 + 1, a)

    a = slow(jax.device_put(np.arange(N, dtype=np.int32), DEVICE))
    y = hub.from_dlpack(a)  # after JAX's work, which may still run
    expected = np.arange(N, dtype=np.uint32)
    for _ in range(2000):
        expected = expected * np.uint32(3) + np.uint32(1)
    np.testing.assert_array_equal(y.read().view(np.uint32), expected)
    with pytest.raises(ob.Unsupported, match="read-only"):
        y.write(0)
    out = hub.empty(N, np.int32, share=[cuda])
    copy = ob.kernel("kernel void copy(global const int *x, global int *y) { y[get_global_id(0)] = x[get_global_id(0)] + 1; }")
    copy.on(cuda)(y, out)
    np.testing.assert_array_equal(out.read().view(np.uint32), expected + np.uint32(1))
    with pytest.raises(ob.Unsupported, match="read-only"):
        step.on(cuda)(y, 1, 1)
