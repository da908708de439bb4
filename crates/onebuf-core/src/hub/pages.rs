//! Host pages as files, exported to and imported from other processes.

use super::Hub;
use onebuf_hal::{Error, HostRange, PageFile, Result};
use std::os::fd::OwnedFd;

impl Hub {
    /// The file behind pages that the host allocated.
    pub(crate) fn page_file(&self, range: &HostRange) -> Result<PageFile> {
        self.hal(self.host_index()).page_file(range)
    }

    /// Maps another process's file as pages.
    pub(crate) fn map_file(&self, file: OwnedFd, bytes: u64) -> Result<HostRange> {
        let host = self.hal(self.host_index());
        // The kernel would map more than the host's memory, and kill the process that touches all of it.
        let limit = host.info().caps.max_alloc_bytes;
        match usize::try_from(bytes).ok().filter(|_| bytes <= limit) {
            Some(bytes) => host.map_file(file, bytes),
            None => {
                let (device, limit) = ("host".to_owned(), Some(limit));
                Err(Error::OutOfMemory { device, asked: bytes, limit })
            }
        }
    }
}
