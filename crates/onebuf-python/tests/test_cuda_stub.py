"""Buffers, DLPack and kernels on CUDA and HIP devices, over the repository's stub drivers: each test is a process of its own."""

import pytest

from stub_gpu import play

START = """
hub = ob.discover(without=["gl", "vulkan"])
api = os.environ["STUB_API"]
gpu, kind = hub[f"{api}:0"], (2, 0) if api == "cuda" else (10, 0)
cl = hub["opencl:0"]
stub = Stub()
N = 3000
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stub")


@pytest.fixture(params=["cuda", "hip"])
def run(request, folder):
    return lambda text, **env: play(folder, START + text, request.param, **env)


def test_an_export_is_the_memory_itself_and_is_ordered_both_ways(run):
    run("""
x = hub.empty((3, 1000), np.uint32, share=[gpu], memory_kind="device")
assert x.__dlpack_device__() == kind
x[...] = 1
stream = stub.stream()
t = Consumed(x.__dlpack__(stream=stream, max_version=(1, 1)))
assert t.versioned and t.flags == 0 and t.device == kind and t.shape == (3, 1000) and t.strides == (1000, 1)
for _ in range(20):
    stub.fill(t.address, 7, N, stream)
stub.fill(t.address, 8, N, stream)                 # takes a while: the stub's commands are slow
assert x.device_users == 1
assert stub.busy(stream), "the control: the work is not done yet"
t.delete()
assert x.device_users == 0
assert (x.read() == 8).all(), "a read comes after the borrower's work"
stub.sync(stream)
assert not hub.ledger.implied_bytes
old = Consumed(x.__dlpack__())
assert not old.versioned
old.delete()
""")


def test_consumers_wait_for_our_work(run):
    run("""
x = hub.empty(N, np.uint32, share=[gpu], memory_kind="device")
stream = stub.stream()
for turn in range(1, 20):
    x[...] = turn
    t = Consumed(x.__dlpack__(stream=stream))
    stub.sync(stream)
    assert set(stub.words(t.address, N)) == {turn}
    t.delete()
""")


def test_streams_of_the_protocol(run):
    run("""
x = hub.empty(N, np.uint32, share=[gpu])
good = [None, -1, 1, 2, stub.stream()] if api == "cuda" else [None, -1, 0, stub.stream()]
bad = [0, -2, "a"] if api == "cuda" else [1, 2, -2, "a"]
for stream in good:
    Consumed(x.__dlpack__(stream=stream)).delete()
for stream in bad:
    try:
        x.__dlpack__(stream=stream)
    except BufferError as why:
        assert isinstance(why, ob.Error), why
    else:
        raise AssertionError(stream)
assert x.device_users == 0
""")


def test_lent_to_one_device_until_the_deleter_has_run(run):
    run("""
x = hub.empty(N, np.uint32, share=[gpu, cl], trust_declared=True)
advance = cl.kernel(TEXT)
advance(x, 0, N, 0, 5)
t = Consumed(x.__dlpack__(stream=stub.stream()))
for use in [lambda: advance(x, 0, N, 1, 1), x.read, lambda: x.write(0), lambda: np.asarray(x), lambda: x.map().__enter__()]:
    try:
        use()
    except (ob.Busy, BufferError) as why:
        assert f"lent to {gpu.id} (a DLPack consumer)" in str(why), why
    else:
        raise AssertionError(use)
second = Consumed(x.__dlpack__(stream=stub.stream()))
assert second.address == t.address and x.device_users == 2
t.delete()
try:
    x.read()
except ob.Busy:
    pass
else:
    raise AssertionError("the second consumer has it")
thread = threading.Thread(target=second.delete)
thread.start(); thread.join()
np.testing.assert_array_equal(x.read(), np.arange(N) + 5)
with x.map() as a:
    try:
        x.__dlpack__()
    except BufferError as why:
        assert "lent to the host (a map" in str(why)
    else:
        raise AssertionError
host = Consumed(x.__dlpack__(dl_device=(1, 0)))
assert host.device == (1, 0)
host.delete()
for wrong in [(4, 0), (kind[0], 7), (1, 1)]:
    try:
        x.__dlpack__(dl_device=wrong)
    except BufferError:
        pass
    else:
        raise AssertionError(wrong)
""")


def test_a_kernel_on_a_lent_buffer_is_ordered_with_the_borrower(run):
    if_cuda = """
if api == "cuda":
    advance = ob.kernel(TEXT)
    x = hub.empty(N, np.uint32, share=[gpu], memory_kind="device")
    x[...] = 1
    stream = stub.stream()
    t = Consumed(x.__dlpack__(stream=stream))
    for turn in range(10):
        stub.fill(t.address, 100, N, stream)
        advance.on(gpu)(x, 0, N, 2, 1)                      # after the fill, before the next
        advance(x, 0, N, 1, 0)                              # the device that has it
        stub.sync(stream)
        assert list(stub.words(t.address, 4)) == [201, 203, 205, 207], list(stub.words(t.address, 4))
    t.delete()
    np.testing.assert_array_equal(x.read(), 201 + 2 * np.arange(N))
"""
    run(if_cuda)


def test_views(run):
    run("""
x = hub.empty((4, 750), np.uint32, share=[gpu], memory_kind="device")
stream = stub.stream()
with x.on(gpu) as v:
    assert v.__dlpack_device__() == kind
    t = Consumed(v.__dlpack__(stream=stream))
    stub.fill(t.address, 3, N, stream)
    t.delete()
assert (x.read() == 3).all() and x.device_users == 0
with x[1:3].on(gpu, write=False) as v:
    t = Consumed(v.__dlpack__(stream=stream, max_version=(1, 0)))
    assert t.flags == 1 and t.shape == (2, 750)
    if api == "cuda":
        facts = v.__cuda_array_interface__
        assert facts["data"] == (t.address, True) and facts["strides"] is None and facts["shape"] == (2, 750)
        assert facts["stream"] == v.queue.int_ptr
    try:
        v.__dlpack__(stream=stream)
    except BufferError as why:
        assert "read-only" in str(why)
    else:
        raise AssertionError("a consumer that does not know the flag")
assert x.device_users == 1, "the tensor has it still"
x.read(), "reading is for several"
t.delete()
with x[:, ::2].on(gpu) as v:
    t = Consumed(v.__dlpack__())
    assert t.strides == (750, 2)
    if api == "cuda":
        assert v.__cuda_array_interface__["strides"] == (3000, 8)
    t.delete()
try:
    v.__dlpack__()
except BufferError as why:
    assert "`with` block" in str(why)
else:
    raise AssertionError
try:
    x[::-1].__dlpack__()
except BufferError as why:
    assert "negative stride" in str(why)
else:
    raise AssertionError
""")


def test_a_copy_is_the_consumers_own(run):
    run("""
x = hub.empty(N, np.uint32, share=[gpu], memory_kind="device")
x[...] = 4
t = Consumed(x.__dlpack__(copy=True, max_version=(1, 0)))
assert t.flags == 2 and t.device == kind
x[...] = 5
stub.sync(None)
assert set(stub.words(t.address, N)) == {4} and (x.read() == 5).all() and x.device_users == 0
t.delete()
""")


def test_wrapping_an_array_of_the_device(run):
    run("""
at, stream = stub.alloc(4 * N), stub.stream()
for old in (False, True):
    theirs = Producer(stub, at, (N,), stream=stream, old=old)
    for _ in range(10):
        stub.fill(at, 1, N, stream)
    stub.fill(at, 2, N, stream)
    assert stub.busy(stream), "the control"
    y = hub.from_dlpack(theirs)
    assert theirs.asked and theirs.asked[0] not in (None, -1), "a stream is named"
    assert (y.read() == 2).all() and y.shape == (N,) and y.dtype == np.uint32
    y[...] = 9
    y.hand_to(stream)
    stub.sync(stream)
    assert set(stub.words(at, N)) == {9}
    stub.fill(at, 10, N, stream)
    y.written_until(stream)
    assert (y.read() == 10).all()
    assert theirs.deleted == 0
    again = hub.from_dlpack(Producer(stub, at, (N,)))
    again[...] = 11
    assert (y.read() == 11).all(), "one state"
    y.hand_to(stream)
    for _ in range(10):
        stub.fill(at, 12, N, stream)
    stub.fill(at, 13, N, stream)
    assert stub.busy(stream), "the control"
    again = hub.from_dlpack(Producer(stub, at, (N,), stream=stream))
    assert (again.read() == 13).all(), "wrapped again, after new work of its owner"
    for facts, named, word in [(dict(flags=1), {}, "read-only"), ({}, dict(share=[cl]), cl.id)]:
        try:
            hub.from_dlpack(Producer(stub, at, (N,), **facts), **named)
        except ob.InvalidArgument as why:
            assert word in str(why) and "wrapped already" in str(why), why
        else:
            raise AssertionError(word)
    try:
        hub.from_dlpack(Producer(stub, at + 4, (N - 1,))).shape == (N - 1,)
    except ob.InvalidArgument as why:
        raise AssertionError(why)
    del y, again
    gc.collect()
    assert theirs.deleted == 1
ro = hub.from_dlpack(Producer(stub, at, (N,), flags=1))
try:
    ro.write(0)
except ob.Unsupported as why:
    assert "read-only" in str(why)
else:
    raise AssertionError
del ro
for wrong, why in [
    (Producer(stub, at, (10, 10), strides=(20, 1)), "not contiguous"),
    (Producer(stub, at, (N,), kind=4), "OpenCL"),
    (Producer(stub, at, (N + 4096,)), "has only"),
    (Producer(stub, 12345 * 4096, (N,)), "no memory of"),
    (object(), "no `__dlpack__`"),
]:
    try:
        hub.from_dlpack(wrong)
    except ob.Error as error:
        assert why in str(error), error
    else:
        raise AssertionError(why)
stub.free(at)
""")


def test_one_memory_has_one_state(run):
    run("""
x = hub.empty((4, 750), np.uint32, share=[gpu], memory_kind="device")
t = Consumed(x.__dlpack__())
y = hub.from_dlpack(Producer(stub, t.address + 3000, (750,)))
t.delete()
y[...] = 6
np.testing.assert_array_equal(x.read(), np.repeat([0, 6, 0, 0], 750).reshape(4, 750))
t = Consumed(x.__dlpack__())
try:
    hub.from_dlpack(Producer(stub, t.address + 8000, (2000,)))
except ob.InvalidArgument as why:
    assert "overlaps" in str(why)
else:
    raise AssertionError
t.delete()
""")


def test_cuda_array_interface(folder):
    play(folder, START + """
at, stream = stub.alloc(4 * N), stub.stream()
for _ in range(10):
    stub.fill(at, 3, N, stream)
for make in (hub.from_cuda_array, hub.from_dlpack):
    theirs = CudaArray(at, (N,), stream=stream)
    y = make(theirs)
    assert (y.read() == 3).all()
    del y
y = hub.from_cuda_array(CudaArray(at, (N,), stream=stream))
assert (y.read() == 3).all()
other = stub.stream()
for word in range(10, 31):
    stub.fill(at, word, N, other)
assert stub.busy(other), "the control"
assert (hub.from_cuda_array(CudaArray(at, (N,), stream=other)).read() == 30).all(), "after new work of its owner"
del y
y = hub.from_cuda_array(CudaArray(at, (30, 100), strides=(400, 4), version=2))
assert y.shape == (30, 100)
del y
ro = hub.from_cuda_array(CudaArray(at, (N,), data=(at, True)))
try:
    ro.write(0)
except ob.Unsupported as why:
    assert "read-only" in str(why)
else:
    raise AssertionError
del ro
for facts, why in [
    ({"mask": CudaArray(at, (N,))}, "mask"),
    ({"strides": (8,)}, "not contiguous"),
    ({"version": 1}, "version 1"),
    ({"stream": 0}, "ambiguous"),
    ({"stream": -3}, "negative"),
    ({"typestr": "<M8"}, "elements of type"),
    ({"data": None}, "`data`"),
    ({"shape": (0,)}, "no element"),
    ({"data": (0, False)}, "0x0"),
]:
    theirs = CudaArray(at, (N,))
    theirs.__cuda_array_interface__.update(facts)
    try:
        hub.from_cuda_array(theirs)
    except ob.Error as error:
        assert why in str(error), error
    else:
        raise AssertionError(facts)
try:
    hub.from_cuda_array(object())
except ob.InvalidArgument:
    pass
stub.free(at)
""")


def test_opencl_kernels_on_arrays_of_cuda(folder):
    play(folder, START + """
at, stream = stub.alloc(4 * N), stub.stream()
advance = ob.kernel(TEXT)
stub.fill(at, 10, N, stream)
x = CudaArray(at, (N,), stream=stream)
advance(x, 0, N, 3, 1)                                   # in the array's stream, after the fill
advance[N](x, 0, N, 1, 1, stream=stream)
stub.sync(stream)
np.testing.assert_array_equal(stub.words(at, N), 32 + 2 * np.arange(N))
other = CudaArray(at, (N,), typestr="<f4")
strided = CudaArray(at, (N // 2,), strides=(8,))
constant = CudaArray(at, (N,), data=(at, True))
buffer = hub.empty(N, np.uint32, share=[gpu])
for wrong, why in [
    ((other, 0, N, 1, 1), "float32 elements"),
    ((strided, 0, N, 1, 1), "not contiguous"),
    ((constant, 0, N, 1, 1), "read-only"),
    ((x, 0, N, 1), "takes 5 arguments, 4 were given"),
    ((x, 0, N, 1, 1.5), "an integer is needed"),
    ((x, 0, N, 1, 1 << 40), "does not fit"),
    ((buffer, x, N, 1, 1), "arrays and buffers"),
    ((x, 0, N, 1, x), "an integer is needed"),
    ((1, 0, N, 1, 1), "none of the arguments is"),
]:
    try:
        advance(*wrong)
    except ob.InvalidArgument as error:
        assert why in str(error), error
    else:
        raise AssertionError(wrong)
for named, why in [({"stream": "a"}, "a stream is"), ({"queue": gpu.queue()}, "are for buffers")]:
    try:
        advance(x, 0, N, 1, 1, **named)
    except ob.InvalidArgument as error:
        assert why in str(error), error
    else:
        raise AssertionError(named)
each = ob.kernel(TEXT, each=True)
try:
    each[N + 1](x, 0, N, 1, 1)
except ob.InvalidArgument as error:
    assert "elements for" in str(error)
else:
    raise AssertionError
assert "cuda:0" in repr(advance)
stub.free(at)
""")


def test_grafted_kernels_on_buffers(folder):
    play(folder, START + """
advance = ob.kernel(TEXT)
x = hub.empty(N, np.uint32, share=[gpu], memory_kind="device")
advance(x, 0, N, 0, 5)
np.testing.assert_array_equal(x.read(), 5 + np.arange(N))
kernel = advance.on(gpu)
assert kernel.device == gpu and len(kernel.parameters) == 5 and kernel.writes[0]
y = x[1024:2048]
kernel(y, 0, 1024, 0, 1)
np.testing.assert_array_equal(y.read(), 1 + np.arange(1024))
try:
    kernel(x.view(np.float32), 0, N, 1, 1)
except ob.InvalidArgument as error:
    assert "float32" in str(error)
else:
    raise AssertionError
x.free()
try:
    kernel(x, 0, N, 1, 1)
except ob.InvalidArgument as error:
    assert "freed" in str(error)
else:
    raise AssertionError
""")


def test_an_opencl_device_is_needed_for_graft(folder):
    play(folder, START.replace('cl = hub["opencl:0"]', "") + """
at = stub.alloc(4 * N)
try:
    ob.kernel(TEXT)(CudaArray(at, (N,)), 0, N, 1, 1)
except ob.Unsupported as why:
    assert "an OpenCL driver for the same chip" in str(why), why
else:
    raise AssertionError
""", ONEBUF_OPENCL_LIB="none")


def test_many_threads_lend_and_give_back(run):
    run("""
x = hub.empty(N, np.uint32, share=[gpu], memory_kind="device")
def work():
    for _ in range(50):
        t = Consumed(x.__dlpack__())
        t.delete()
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert x.device_users == 0
x.read()
""")


def test_the_interpreter_may_end_with_lent_buffers(run):
    run("""
x = hub.empty(N, np.uint32, share=[gpu], memory_kind="device")
stream = stub.stream()
t = Consumed(x.__dlpack__(stream=stream))
stub.fill(t.address, 7, N, stream)
with x.on(gpu) as v:
    sys.exit(0)
""")


def test_a_loan_rests_until_something_else_uses_the_buffer(run):
    run("""
x = hub.empty(N, np.uint32, share=[gpu, cl], trust_declared=True)
advance = cl.kernel(TEXT)
for turn in range(10):
    for value in (1, 2, 3):
        t = Consumed(x.__dlpack__())                     # the default stream, which always exists
        at = t.address
        stub.fill(at, value, N, None)
        t.delete()
        assert x.device_users == 0
    match turn % 5:
        case 0:
            assert (x.read() == 3).all()
        case 1:
            advance(x, 0, N, 2, 1)
            np.testing.assert_array_equal(x.read(), 7 + np.arange(N))
        case 2:
            with x.map("r") as a:
                assert (a == 3).all()
        case 3:
            stream = stub.stream()
            t = Consumed(x.__dlpack__(stream=stream))    # another stream waits for the first
            stub.sync(stream)
            assert set(stub.words(t.address, N)) == {3}
            t.delete()
        case 4:
            x.wait()
            assert set(stub.words(at, N)) == {3}
t = Consumed(x.__dlpack__())
stub.fill(t.address, 5, N, None)
t.delete()
del x
gc.collect()
stub.sync(None)
""")


def test_the_exchange_api_of_other_libraries(folder):
    play(folder, START + """
exchange(major=2, previous=exchange())               # a newer table, which refers to one of version 1
at, Exchanged.current = stub.alloc(4 * N), stub.stream()
stub.fill(at, 10, N, Exchanged.current)
advance = ob.kernel(TEXT)
x = Exchanged(at, (30, 100), strides=(100, 1))
for _ in range(3):
    advance(x, 0, N, 1, 1)                               # in the library's stream
stub.sync(Exchanged.current)
np.testing.assert_array_equal(stub.words(at, N), 13 + 3 * np.arange(N))
for wrong, why in [
    (Exchanged(at, (30, 50), strides=(100, 1)), "not contiguous"),
    (Exchanged(at, (N,), code=2), "float32 elements"),
    (Exchanged(at, (2 * N,), code=4, bits=16), "bfloat16"),
    (Exchanged(at, (0,)), "no element"),
]:
    try:
        advance(wrong, 0, N, 1, 1)
    except ob.InvalidArgument as error:
        assert why in str(error), error
    else:
        raise AssertionError(why)
""")


def test_a_kernel_that_the_driver_does_not_list_has_to_be_named(run):
    run("""
try:
    gpu.kernel('extern "C" __global__ void gain(float *x) {}', parameters=["float*"])
except ob.InvalidArgument as why:
    assert "name the kernel" in str(why), why
else:
    raise AssertionError
""")


def test_a_copy_of_a_lent_buffer_is_refused(run):
    run("""
x = hub.empty(N, np.uint32, share=[gpu], memory_kind="device")
stream = stub.stream()

def refused(exporter):
    try:
        exporter.__dlpack__(stream=stream, copy=True, max_version=(1, 0))
    except ob.ExportError as why:
        assert "busy" in str(why), why
    else:
        raise AssertionError(exporter)

t = Consumed(x.__dlpack__(stream=stream))
refused(x)
t.delete()
with x.on(gpu) as v:
    refused(v)
Consumed(x.__dlpack__(stream=stream, copy=True, max_version=(1, 0))).delete()
""")


def test_an_object_that_keeps_a_stream_is_let_go_of_without_locks(folder):
    """Its destructor runs code of Python, which comes back to the same buffer, also on another thread."""
    play(folder, START + """
import sys, types
x = hub.empty(N, np.uint32, share=[gpu], memory_kind="device")
ended = []

class Stream:
    def __init__(self, ptr):
        self.ptr = ptr

    def __del__(self):
        other = threading.Thread(target=lambda: ended.append(x.device_users))
        other.start()
        other.join(30)
        assert not other.is_alive(), "the buffer is locked"
        ended.append((x.host_users, x.device_users))

class Current:
    def get_current_stream(self):
        return self.stream

sys.modules["cupy"] = types.SimpleNamespace(cuda=Current(), ndarray=type(None))
for turn in range(6):
    sys.modules["cupy"].cuda.stream = Stream(stub.stream())
    t = Consumed(x.__dlpack__(stream=sys.modules["cupy"].cuda.stream.ptr))
    sys.modules["cupy"].cuda.stream = None
    t.delete()                                         # the loan rests, and keeps the stream
    if turn % 3 == 0:
        x[...] = turn                                  # the host ends it
    elif turn % 3 == 1:
        x.wait()
    else:
        Consumed(x.__dlpack__(stream=stub.stream())).delete()
    gc.collect()
assert len(ended) == 12, ended
""")
