//! Addresses of memory that another API allocated, in an address space that kernels of both APIs share.
//!
//! HIP's kernels and libraries can use such an address. HIP's API calls do not recognise it: a fill is refused, a copy
//! between two such addresses runs on the CPU, and a query succeeds without information. So onebuf never makes such a
//! call.

use super::device::Context;
use onebuf_experimental::{
    NEVER_RUN,
    placement::ROCR,
    rocr::{HipDevice, Rocr},
};
use onebuf_hal::{AddressFrom, AddressRange, AddressSpace, Error, Result, locks::Arc};
use std::fs;

/// The layer under a CUDA or HIP runtime.
#[derive(Clone, Debug)]
pub(super) enum Under {
    /// A driver that shares its addresses with no other API.
    Own,
    /// ROCr, or why it could not be opened.
    Rocr(Result<Arc<Rocr>, String>),
    /// OpenCL on the CPU.
    Process,
}

impl Under {
    pub fn space(&self) -> Option<AddressSpace> {
        match self {
            Under::Own => None,
            Under::Rocr(_) => Some(ROCR),
            Under::Process => Some(AddressSpace::Process),
        }
    }

    /// Whether registered pages are used in place. A runtime over OpenCL makes a second allocation instead, and each
    /// kernel launch copies all registered pages there and back, which overwrites what the host has written meanwhile.
    pub fn pins_in_place(&self) -> bool {
        !matches!(self, Under::Process)
    }

    /// Returns ROCr if it is available.
    pub fn rocr(&self) -> Option<&Arc<Rocr>> {
        match self {
            Under::Rocr(rocr) => rocr.as_ref().ok(),
            Under::Own | Under::Process => None,
        }
    }

    /// Describes where memory at another API's address lies, for `explain`.
    pub fn placement(&self, context: &Context, at: u64) -> Option<String> {
        match self {
            Under::Rocr(Ok(rocr)) => rocr.placement(context, at).or_else(|| Some(NEVER_RUN.into())),
            Under::Rocr(Err(_)) => Some(NEVER_RUN.into()),
            Under::Own | Under::Process => None,
        }
    }

    /// Checks that kernels may use the address. An address that a kernel reported must also be confirmed by the
    /// runtime.
    pub fn check(&self, context: &Context, range: &AddressRange) -> Result<()> {
        match (self, range.from) {
            (Under::Own, _) => Err(refused(context, range, "it shares no addresses")),
            (_, AddressFrom::Allocator) => Ok(()),
            (Under::Rocr(Ok(rocr)), _) => rocr.check(context, range),
            (Under::Rocr(Err(why)), _) => {
                let why = format!("ROCr cannot confirm the address: {why}");
                Err(refused(context, range, &why))
            }
            (Under::Process, _) if is_mapped(range) => Ok(()),
            (Under::Process, _) => {
                Err(refused(context, range, "the process has no such memory, or may not write it"))
            }
        }
    }
}

impl HipDevice for Context {
    fn ordinal(&self) -> i32 {
        self.driver.device
    }

    fn with_allocation<T>(&self, bytes: usize, inspect: impl FnOnce(u64) -> T) -> Result<T> {
        let _current = self.enter()?;
        // SAFETY: the context is current.
        let at = self.driver.check(unsafe { self.table().alloc(bytes) })?;
        let seen = inspect(at.0);
        // SAFETY: allocated above, and used by no enqueued work.
        self.driver.note(unsafe { self.table().free(at) });
        Ok(seen)
    }
}

fn refused(context: &Context, range: &AddressRange, why: &str) -> Error {
    let AddressRange { address, bytes, .. } = *range;
    let name = &context.driver.info.name;
    let what = format!("the address {address:#x} of {bytes} bytes on {name} ({why})");
    Error::unsupported(what, "another route, or a runtime that vouches for the address")
}

/// Whether the process may read and write the whole range, according to `/proc/self/maps`.
fn is_mapped(range: &AddressRange) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let end = range.address.saturating_add(range.bytes as u64);
    covers(&maps, range.address, end)
}

/// Whether writable mappings cover `from..end` without a gap.
fn covers(maps: &str, from: u64, end: u64) -> bool {
    let mut at = from;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let Some((low, high)) = words.next().and_then(|range| range.split_once('-')) else {
            continue;
        };
        let number = |hex| u64::from_str_radix(hex, 16).unwrap_or(0);
        let writable = words.next().is_some_and(|flags| flags.starts_with("rw"));
        if writable && number(low) <= at && at < number(high) {
            at = number(high);
        }
    }
    from != 0 && from < end && at >= end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_lies_there_without_a_hole() {
        let maps =
            "1000-3000 rw-p 0 0:0 0\n3000-4000 rw-s 0 0:0 0 a\n4000-5000 r--p 0\n6000-7000 rw-p";
        assert!(covers(maps, 0x1000, 0x4000));
        assert!(covers(maps, 0x2fff, 0x3001));
        assert!(!covers(maps, 0x3000, 0x4001), "not to be written");
        assert!(!covers(maps, 0x5000, 0x6001), "a hole");
        assert!(!covers(maps, 0xfff, 0x1001));
        assert!(!covers(maps, 0x1000, 0x1000), "nothing");
    }

    #[test]
    fn this_process_has_its_own_memory() {
        let here = [0u8; 64];
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let at = here.as_ptr() as u64;
        assert!(covers(&maps, at, at + 64));
        assert!(!covers(&maps, 8, 16));
    }
}
