"""Kernels: parameters by reflection, arguments, grids."""

import threading

import numpy as np
import pytest

import onebuf as ob

from conftest import GAIN


def test_declared_parameters_need_no_name_where_the_driver_lists_one_kernel(hub, cl):
    kernel = cl.kernel(GAIN, parameters=["float*", "float"])
    assert kernel.name == "gain"
    x = hub.array(np.ones(8, np.float32), share=[cl])
    kernel(x, 3.0)
    assert (x.read() == 3).all()
    with pytest.raises(ob.InvalidArgument, match="several kernels: name one of"):
        cl.kernel(GAIN + GAIN.replace("void gain", "void other"), parameters=["float*", "float"])


def test_parameters_come_from_the_compiler(cl):
    text = "kernel void f(global float2 *x, constant int *t, const uint n, float4 v, local double *l) { x[0].x = n + v.y + t[0]; l[0] = 1; }"
    kernel = cl.kernel(text)
    assert kernel.name == "f" and kernel.device == cl
    assert [word.split()[-1].strip("*") for word in kernel.parameters] == ["x", "t", "n", "v", "l"]
    assert kernel.writes == [True, False, False, False, False]
    assert "f(" in repr(kernel) and "Launch" in repr(kernel[4])


def test_launches_have_the_size_of_the_first_buffer(hub, cl):
    count = cl.kernel("kernel void count(global float2 *x) { x[get_global_id(0)] += (float2)(1, get_global_size(0)); }")
    x = hub.empty((4, 25), np.complex64, share=[cl])
    count(x)
    assert (x.read() == 1 + 100j).all()
    x = hub.empty(200, np.float32, share=[cl])
    count(x)
    np.testing.assert_array_equal(x.read().reshape(100, 2), [[1, 100]] * 100)


def test_grids_have_up_to_three_dimensions(hub, cl):
    text = """kernel void where(global uint *x) {
        size_t i = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0);
        x[i] = get_global_id(0) + 10 * get_global_id(1) + 100 * get_global_id(2);
    }"""
    where = cl.kernel(text)
    x = hub.empty((2, 3, 4), np.uint32, share=[cl])
    where[4, 3, 2](x)
    i, j, k = np.meshgrid(range(2), range(3), range(4), indexing="ij")
    np.testing.assert_array_equal(x.read(), k + 10 * j + 100 * i)
    where(x, grid=(4, 3, 2), local=(2, 1, 1))
    where[24](x, local=8)
    for wrong in ((0,), (1, 2, 3, 4)):
        with pytest.raises(ob.InvalidArgument):
            where[wrong](x)
    with pytest.raises(ob.InvalidArgument, match="dimensions"):
        where(x, grid=(4, 6), local=2)


def test_values_are_converted_and_checked(hub, cl):
    text = """kernel void v(global double *o, char c, uchar uc, short s, uint u, long l, float f, double d, float2 z, int4 w) {
        o[0] = c; o[1] = uc; o[2] = s; o[3] = u; o[4] = l; o[5] = f; o[6] = d; o[7] = z.x; o[8] = z.y; o[9] = w.w; }"""
    values = cl.kernel(text)
    o = hub.empty(10, np.float64, share=[cl])
    good = [-5, 200, -1000, 4_000_000_000, -(1 << 40), 0.5, np.float64(0.25), 3 + 4j, [1, 2, 3, np.int32(4)]]
    values[1](o, *good)
    np.testing.assert_array_equal(o.read(), [-5, 200, -1000, 4e9, -(1 << 40), 0.5, 0.25, 3, 4, 4])
    for at, wrong, why in [
        (0, 300, "does not fit 8 bits"),
        (3, 1 << 33, "does not fit 32 bits"),
        (0, 1.5, "integer is needed"),
        (5, "x", "number is needed"),
        (7, [1.0], "1 numbers where 2 are needed"),
        (8, 3, "a sequence of 4 numbers"),
    ]:
        given = list(good)
        given[at] = wrong
        with pytest.raises(ob.InvalidArgument, match=f"argument {at + 1} of kernel `v`.*{why}"):
            values[1](o, *given)


def test_half_precision_and_local_memory(hub, cl):
    text = """kernel void rev(global ushort *x, local ushort *l) {
        size_t i = get_local_id(0), n = get_local_size(0);
        l[i] = x[get_global_id(0)]; barrier(CLK_LOCAL_MEM_FENCE); x[get_global_id(0)] = l[n - 1 - i]; }"""
    x = hub.array(np.arange(16, dtype=np.uint16), share=[cl])
    reverse = cl.kernel(text)
    reverse(x, ob.Local(2 * 8), local=8)
    np.testing.assert_array_equal(x.read(), [*range(7, -1, -1), *range(15, 7, -1)])
    with pytest.raises(ob.InvalidArgument, match="onebuf.Local"):
        reverse(x, 16, local=8)
    half = hub.array(np.linspace(0, 1, 8).astype(np.float16), share=[cl])
    scale = cl.kernel("kernel void h(global half *x) { size_t i = get_global_id(0); vstore_half(2 * vload_half(i, x), i, x); }")
    scale(half)
    np.testing.assert_array_equal(half.read(), 2 * np.linspace(0, 1, 8).astype(np.float16))


def test_wrong_buffers_are_refused_with_the_reason(hub, cl, gain):
    good = hub.empty(64, share=[cl])
    for wrong, why in [
        (hub.empty(64, np.float64, share=[cl]), "float64 elements"),
        (hub.empty(64, np.int32, share=[cl]), "int32 elements"),
        (hub.empty(64, np.uint8, share=[cl]), "uint8 elements"),
        (good[::2], "not contiguous"),
        (np.zeros(64, np.float32), "a ndarray where"),
        (None, "a NoneType where"),
    ]:
        with pytest.raises(ob.InvalidArgument, match=f"argument 0 of kernel `gain` is `global float \\*x`: .*{why}"):
            gain(wrong, 1.0)
    with pytest.raises(ob.NotShared, match=cl.id) as caught:
        gain(hub.empty(64), 1.0)
    assert cl.id in caught.value.device
    with pytest.raises(ob.InvalidArgument, match="takes 2 arguments, 3"):
        gain(good, 1.0, 2.0)
    with pytest.raises(TypeError, match="block"):
        gain(good, 1.0, block=4)
    with pytest.raises(ob.InvalidArgument, match="must begin at a multiple"):
        gain(good[1:], 1.0)


def test_parts_of_a_buffer_are_launched_alone(hub, cl, gain):
    x = hub.array(np.ones((4, 4096), np.float32), share=[cl])
    gain(x[2], 5.0)
    np.testing.assert_array_equal(x.read()[:, 0], [1, 1, 5, 1])
    assert (x.read()[2] == 5).all()


def test_an_element_for_each_work_item_can_be_required(hub, cl):
    gain = cl.kernel(GAIN, each=True)
    x = hub.array(np.ones(100, np.float32), share=[cl])
    gain(x, 2.0)
    gain[50](x, 2.0)
    with pytest.raises(ob.InvalidArgument, match="100 elements for 101 work-items"):
        gain[101](x, 2.0)
    np.testing.assert_array_equal(x.read(), [4] * 50 + [2] * 50)


def test_sources_with_errors_or_several_kernels(cl):
    with pytest.raises(ob.BuildFailed, match="nonsense") as caught:
        cl.kernel("kernel void f(global float *x) { x[0] = nonsense; }")
    assert "nonsense" in caught.value.log and caught.value.device
    two = "kernel void a(global float *x) { x[0] = 1; } kernel void b(global float *x) { x[0] = 2; }"
    with pytest.raises(ob.InvalidArgument, match="name one of a, b"):
        cl.kernel(two)
    with pytest.raises(ob.InvalidArgument, match="no kernel `c`"):
        cl.kernel(two, "c")
    assert cl.kernel(two, "b").name == "b"
    with pytest.raises(ob.InvalidArgument, match="no buffer, number"):
        cl.kernel("typedef struct { float a, b; } pair; kernel void s(global float *x, pair p) { x[0] = p.a; }")


def test_options_reach_the_compiler(hub, cl):
    kernel = cl.kernel("kernel void f(global int *x) { x[get_global_id(0)] = VALUE; }", options="-DVALUE=42")
    x = hub.empty(4, np.int32, share=[cl])
    kernel(x)
    assert (x.read() == 42).all()


def test_queues_order_their_launches(hub, cl, gain):
    queue = cl.queue()
    x = hub.array(np.ones(1024, np.float32), share=[cl])
    for _ in range(5):
        gain(x, 2.0, queue=queue)
        gain(x, 0.5)
    gain(x, 3.0, queue=queue)
    queue.flush()
    queue.finish()
    cl.finish(timeout=10.0)
    assert (x.read() == 3).all()
    assert queue.device == cl and queue.int_ptr > 0 and cl.id in repr(queue)
    with pytest.raises(TypeError):
        gain(x, 1.0, queue=3)


def test_many_threads_launch_at_once(hub, cl, gain):
    buffers = [hub.array(np.ones(256, np.float32), share=[cl]) for _ in range(4)]

    def work(x):
        for _ in range(50):
            gain(x, 2.0)
            gain(x, 0.5)

    threads = [threading.Thread(target=work, args=(x,)) for x in buffers]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all((x.read() == 1).all() for x in buffers)


def test_kernels_for_arrays_and_buffers(hub, cl):
    gain = ob.kernel(GAIN)
    for size in (1, 7, 4096, 100_003):
        array = np.arange(size, dtype=np.float32)
        gain(array, 2.0)
        np.testing.assert_array_equal(array, 2 * np.arange(size))
    part = np.arange(64, dtype=np.float32)
    gain(part[5:21], 10.0)  # no driver's alignment: by a copy
    expected = np.arange(64, dtype=np.float32)
    expected[5:21] *= 10
    np.testing.assert_array_equal(part, expected)
    gain[16](part, 0.0)
    assert not part[:16].any() and part[16:].any()
    x = hub.array(np.ones(64, np.float32), share=[cl])
    gain(x, 4.0)
    assert (x.read() == 4).all()
    for wrong, why in [
        ((np.zeros(4), 1.0), "float64 elements"),
        ((np.zeros((4, 4), np.float32)[:, ::2], 1.0), "not contiguous"),
        ((x, np.zeros(4, np.float32)), "arrays and buffers"),
        ((1.0,), "none of the arguments is"),
        (([1.0, 2.0], 1.0), "none of the arguments is"),
        ((np.zeros(4, np.float32),), "takes 2 arguments"),
    ]:
        with pytest.raises(ob.InvalidArgument, match=why):
            gain(*wrong)


ADD = "kernel void add(global const float *a, global const float *b, global float *c) { size_t i = get_global_id(0); c[i] = a[i] + b[i]; }"


def test_one_buffer_is_several_arguments(hub, cl):
    add = cl.kernel(ADD)
    start = np.arange(5000, dtype=np.float32)
    x, y = hub.array(start, share=[cl]), hub.array(2 * start, share=[cl])
    add(x, x, y)
    np.testing.assert_array_equal(y.read(), 2 * start)
    add(x, y, x)
    np.testing.assert_array_equal(x.read(), 3 * start)
    add(x, x, x)
    np.testing.assert_array_equal(x.read(), 6 * start)
    np.testing.assert_array_equal(y.read(), 2 * start)
    parts = hub.array(np.ones((2, 4096), np.float32), share=[cl])
    add(parts[1], parts[1], parts[1])
    np.testing.assert_array_equal(parts.read()[:, ::4095], [[1, 1], [2, 2]])
    # Memory that overlaps in part has no one view.
    with pytest.raises(ob.Busy):
        add(parts[0], parts[1], parts.reshape(-1))
    np.testing.assert_array_equal(parts.read()[:, ::4095], [[1, 1], [2, 2]])


def test_launches_begin_at_an_offset(hub, cl, gain):
    x = hub.array(np.ones(100, np.float32), share=[cl])
    gain[10](x, 3.0, offset=50)
    np.testing.assert_array_equal(np.flatnonzero(x.read() == 3), np.arange(50, 60))
    two = cl.kernel("kernel void f(global int *x) { x[get_global_id(1) * 8 + get_global_id(0)] = 1; }")
    y = hub.empty((8, 8), np.int32, share=[cl])
    two[2, 3](y, offset=(4, 5))
    expected = np.zeros((8, 8), np.int32)
    expected[5:8, 4:6] = 1
    np.testing.assert_array_equal(y.read(), expected)
    with pytest.raises(ob.InvalidArgument, match="as many dimensions"):
        two[2, 3](y, offset=4)
    each = cl.kernel(ADD, each=True)
    each[50](x, x, x, offset=50)
    for size, offset in ((50, 51), (101, None)):
        with pytest.raises(ob.InvalidArgument, match="has 100 elements for 101 work-items"):
            each[size](x, x, x, offset=offset)
    array = np.ones(64, np.float32)
    ob.kernel(ADD)[8](array, array, array, offset=8)
    np.testing.assert_array_equal(np.flatnonzero(array == 2), np.arange(8, 16))


def test_a_binary_is_loaded_again(hub, cl):
    kept = cl.kernel(ADD).binary
    assert isinstance(kept, bytes) and len(kept) > 100
    again = cl.kernel(kept, "add", parameters=["const float*", "const float*", "float*"])
    x = hub.array(np.arange(4096, dtype=np.float32), share=[cl])
    again(x, x, x)
    np.testing.assert_array_equal(x.read(), 2 * np.arange(4096))
    with pytest.raises(ob.Error):
        cl.kernel(b"no binary of this driver" * 10, "add", parameters=["float*"])


def test_languages_are_checked(cl):
    with pytest.raises(ob.InvalidArgument, match='a text in the language "binary"'):
        cl.kernel(ADD, language="binary")
    with pytest.raises(ob.InvalidArgument, match='bytes in the language "ptx"'):
        cl.kernel(b"abc", language="ptx")
    with pytest.raises(ob.Unsupported, match="OpenCL C|opencl"):
        cl.kernel(".version 8.0", language="ptx")
    with pytest.raises(TypeError):
        cl.kernel(3)
    with pytest.raises(ob.InvalidArgument, match="no kernel"):
        cl.kernel("float f(float x) { return x; }")
