//! The classes of hubs, devices and queues. Their methods stand in `hub` and `device`, above what they use.

use onebuf::{Device, Hub, Queue};
use pyo3::prelude::*;

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
