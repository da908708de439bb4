//! The CPU as a backend. It is always available and loads no library.
//!
//! # Safety
//! The other files of this backend keep the contract of [`Backend`].

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

/// The backend for this machine's CPU.
#[derive(Clone, Copy, Debug)]
pub struct HostBackend;

// SAFETY: pages stay mapped while a memory of them exists, and work is over when the call that enqueues it returns.
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
