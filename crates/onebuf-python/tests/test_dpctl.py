"""SYCL without a SYCL compiler: dpctl's queues and USM memory in onebuf.

`sycl::get_native` is a template, so the functions behind it are called by their names in SYCL's library. The tests with USM run in a
process of their own, in which SYCL finds Intel's OpenCL for the CPU: PoCL 3.1 has no USM.
"""

import ctypes
import gc
import json
import os
import pathlib
import subprocess
import sys

import dpctl
import dpctl.memory
import numpy as np
import pyopencl as pycl
import pytest

import onebuf as ob

from conftest import absent

N = 5 * 1024 + 77
GROW = "kernel void grow(global uint *p, uint by) { p[get_global_id(0)] += by; }"


def library():
    """SYCL's library, which dpctl has loaded."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "libsycl.so" in line:
                return ctypes.CDLL(line.split()[-1])
    return pytest.fail("dpctl has loaded no libsycl.so")


def native_queue(queue):
    """`sycl::get_native<sycl::backend::opencl>(queue)`: a cl_command_queue with a reference for the caller."""
    get = library()["_ZNK4sycl3_V15queue9getNativeERi"]
    get.restype, get.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    described = ctypes.c_int(0)
    return get(queue.addressof_ref(), ctypes.byref(described))


def on(platform):
    """A SYCL queue on the device of a platform."""
    for device in dpctl.get_devices():
        if platform in device.sycl_platform.name:
            return dpctl.SyclQueue(device, property="in_order")
    return None


def test_sycls_queue_is_a_queue_of_the_hub(hub):
    theirs = on("Portable Computing Language")
    assert theirs is not None, "dpctl does not find PoCL"
    # pyopencl owns the reference that SYCL added.
    queue = pycl.CommandQueue.from_int_ptr(native_queue(theirs), retain=False)
    assert queue.device.name == theirs.sycl_device.name
    references = queue.reference_count
    owners = hub.wrap_queue(queue)
    (device,) = hub.wrap_context(queue.context)
    assert "@" in device.id, "SYCL's own context"
    grow = device.kernel(GROW)
    x = hub.array(np.arange(N, dtype=np.uint32), share=[device])
    theirs.submit_barrier()
    for round in range(1, 6):
        grow(x, round, queue=owners)  # in SYCL's queue, in its order
        theirs.submit_barrier()
    theirs.wait()  # SYCL waits for onebuf's kernels
    np.testing.assert_array_equal(x.read(), np.arange(N) + 15)
    # The control: without a kernel nothing changes.
    theirs.submit_barrier()
    theirs.wait()
    np.testing.assert_array_equal(x.read(), np.arange(N) + 15)
    del x, grow, owners, device
    gc.collect()
    assert queue.reference_count <= references + 1


def test_usm_is_used_in_place():
    """In a process of its own, because the loader reads its variable once."""
    intel = pathlib.Path(sys.prefix) / "lib" / "libintelocl.so"
    if not intel.exists():
        absent("intel-opencl-rt is not installed")
    environment = dict(os.environ, OCL_ICD_FILENAMES=str(intel))
    run = [sys.executable, __file__]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["usm"] == ["host", "shared"] and said["device"].startswith("opencl:"), said


def usm():
    """USM memory of Intel's OpenCL: SYCL writes it, a kernel of onebuf on PoCL, SYCL again; every element."""
    theirs = on("Intel")
    assert theirs is not None, [device.name for device in dpctl.get_devices()]
    hub = ob.discover(only=["opencl"])
    (cl,) = [device for device in hub.devices if "Portable" in device.platform]
    grow, kinds = cl.kernel(GROW), []
    for kind in (dpctl.memory.MemoryUSMHost, dpctl.memory.MemoryUSMShared):
        memory = kind(4 * 8192, alignment=4096, queue=theirs)
        words = np.frombuffer(memory, dtype=np.uint32)
        model = np.arange(8192, dtype=np.uint32) * 7
        for round in range(1, 4):
            memory.copy_from_host(model.view(np.uint8))  # by SYCL's queue
            theirs.wait()
            x = hub.from_dlpack(words, share=[cl], trust_declared=True)
            grow(x, round)
            model = model + round
            np.testing.assert_array_equal(x.read(), model)
            assert x.explain().count("staged") == 0, x.explain()
            del x  # onebuf is done with the memory
            # In place: numpy, and SYCL's queue, see what PoCL's kernel wrote.
            np.testing.assert_array_equal(words, model)
            back = np.empty_like(model)
            memory.copy_to_host(back.view(np.uint8))
            np.testing.assert_array_equal(back, model)
        # The control: a kernel on a copy leaves SYCL's memory as it is.
        copied = hub.array(words, share=[cl])
        grow(copied, 9)
        np.testing.assert_array_equal(copied.read(), model + 9)
        np.testing.assert_array_equal(words, model)
        kinds.append(memory.get_usm_type())
    print(json.dumps({"usm": kinds, "device": cl.id}))


if __name__ == "__main__":
    usm()
