"""The allocator for PyTorch, called as PyTorch calls it, with the stub drivers: PyTorch itself needs a GPU for it (`gpu/test_allocator.py`)."""

import shutil
import subprocess

import pytest
from conftest import absent
from stubs import run

ALLOCATOR = 'allocator = ob.torch_allocator(["opencl:0"], hub=hub, trust_declared=True, limit=64 << 20)\n'


def runs(text, **named):
    """Runs a script with the allocator, and returns what it printed."""
    ran = run(ALLOCATOR + text, **named)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_tensors_are_used_in_place_by_both_apis_on_every_page():
    runs("""
n = 3 * 1024 + 5
owners = stream()
places = [alloc(4 * n, 0, owners) for _ in range(40)]
assert len(set(places)) == 40 and allocator.stats["segments"] == 1
memories = [memory(place, n) for place in places]
for turn in range(3):
    for number, seen in enumerate(memories):
        seen[:] = np.arange(n) * 7 + number + turn
    for number, place in enumerate(places):
        with ob.shared(Array(place, n), on=[cl], stream=owners) as x:
            before = by_opencl(x, lambda seen: seen * 3 + 1)
        assert (before == (np.arange(n) * 7 + number + turn).astype(np.uint32)).all()
    synchronise(owners)
    for number, seen in enumerate(memories):
        assert (seen == ((np.arange(n) * 7 + number + turn) * 3 + 1).astype(np.uint32)).all(), number
assert hub.ledger.implied_bytes == 0

# The control: OpenCL's cache has the bytes that were there when it got the memory.
with ob.shared(Array(places[0], n), stream=owners) as x:
    with x.on(cl) as v:
        seen = np.zeros(n, np.uint32)
        for _ in range(2):
            assert read_buffer(at(v.queue.int_ptr), at(v.cl_mem), 1, 0, 4 * n, seen.ctypes.data_as(at), 0, None, None) == 0
            memories[0][:] = 5
        assert not (seen == 5).any()
""")


def test_work_is_ordered_with_the_owners_stream_in_both_directions():
    runs(
        """
n = 1 << 16
own_stream = stream()
place = alloc(4 * n, 0, own_stream)
fill = function(driver, "cuMemsetD32Async", number, ctypes.c_uint64, unsigned, size, at)
for turn in range(8):
    assert fill(place, turn, n, own_stream) == 0
    with ob.shared(Array(place, n), stream=own_stream) as x:
        assert (by_opencl(x, lambda seen: seen + 100) == turn).all()
    copied = np.zeros(n, np.uint32)
    assert driver.cuMemcpyDtoHAsync_v2(copied.ctypes.data_as(at), ctypes.c_uint64(place), size(4 * n), at(own_stream)) == 0
    synchronise(own_stream)
    assert (copied == turn + 100).all()
""",
        ONEBUF_CUDA_STUB_DELAY_US="3000",
        ONEBUF_STUB_DELAY_US="3000",
    )


def test_a_block_is_used_again_by_its_own_stream_alone():
    runs("""
first, second = stream(), stream()
place = alloc(5000, 0, first)
free(place, 5000, 0, first)
other = alloc(5000, 0, second)
assert other != place and other - place not in range(2 << 20)
assert alloc(5000, 0, first) == place
""")


def test_a_recorded_stream_is_waited_for_before_a_block_is_used_again():
    runs(
        """
first, second = stream(), stream()
place = alloc(4 << 20, 0, first)
fill = function(driver, "cuMemsetD32Async", number, ctypes.c_uint64, unsigned, size, at)
assert fill(place, 1, 1 << 20, second) == 0
record(place, second)
free(place, 4 << 20, 0, first)
other = alloc(4 << 20, 0, first)
assert other != place, "the second stream still writes it"
synchronise(second)
assert alloc(4 << 20, 0, first) == place
# Its own stream needs no event.
record(other, first)
free(other, 4 << 20, 0, first)
assert alloc(4 << 20, 0, first) == other
""",
        ONEBUF_CUDA_STUB_DELAY_US="300000",
    )


def test_memory_is_flat_and_blocks_do_not_overlap():
    runs("""
import random
chosen, live, peaks = random.Random(7), {}, []
for step in range(20000):
    if live and (len(live) > 60 or chosen.random() < 0.5):
        place = chosen.choice(list(live))
        count, mark = live.pop(place)
        seen = memory(place, count)
        assert seen[0] == mark and seen[-1] == mark, "another block was written"
        free(place, 4 * count, 0, None)
    else:
        count = int(2 ** chosen.uniform(0, 16))
        place = alloc(4 * count, 0, None)
        assert place % 512 == 0 and place not in live
        memory(place, count)[:] = step
        live[place] = count, step
    if step % 5000 == 4999:
        peaks.append(allocator.stats["reserved_bytes"])
assert peaks[1] == peaks[3], peaks
for place, (count, _) in live.items():
    free(place, 4 * count, 0, None)
assert (allocator.stats["allocated_bytes"], allocator.stats["blocks"]) == (0, 0)
assert allocator.empty_cache() == peaks[-1] and allocator.stats["segments"] == 0
""")


def test_threads_allocate_at_the_same_time():
    runs("""
import random

def work(seed):
    chosen, mine = random.Random(seed), stream()
    for _ in range(400):
        count = chosen.randrange(1, 5000)
        place = alloc(4 * count, 0, mine)
        memory(place, count)[:] = seed
        time.sleep(0)
        if not (memory(place, count) == seed).all():
            os._exit(3)
        free(place, 4 * count, 0, mine)

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
[one.start() for one in threads]
[one.join() for one in threads]
assert allocator.stats["blocks"] == 0 and allocator.stats["segments"] <= 12
""")


def test_exhausted_memory_is_null_and_frees_what_is_idle_first():
    runs("""
place = alloc(40 << 20, 0, None)
free(place, 40 << 20, 0, None)
assert allocator.stats["reserved_bytes"] == 40 << 20
assert alloc(50 << 20, 0, None), "the idle segment is freed first"
assert alloc(20 << 20, 0, None) is None and alloc(1 << 60, 0, None) is None
assert alloc(1 << 62, 0, None) is None and alloc(-1, 0, None) is None and alloc(0, 0, None) is None
assert alloc(100, 0, None)
assert segment_alloc(20 << 20, 0, None) is None
assert alloc(100, 9, None) is None, "no such device"
free(None, 0, 0, None)
""")


def test_a_driver_that_has_no_memory_is_an_error_too():
    runs("assert alloc(100, 0, None) is None\n", ONEBUF_CUDA_STUB_FAIL="cuMemCreate:2")


CATCH = """
#include <cxxabi.h>
#include <cstdio>
#include <exception>
#include <typeinfo>
extern "C" void *caught(void *(*alloc)(long, int, void *), long size, char *name, char *what) {
    try {
        return alloc(size, 0, nullptr);
    } catch (const std::exception &error) {
        std::snprintf(name, 200, "%s", abi::__cxa_current_exception_type()->name());
        std::snprintf(what, 2000, "%s", error.what());
        return nullptr;
    }
}
"""


def test_exhausted_memory_is_pytorchs_exception(tmp_path):
    pytest.importorskip("torch")
    if shutil.which("g++") is None:
        absent("g++, which plays PyTorch's caller")
    (tmp_path / "catch.cpp").write_text(CATCH)
    subprocess.run(["g++", "-fPIC", "-shared", "-o", tmp_path / "catch.so", tmp_path / "catch.cpp"], check=True, timeout=120)
    said = runs(f"""
import torch
assert ob._torch._set_thrower(ctypes.CDLL(torch._C.__file__))
caught = function(ctypes.CDLL("{tmp_path}/catch.so"), "caught", at, at, ctypes.c_long, at, at)
name, what = ctypes.create_string_buffer(200), ctypes.create_string_buffer(2000)
for turn in range(50):
    assert caught(ctypes.cast(alloc, at), 1 << 40, name, what) is None
assert caught(ctypes.cast(alloc, at), 1 << 10, name, what)
print(name.value.decode())
print(what.value.decode())
""")
    assert said.startswith("N3c1016OutOfMemoryErrorE\nCUDA out of memory. Tried to allocate 1099511627776 bytes"), said


def test_a_segment_for_pytorchs_own_cache():
    runs("""
owners = stream()
place = segment_alloc(20 << 20, 0, owners)
memory(place, 1000)[:] = np.arange(1000)
with ob.shared(Array(place, 1000, stream=owners), on="opencl:0") as x:
    assert (by_opencl(x, lambda seen: seen + 1) == np.arange(1000)).all()
synchronise(owners)
assert (memory(place, 1000) == np.arange(1000) + 1).all()
segment_free(place, 20 << 20, 0, None)
assert allocator.stats["segments"] == 0 and allocator.stats["reserved_bytes"] == 0
assert alloc(100, 0, None) != place
""")


def test_a_segment_is_freed_after_the_work_of_every_stream_on_it():
    runs(
        """
fill = function(driver, "cuMemsetD32Async", number, ctypes.c_uint64, unsigned, size, at)
first, second = stream(), stream()
for used, given in [(first, None), (second, None), (second, second)]:
    place = segment_alloc(20 << 20, 0, first)
    assert fill(place, 1, 1 << 20, used) == 0
    if given is None:
        record(place, used)
    began = time.monotonic()
    segment_free(place, 20 << 20, 0, given)
    assert time.monotonic() - began > 0.2, "a stream still writes it"
""",
        ONEBUF_CUDA_STUB_DELAY_US="300000",
    )


def test_idle_segments_of_a_stream_that_is_not_done_are_kept():
    text = """
hub = ob.discover(without=["gl", "vulkan"], timeout=1.5)
allocator = ob.torch_allocator(["opencl:0"], hub=hub, trust_declared=True)
fill = function(driver, "cuMemsetD32Async", number, ctypes.c_uint64, unsigned, size, at)
first, second = stream(), stream()
places = [(alloc(12 << 20, 0, one), one) for one in (first, second, first)]
assert all(place for place, _ in places)
for _ in range(50):
    assert fill(places[1][0], 1, 1 << 20, second) == 0
for place, owner in places:
    free(place, 12 << 20, 0, owner)
try:
    allocator.empty_cache()
except ob.Timeout:
    assert allocator.stats["segments"] == 1, "that of the second stream"
else:
    raise AssertionError("the second stream still writes")
synchronise(second)
assert allocator.empty_cache() == 12 << 20 and allocator.stats["segments"] == 0
"""
    ran = run(text, ONEBUF_CUDA_STUB_DELAY_US="50000")
    assert ran.returncode == 0, ran.stderr


def test_bad_input_is_an_exception():
    runs("""
def refused(kind, call, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"{words} was accepted")

place = alloc(4096, 0, None)
other = alloc(4096, 0, None)
enter = lambda *given, **named: lambda: ob.shared(Array(*given, **named)).__enter__()
refused(ob.InvalidArgument, enter(place, 1025), "no memory of onebuf's allocator")
refused(ob.InvalidArgument, enter(0x1234, 4), "no memory of onebuf's allocator")
refused(ob.InvalidArgument, enter(place, 4, typestr="<V2"), "")
refused(ob.InvalidArgument, enter(place, 4, strides=(-4,)), "strides")
refused(ob.Busy, lambda: ob.torch_allocator(hub=hub, trust_declared=True), "already")
refused(ob.NotShared, lambda: ob.shared(Array(place, 4), on=["host"]).__enter__(), "host")

class Learns(Array):
    requires_grad = True

refused(ob.InvalidArgument, lambda: ob.shared(Learns(place, 4)).__enter__(), "gradient")
with ob.shared(Array(place, 1024)) as x:
    assert x.nbytes == 4096
refused(ob.InvalidArgument, x.read, "freed")
refused(ob.InvalidArgument, enter(place, 16, strides=(8,)), "contiguous")
free(place, 4096, 0, None)
refused(ob.InvalidArgument, enter(place, 4), "no memory of onebuf's allocator")
free(place, 4096, 0, None)
assert alloc(4096, 0, None) == place, "freed twice, and still one block"
""")


def test_the_process_ends_with_tensors_and_frees_them_later():
    """C++ destroys static objects after the interpreter has ended."""
    said = runs("""
c = ctypes.CDLL(None)
places = [alloc(1 << 20, 0, None) for _ in range(5)]
for place in places:
    assert c.__cxa_atexit(ctypes.cast(free, at), at(place), None) == 0
kept = ob.shared(Array(places[0], 16))
x = kept.__enter__()
def loop():
    while True:
        free(alloc(5000, 0, None), 5000, 0, None)
threading.Thread(target=loop, daemon=True).start()
print("ends", flush=True)
""")
    assert said == "ends\n"


def test_without_a_device_it_is_a_fact(hub):
    import onebuf as ob

    if any(device.api in ("cuda", "hip") for device in hub.devices):
        pytest.skip("there is a device")
    with pytest.raises(ob.Unavailable, match="CUDA or HIP"):
        ob.torch_allocator(hub=hub)


