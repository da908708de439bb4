#![forbid(unsafe_code)]

use onebuf::{Buffer, Device, FdKind, Hub, Result};
use std::fs::File;

fn import(hub: &Hub, device: &Device, forged: &File) -> Result<Buffer<u8>> {
    hub.import::<u8>(forged, FdKind::OpaqueFd, 1 << 20).build(device)
}

fn main() {
    let _ = import;
}
