"""Maths libraries on buffers: here by the CPU."""

import numpy as np
import pytest

import onebuf as ob

RANDOM = np.random.default_rng(5)


def made(shape, dtype):
    values = RANDOM.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * RANDOM.standard_normal(shape)
    return values.astype(dtype)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_transforms_are_numpys(hub, dtype):
    signal, implied = made((3, 5, 96), dtype), hub.ledger.implied_bytes
    x, y = hub.array(signal), hub.empty(signal.shape, dtype)
    ob.fft(x, y)
    expected = np.fft.fft(signal)
    close = 1e-4 if dtype == "complex64" else 1e-10
    assert np.allclose(y.read(), expected, atol=close) and (x.read() == signal).all()
    assert not np.allclose(x.read(), expected, atol=close), "the control"
    ob.fft(y, inverse=True)
    assert np.allclose(y.read(), signal * 96, atol=96 * close)
    ob.fft(x[1])
    assert np.allclose(x.read()[1], expected[1], atol=close) and (x.read()[2] == signal[2]).all()
    assert hub.ledger.implied_bytes == implied


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_products_are_numpys(hub, dtype):
    left, right, before = made((7, 40), dtype), made((40, 13), dtype), made((7, 13), dtype)
    a, b, c = (hub.array(one) for one in (left, right, before))
    ob.matmul(a, b, c, alpha=2, beta=0.5)
    close = 1e-4 if dtype in ("float32", "complex64") else 1e-11
    assert np.allclose(c.read(), 2 * left @ right + 0.5 * before, atol=close)
    ob.matmul(a, b, c, queue=hub.host.queue())
    assert np.allclose(c.read(), left @ right, atol=close)
    assert not np.allclose(c.read(), 2 * left @ right, atol=close), "the control"


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize("op_a", ["none", "transpose", "adjoint"])
@pytest.mark.parametrize("op_b", ["none", "transpose", "adjoint"])
def test_products_of_transposed_matrices(hub, dtype, op_a, op_b):
    ops = {"none": lambda x: x, "transpose": lambda x: x.T, "adjoint": lambda x: x.conj().T}
    left = made((7, 9) if op_a == "none" else (9, 7), dtype)
    right = made((9, 5) if op_b == "none" else (5, 9), dtype)
    a, b, c = hub.array(left), hub.array(right), hub.empty((7, 5), dtype)
    ob.matmul(a, b, c, op_a=op_a, op_b=op_b)
    assert np.allclose(c.read(), ops[op_a](left) @ ops[op_b](right), atol=1e-4)
    if op_a == "adjoint" and dtype != "float64":
        assert not np.allclose(c.read(), left.T @ ops[op_b](right), atol=1e-4), "the control"


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_systems_are_numpys(hub, dtype):
    matrix, vectors = made((30, 30), dtype), made((4, 30), dtype)
    close = 1e-2 if dtype in ("float32", "complex64") else 1e-8
    a, b = hub.array(matrix), hub.array(vectors)
    lu = ob.solve(a, b)
    expected = np.linalg.solve(matrix, vectors.T).T
    assert np.allclose(b.read(), expected, atol=close) and lu.size == 30
    assert not np.allclose(b.read(), np.linalg.solve(matrix.T, vectors.T).T, atol=close), "the control"
    one = hub.array(vectors[2])
    lu.solve(one)
    assert np.allclose(one.read(), expected[2], atol=close)
    turned = hub.array(vectors[1])
    lu.solve(turned, transpose=True)
    assert np.allclose(turned.read(), np.linalg.solve(matrix.T, vectors[1]), atol=close)
    inverse = hub.empty((30, 30), dtype)
    lu.invert(inverse)
    assert np.allclose(inverse.read(), np.linalg.inv(matrix), atol=close)
    factors = ob.lu(hub.array(matrix), queue=hub.host.queue())
    again = hub.array(vectors[0])
    factors.solve(again)
    assert np.allclose(again.read(), expected[0], atol=close) and "30 x 30" in repr(factors)


def test_systems_that_cannot_be_solved(hub, cl):
    singular = hub.array(np.ones((3, 3)))
    with pytest.raises(ob.InvalidArgument, match="singular"):
        ob.lu(singular)
    matrix = np.eye(3) * 2
    a = hub.array(matrix)
    for wrong in (hub.empty(4, "float64"), hub.empty((3, 2), "float64"), hub.empty((2, 3, 3), "float64"), hub.empty(3), hub.empty(6, "float64")[::2]):
        with pytest.raises(ob.InvalidArgument):
            ob.solve(a, wrong)
        assert (a.read() == matrix).all(), "nothing was factored"
    for wrong in (hub.empty((3, 4)), hub.empty(3), hub.empty((2, 2), "int32")):
        with pytest.raises(ob.InvalidArgument):
            ob.lu(wrong)
    lu = ob.lu(a)
    for call in (lambda: lu.invert(hub.empty((3, 4), "float64")), lambda: lu.invert(hub.empty((3, 3))), lambda: lu.solve(hub.empty(3))):
        with pytest.raises(ob.InvalidArgument):
            call()
    with pytest.raises(ob.Unsupported):
        ob.lu(hub.empty((4, 4), share=[cl]), queue=cl.queue())
    with np.testing.assert_raises(ob.Busy):
        with a.map():
            lu.solve(hub.empty(3, "float64"))


def test_they_are_ordered_with_kernels(hub, cl, gain):
    signal = made((64,), "complex64")
    x = hub.array(signal, share=[cl])
    gain(x.view("float32"), 3.0)
    ob.fft(x)
    gain(x.view("float32"), 2.0)
    assert np.allclose(x.read(), 6 * np.fft.fft(signal), atol=1e-3)


def test_bad_input_is_an_exception(hub, cl):
    real, matrix, other = hub.empty(8), hub.empty((2, 3)), hub.empty((3, 2), "float64")
    signal = hub.empty((4, 8), "complex64")
    for call in (
        lambda: ob.fft(real),
        lambda: ob.fft(signal, real),
        lambda: ob.fft(signal[:, ::2]),
        lambda: ob.matmul(matrix, matrix, matrix),
        lambda: ob.matmul(matrix, other, hub.empty((2, 2))),
        lambda: ob.matmul(real, matrix, matrix),
        lambda: ob.matmul(matrix, matrix, hub.empty((2, 2)), op_b="none"),
        lambda: ob.matmul(matrix, matrix, hub.empty((2, 2)), op_b="turned"),
        lambda: ob.matmul(hub.empty((2, 2), "int32"), hub.empty((2, 2), "int32"), hub.empty((2, 2), "int32")),
    ):
        with pytest.raises(ob.InvalidArgument):
            call()
    with pytest.raises(TypeError):
        ob.fft(np.zeros(4, np.complex64))
    with pytest.raises(ob.Unsupported):
        ob.fft(hub.empty(4, "complex64", share=[cl]), queue=cl.queue())
    array = np.asarray(signal)
    with pytest.raises(ob.Busy):
        ob.fft(signal)
    del array
