//! The classes of hubs, devices, queues and fences. Their methods stand in `hub`, `device` and `fence`, above what they use.

use onebuf::{Device, Fence, Hub, Queue};
use pyo3::prelude::*;
use std::time::Duration;

/// This process's view of the machine: the devices that were found, and what is known about sharing memory between them.
///
/// Made by `onebuf.discover()`. `hub["opencl:0"]` is a device: by id, API, type, or a part of its name.
#[pyclass(frozen, module = "onebuf", name = "Hub")]
pub(crate) struct PyHub(pub Hub);

/// One API's view of one chip: "host", "opencl:0", "cuda:0".
#[pyclass(frozen, module = "onebuf", name = "Device")]
pub(crate) struct PyDevice(pub Device);

/// A stream of work on a device. Kernels run in the device's default queue unless they get another.
#[pyclass(frozen, module = "onebuf", name = "Queue")]
pub(crate) struct PyQueue(pub Queue);

/// A point that work reaches: `Queue.fence()`, `Buffer.fence()`, `Buffer.uses()`, `k(…, fence=True)`, `Hub.wrap_event(event)`.
#[pyclass(frozen, module = "onebuf", name = "Fence")]
pub(crate) struct PyFence {
    pub fence: Fence,
    /// How long the hub waits.
    pub timeout: Duration,
}

impl PyFence {
    pub fn new(fence: Fence, hub: &Hub) -> Self {
        Self { fence, timeout: hub.timeout() }
    }
}
