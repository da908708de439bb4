//! An offer, and the one peer that is attached to it.
//!
//! # Safety
//! An offer borrows a buffer inside an `Arc`, and a visit borrows the offer. Fields are dropped in declaration order:
//! the visit before the offer, the offer before the buffer.

use crate::{
    fault::{Fault, Result},
    kept::{Buf, Kept},
};
use onebuf::{
    Buffer, Error,
    peer::{Offer, Visit},
};
use std::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// An offer, and the buffer that it borrows. The offer is dropped first.
pub(crate) struct OpenOffer {
    offer: UnsafeCell<Offer<'static, u8>>,
    /// Set while a call accepts or a peer is attached.
    taken: AtomicBool,
    buffer: Arc<Kept>,
}

// SAFETY: only the thread that has set `taken` accesses the cell, and only one can set it.
unsafe impl Sync for OpenOffer {}

impl OpenOffer {
    /// Opens an offer of a whole buffer.
    pub fn new(
        buffer: Arc<Kept>,
        open: impl for<'b> FnOnce(&'b Buffer<u8>) -> Result<Offer<'b, u8>>,
    ) -> Result<Self> {
        let Buf::Whole(whole) = &buffer.buf else {
            return Err(Fault::invalid("a region cannot be offered: offer its buffer"));
        };
        // SAFETY: the buffer lies behind `buffer`, which stays until the offer is gone: fields are dropped in the
        // order in which they are declared.
        let whole: &'static Buffer<u8> = unsafe { &*std::ptr::from_ref(&**whole) };
        let offer = UnsafeCell::new(open(whole)?);
        Ok(Self { offer, taken: AtomicBool::new(false), buffer })
    }

    /// Waits for a peer; `None` means the hub's timeout.
    pub fn accept(self: &Arc<Self>, timeout: Option<Duration>) -> Result<Visiting> {
        if self.taken.swap(true, Ordering::Acquire) {
            let what =
                "a peer is attached, or another call accepts one: free its handle first".into();
            return Err(Error::Busy { what }.into());
        }
        let only = Only(self.clone());
        // SAFETY: this call has set `taken`, so nothing else accesses the offer until `only` is dropped, which is after the
        // visit. `only` keeps the offer in place.
        let offer: &'static mut Offer<'static, u8> = unsafe { &mut *self.offer.get() };
        let timeout = timeout.unwrap_or_else(|| self.buffer.whole().0.hub().timeout());
        Ok(Visiting { visit: offer.accept(timeout)?, _only: only })
    }
}

/// Exclusive use of an offer, returned when this is dropped.
struct Only(Arc<OpenOffer>);

impl Drop for Only {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

/// An attached peer. The visit is dropped first.
pub(crate) struct Visiting {
    pub visit: Visit<'static, 'static, u8>,
    _only: Only,
}
