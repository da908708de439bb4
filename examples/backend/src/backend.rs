//! Device discovery: there is always one device, and no library is loaded.

#![allow(unsafe_code)] // See the head of `lib.rs`.

use crate::{API, device::ToyDevice, event::ToyEvent, memory::ToyMemory, program, queue::ToyQueue};
use onebuf_hal::{Api, Backend, Discovered, Search, Unavailable, typed};
use std::sync::Arc;

/// A backend with one software device.
#[derive(Clone, Copy, Debug)]
pub struct ToyBackend;

// SAFETY: commands keep their bytes alive, and an event completes only after its work has ended.
unsafe impl Backend for ToyBackend {
    fn api(&self) -> Api {
        API
    }

    fn discover(&self, search: &Search<'_>) -> Result<Discovered, Unavailable> {
        let device = Arc::new(ToyDevice::new((search.next_domain)()));
        Ok(Discovered::new([device], "a toy device", Vec::new()))
    }
}

/// Names the types of this backend; `onebuf_hal::dynamic` wraps them in the object-safe traits that the core uses.
impl typed::ApiTypes for ToyBackend {
    type Device = ToyDevice;
    type Memory = ToyMemory;
    type Queue = ToyQueue;
    type Event = ToyEvent;
    type Program = program::ToyProgram;
    type Kernel = program::ToyKernel;
    type Semaphore = typed::NoSemaphore;
}
