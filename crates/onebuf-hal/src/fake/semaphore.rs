//! Semaphores that other devices signal and wait on: words in a file.

use super::{
    API,
    watch::{Live, Watch},
};
use crate::{Domain, Error, Result, Semaphore};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;

/// The file name by which the stub drivers recognise a semaphore.
const NAME: &str = "onebuf-stub-semaphore";
/// Two words: whether the semaphore is signalled, and the enqueued operations.
const BYTES: u64 = 8;

/// A semaphore for export; the fake device itself does not use it.
#[derive(Debug)]
pub struct FakeSemaphore {
    domain: Domain,
    _live: Live,
}

impl FakeSemaphore {
    pub(super) fn shared(domain: Domain, watch: &Watch) -> Result<(FakeSemaphore, OwnedFd)> {
        watch.call("fake_semaphore")?;
        let made = memfd_create(NAME, MemfdFlags::CLOEXEC)
            .and_then(|fd| ftruncate(&fd, BYTES).map(|()| fd));
        let fd = made.map_err(|why| Error::Driver {
            api: API.0,
            call: "fake_semaphore",
            code: why.raw_os_error(),
            name: why.to_string(),
        })?;
        let _live = watch.object("semaphore", "fake_release_semaphore");
        Ok((FakeSemaphore { domain, _live }, fd))
    }
}

impl Semaphore for FakeSemaphore {
    fn domain(&self) -> Domain {
        self.domain
    }
}
