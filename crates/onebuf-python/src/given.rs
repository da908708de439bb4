//! What Python passes for devices and policies.

use crate::{
    error::{Fault, Result},
    types::PyDevice,
};
use onebuf::{CopyPolicy, Device, Hub};
use pyo3::{prelude::*, types::PyString};

/// The policy of that name.
pub(crate) fn policy(name: &str) -> Result<CopyPolicy> {
    match name {
        "allow" => Ok(CopyPolicy::Allow),
        "warn" => Ok(CopyPolicy::Warn),
        "forbid" => Ok(CopyPolicy::Forbid),
        other => {
            Err(Fault::invalid(format!("copies={other:?}: use \"allow\", \"warn\" or \"forbid\"")))
        }
    }
}

/// A device that Python names by itself or by a string.
pub(crate) fn device(hub: &Hub, given: &Bound<'_, PyAny>) -> Result<Device> {
    if let Ok(device) = given.cast::<PyDevice>() {
        return Ok(device.get().0.clone());
    }
    match given.cast::<PyString>() {
        Ok(name) => Ok(hub.device(name.to_cow()?.as_ref())?),
        Err(_) => Err(Fault::invalid("a device is a `Device`, or a string such as \"opencl:0\"")),
    }
}

/// Devices that Python names: a list, one, or none.
pub(crate) fn devices(hub: &Hub, given: Option<&Bound<'_, PyAny>>) -> Result<Vec<Device>> {
    let Some(given) = given.filter(|given| !given.is_none()) else { return Ok(Vec::new()) };
    if given.is_instance_of::<PyDevice>() || given.is_instance_of::<PyString>() {
        return Ok(vec![device(hub, given)?]);
    }
    given.try_iter()?.map(|one| device(hub, &one?)).collect()
}
