//! The CPU as a backend: always there, and nothing is loaded.
//!
//! # Safety
//! The contract of [`Backend`] is what the other files of this backend keep.

#![allow(unsafe_code)]

use super::{
    API, HostDevice, HostMemory,
    event::Done,
    program::{HostKernel, HostProgram},
    queue::HostQueue,
};
use onebuf_hal::{
    Api, Backend, Discovered, Search, Unavailable,
    locks::Arc,
    typed::{ApiTypes, NoSemaphore},
};

/// The CPU of this machine.
#[derive(Clone, Copy, Debug)]
pub struct HostBackend;

// SAFETY: pages stay mapped while memory of them lives, and work is over when it was enqueued.
unsafe impl Backend for HostBackend {
    fn api(&self) -> Api {
        API
    }

    fn discover(&self, search: &Search<'_>) -> Result<Discovered, Unavailable> {
        let host = Arc::new(HostDevice::new((search.next_domain)()));
        Ok(Discovered::new([host], "the host", Vec::new()))
    }
}

impl ApiTypes for HostBackend {
    type Device = HostDevice;
    type Memory = HostMemory;
    type Queue = HostQueue;
    type Event = Done;
    type Program = HostProgram;
    type Kernel = HostKernel;
    type Semaphore = NoSemaphore;
}
