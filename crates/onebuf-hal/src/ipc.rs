//! Memory of another process, by a handle of the API instead of a file descriptor.

use super::DeviceInfo;
use crate::{Error, Result};

/// The handle by which another process opens memory, and the range of bytes. Every number may come from an untrusted
/// process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpcRange {
    /// Opaque bytes that only the API can read.
    pub handle: [u8; 64],
    /// The process that exported it. That process cannot open the handle itself.
    pub process: u32,
    /// The allocation's base address in that process, used only to identify the allocation.
    pub base: u64,
    /// The size of the allocation: a handle covers a whole one.
    pub allocation_bytes: usize,
    /// The offset of the bytes.
    pub offset: usize,
    /// The number of bytes.
    pub bytes: usize,
}

impl IpcRange {
    /// Checks that a device can open the handle in this process, and that the bytes are inside the allocation.
    pub fn check_for(&self, info: &DeviceInfo) -> Result<()> {
        if !info.caps.ipc {
            let what = format!("another process's memory on {}", info.name);
            return Err(Error::unsupported(what, "a driver that opens handles of other processes"));
        }
        self.check_process()?;
        self.check()
    }

    /// Checks that another process exported it.
    pub fn check_process(&self) -> Result<()> {
        if self.process != std::process::id() {
            return Ok(());
        }
        Err(Error::unsupported(
            "opening a handle for other processes in the one that exported it",
            "another process: here the drivers refuse it",
        ))
    }

    fn check(&self) -> Result<()> {
        let IpcRange { offset, bytes, allocation_bytes, .. } = *self;
        match offset.checked_add(bytes) {
            Some(end) if end <= allocation_bytes && bytes > 0 => Ok(()),
            _ => Err(Error::invalid(format!(
                "{bytes} bytes at offset {offset} of an allocation of {allocation_bytes} bytes"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_inside() {
        let range = |offset, bytes| IpcRange {
            handle: [0; 64],
            process: 0,
            base: 0,
            allocation_bytes: 4096,
            offset,
            bytes,
        };
        assert!(range(0, 4096).check().is_ok() && range(4095, 1).check().is_ok());
        for (offset, bytes) in [(0, 0), (4096, 1), (0, 4097), (usize::MAX, 2), (1, usize::MAX)] {
            let refused = range(offset, bytes).check();
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{offset} {bytes}");
        }
    }
}
