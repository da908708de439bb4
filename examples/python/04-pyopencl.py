"""Buffers and queues of a program that uses pyopencl, wrapped where they are."""
# Needs: pyopencl

import numpy as np
import pyopencl as cl

import onebuf as ob

TEXT = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"

context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
queue = cl.CommandQueue(context)
theirs = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 * 4096)
cl.enqueue_copy(queue, theirs, np.arange(4096, dtype=np.float32), is_blocking=False)

hub = ob.discover()
x = hub.from_pyopencl(theirs, dtype=np.float32, queue=queue)  # after their copy
(device,) = hub.wrap_context(context)
gain = device.kernel(TEXT)
gain(x, 2.0, queue=hub.wrap_queue(queue))  # in their own queue

result = np.empty(4096, np.float32)
cl.enqueue_copy(queue, result, theirs)
print(device, result[:4])
assert (result == 2 * np.arange(4096)).all() and hub.ledger.implied_bytes == 0
