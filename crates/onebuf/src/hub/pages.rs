//! The host's pages as files: what another process is given, and what it gives.

use super::Hub;
use crate::{Error, Result, backend::host::HostPages, hal::HostRange, sync::Arc};
use std::{
    any::Any,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// A sealed file of ours, kept by its pages.
pub(crate) struct PageFile(Arc<HostPages>);

impl PageFile {
    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.0.file_bytes() as u64
    }
}

impl AsFd for PageFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file().expect("made of pages that have one")
    }
}

impl Hub {
    /// The file behind pages that the host allocated.
    pub(crate) fn page_file(&self, range: &HostRange) -> Result<PageFile> {
        let pages = range.owner.clone().downcast::<HostPages>().ok();
        let whole = |pages: &Arc<HostPages>| {
            pages.file().is_some()
                && (pages.pointer(), pages.bytes()) == (range.pointer, range.bytes)
        };
        pages.filter(whole).map(PageFile).ok_or_else(|| {
            Error::unsupported(
                "sharing these pages",
                "pages that onebuf allocated, in a sealed memfd",
            )
        })
    }

    /// Another process's file as pages; see [`HostPages::of_file`].
    pub(crate) fn map_file(&self, file: OwnedFd, bytes: u64) -> Result<HostRange> {
        // The kernel would map more than there is, and kill whoever uses it all.
        let limit = self.hal(self.host_index()).info().caps.max_alloc_bytes;
        let fits = usize::try_from(bytes).ok().filter(|_| bytes <= limit);
        let Some(bytes) = fits else {
            let (device, limit) = ("host".to_owned(), Some(limit));
            return Err(Error::OutOfMemory { device, asked: bytes, limit });
        };
        let pages = Arc::new(HostPages::of_file(file, bytes)?);
        let (pointer, owner): (_, Arc<dyn Any + Send + Sync>) = (pages.pointer(), pages);
        Ok(HostRange { pointer, bytes, owner })
    }
}
