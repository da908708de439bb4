//! The search for devices: there is always one, and nothing is loaded.
//!
//! # Safety
//! The contract of [`Backend`] is what the other files of this backend keep.

#![allow(unsafe_code)]

use crate::{API, device::ToyDevice};
use onebuf_hal::{Api, Backend, Discovered, Search, Unavailable};
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
