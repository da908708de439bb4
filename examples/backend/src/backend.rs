//! The search for devices: there is always one, and nothing is loaded.

#![allow(unsafe_code)] // See the head of `lib.rs`.

use crate::{API, device::ToyDevice, event::ToyEvent, memory::ToyMemory, program, queue::ToyQueue};
use onebuf_hal::{Api, Backend, Discovered, Search, Unavailable, typed};
use std::sync::Arc;

/// One device in software.
#[derive(Clone, Copy, Debug)]
pub struct ToyBackend;

// SAFETY: bytes stay while a command holds them, and an event is complete when its work is over.
unsafe impl Backend for ToyBackend {
    fn api(&self) -> Api {
        API
    }

    fn discover(&self, search: &Search<'_>) -> Result<Discovered, Unavailable> {
        let device = Arc::new(ToyDevice::new((search.next_domain)()));
        Ok(Discovered::new([device], "a toy device", Vec::new()))
    }
}

/// The types of this backend's objects: `onebuf_hal::dynamic` turns them into the objects that the core uses.
impl typed::ApiTypes for ToyBackend {
    type Device = ToyDevice;
    type Memory = ToyMemory;
    type Queue = ToyQueue;
    type Event = ToyEvent;
    type Program = program::ToyProgram;
    type Kernel = program::ToyKernel;
    type Semaphore = typed::NoSemaphore;
}
