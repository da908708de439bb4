//! Devices for tests, found by the way that all are.
//!
//! # Safety
//! The contract of [`Backend`] is what the other files of this backend keep.

#![allow(unsafe_code)]

use super::{
    API, FakeConfig, FakeDevice,
    event::FakeEvent,
    memory::FakeMemory,
    program::{FakeKernel, FakeProgram},
    queue::FakeQueue,
    semaphore::FakeSemaphore,
};
use crate::{Api, Backend, Discovered, Search, Unavailable, locks::Arc, typed::ApiTypes};

/// One device that exists only for tests.
#[derive(Clone, Debug)]
pub struct FakeBackend {
    config: FakeConfig,
}

impl FakeBackend {
    /// A device that behaves as the configuration says, in a domain of its own.
    pub fn new(config: FakeConfig) -> Self {
        Self { config }
    }
}

// SAFETY: its memory is the process's, and stays while it is used; an event is complete when its work is over.
unsafe impl Backend for FakeBackend {
    fn api(&self) -> Api {
        API
    }

    fn discover(&self, search: &Search<'_>) -> Result<Discovered, Unavailable> {
        let mut config = self.config.clone();
        config.domain = (search.next_domain)();
        config.probe = config.probe.or(search.probe.clone());
        let fake = Arc::new(FakeDevice::new(config));
        Ok(Discovered::new([fake], "a fake device", Vec::new()))
    }
}

impl ApiTypes for FakeBackend {
    type Device = FakeDevice;
    type Memory = FakeMemory;
    type Queue = FakeQueue;
    type Event = FakeEvent;
    type Program = FakeProgram;
    type Kernel = FakeKernel;
    type Semaphore = FakeSemaphore;
}
