//! The fake backend, which takes part in discovery like any other.
//!
//! # Safety
//! The other files of this backend fulfil the contract of [`Backend`].

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

/// A backend with one fake device.
#[derive(Clone, Debug)]
pub struct FakeBackend {
    config: FakeConfig,
}

impl FakeBackend {
    /// Creates a backend whose device behaves as configured. Its domain is assigned at discovery.
    pub fn new(config: FakeConfig) -> Self {
        Self { config }
    }
}

// SAFETY: its memory belongs to this process and lives while it is used; an event completes after its work has ended.
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
