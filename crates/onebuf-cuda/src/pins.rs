//! Records which host memory is pinned in this process, and by how many users.
//!
//! Pinning is per process, not per context: pages pinned for one device cannot be pinned again for another. So all
//! devices of a library share this record. Its lock is held during the driver's call, so that pages cannot be pinned
//! again between the last release and the unpinning.

use super::{
    aligned::{self, Aligned},
    device::{Context, Driver},
};
use onebuf_hal::{
    Result,
    locks::{Mutex, lock},
};
use onebuf_sys::{
    Refused,
    cuda_like::{DevicePtr, HostPtr, consts},
};
use std::{collections::BTreeMap, ffi::c_void};

const FLAGS: u32 = consts::HOST_PORTABLE | consts::HOST_DEVICE_MAP;

/// One pinned range.
#[derive(Clone, Copy, Debug)]
struct Pin {
    bytes: usize,
    holders: usize,
}

/// Pinned ranges by their first address.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<BTreeMap<usize, Pin>>);

/// A share of a pinned range, released once.
#[derive(Debug)]
pub(super) struct Share {
    base: usize,
    /// The share's offset in the range.
    offset: usize,
    /// Whether the driver allocated the range; otherwise it registered existing pages.
    allocated: bool,
}

impl Pins {
    /// Whether these bytes are pinned, so that the driver copies them without blocking the caller.
    pub fn covers(&self, at: *const u8, bytes: usize) -> bool {
        around(&lock(&self.0), at as usize, bytes).is_some()
    }

    /// Allocates pinned memory, and returns an aligned address in it. The context is current.
    pub fn allocate(
        &self,
        driver: &Driver,
        bytes: usize,
        align: usize,
    ) -> Result<(HostPtr, Share), Refused> {
        let mut pins = lock(&self.0);
        let table = &driver.table;
        // SAFETY: needs only a current context.
        let allocate = |bytes| unsafe { table.host_alloc(bytes, FLAGS) };
        // SAFETY: allocated above, and not used.
        let free = |at| driver.note(unsafe { table.host_free(at) });
        let Aligned { base, at, bytes } = aligned::allocate(bytes, align, allocate, free)?;
        let (base, offset) = (base.0.addr(), at.0.addr() - base.0.addr());
        pins.insert(base, Pin { bytes, holders: 1 });
        Ok((at, Share { base, offset, allocated: true }))
    }

    /// Pins existing pages unless they are pinned already. The context is current, and the pages must stay allocated
    /// until the share is released.
    pub fn register(&self, driver: &Driver, at: *mut u8, bytes: usize) -> Result<Share, Refused> {
        let mut pins = lock(&self.0);
        if let Some(base) = around(&pins, at as usize, bytes) {
            if let Some(pin) = pins.get_mut(&base) {
                pin.holders += 1;
            }
            return Ok(Share { base, offset: at as usize - base, allocated: false });
        }
        // SAFETY: the caller guarantees that the pages are allocated.
        unsafe { driver.table.host_register(at.cast(), bytes, FLAGS)? };
        pins.insert(at as usize, Pin { bytes, holders: 1 });
        Ok(Share { base: at as usize, offset: 0, allocated: false })
    }

    /// Releases a share, and unpins the range with the last one. The context is current.
    pub fn release(&self, context: &Context, share: &Share) {
        let mut pins = lock(&self.0);
        let Some(pin) = pins.get_mut(&share.base) else { return };
        pin.holders -= 1;
        if pin.holders > 0 {
            return;
        }
        pins.remove(&share.base);
        let (table, at) = (context.table(), share.base as *mut c_void);
        // SAFETY: pinned above by the matching call, and unused. A share of allocated memory is released last, because
        // its owner holds the memory of the others.
        let released = unsafe {
            match share.allocated {
                true => table.host_free(HostPtr(at)),
                false => table.host_unregister(at),
            }
        };
        context.driver.note(released);
    }

    /// Returns the address that kernels of the current context use.
    pub fn device_pointer(&self, driver: &Driver, share: &Share) -> Result<DevicePtr, Refused> {
        // SAFETY: pinned and mapped, for every context.
        let base = unsafe { driver.table.host_device_pointer(share.base as *mut c_void, 0)? };
        Ok(DevicePtr(base.0 + share.offset as u64))
    }
}

/// Returns the base of the pinned range that contains these bytes.
fn around(pins: &BTreeMap<usize, Pin>, at: usize, bytes: usize) -> Option<usize> {
    let (base, pin) = pins.range(..=at).next_back()?;
    (at - base).checked_add(bytes).filter(|end| *end <= pin.bytes).map(|_| *base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_by_what_lies_in_it() {
        let pin = |bytes| Pin { bytes, holders: 1 };
        let pins = BTreeMap::from([(4096, pin(4096)), (16384, pin(100))]);
        assert_eq!(around(&pins, 4096, 4096), Some(4096));
        assert_eq!(around(&pins, 8191, 1), Some(4096));
        assert_eq!(around(&pins, 8191, 2), None);
        assert_eq!(around(&pins, 4095, 1), None);
        assert_eq!(around(&pins, 16400, 84), Some(16384));
        assert_eq!(around(&pins, 16400, usize::MAX), None);
    }
}
