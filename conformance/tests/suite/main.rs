//! The contract of buffers, views, fences and the ledger, on every device and every ordered pair.

use onebuf::hal::DeviceInfo;
use onebuf_conformance::{absent, everything, require_devices};
use std::time::Duration;

onebuf_conformance::suite!(everything().timeout(Duration::from_secs(30)));

#[test]
fn the_devices_that_are_installed_here_are_found() {
    require_devices(&SUITE.machine().hub);
}

#[test]
fn an_opencl_device_has_out_of_order_queues() {
    let fits = |info: &DeviceInfo| info.api.0 == "opencl" && info.caps.out_of_order;
    if !SUITE.machine().sides.iter().any(|side| fits(side.device.info())) {
        absent("out-of-order queues of an OpenCL platform", "no device here has them");
    }
}
