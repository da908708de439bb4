//! Addresses of memory that another API allocated, in an address space that kernels of both APIs share.
//!
//! HIP's kernels and libraries can use such an address. HIP's *calls* do not know it: a fill is refused, the CPU makes
//! a copy between two such addresses, and a query succeeds without information. So no such call is ever made.

use super::device::Context;
use onebuf_experimental::{
    NEVER_RUN,
    placement::ROCR,
    rocr::{HipDevice, Rocr},
};
use onebuf_hal::{AddressFrom, AddressRange, AddressSpace, Error, Result, locks::Arc};
use std::fs;

/// What lies under a runtime.
#[derive(Clone, Debug)]
pub(super) enum Under {
    /// Something that shares its addresses with nobody.
    Own,
    /// ROCr; or why it cannot be asked.
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

    /// Whether pages that are registered are used where they lie. A runtime over OpenCL makes a second allocation, and each
    /// launch of any kernel copies all of those there and back, over what the host has written meanwhile.
    pub fn pins_in_place(&self) -> bool {
        !matches!(self, Under::Process)
    }

    /// ROCr, where it is to be had.
    pub fn rocr(&self) -> Option<&Arc<Rocr>> {
        match self {
            Under::Rocr(rocr) => rocr.as_ref().ok(),
            Under::Own | Under::Process => None,
        }
    }

    /// Where memory at another API's address lies, as text for `explain`.
    pub fn placement(&self, context: &Context, at: u64) -> Option<String> {
        match self {
            Under::Rocr(Ok(rocr)) => rocr.placement(context, at).or_else(|| Some(NEVER_RUN.into())),
            Under::Rocr(Err(_)) => Some(NEVER_RUN.into()),
            Under::Own | Under::Process => None,
        }
    }

    /// Whether kernels may be given the address. What a kernel said is held against what the runtime knows.
    pub fn check(&self, context: &Context, range: &AddressRange) -> Result<()> {
        match (self, range.from) {
            (Under::Own, _) => Err(refused(context, range, "it shares no addresses")),
            (_, AddressFrom::Allocator) => Ok(()),
            (Under::Rocr(Ok(rocr)), _) => rocr.check(context, range),
            (Under::Rocr(Err(why)), _) => {
                let why = format!("ROCr cannot be asked whether it is one: {why}");
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
        // SAFETY: allocated above, and no work was given it.
        self.driver.note(unsafe { self.table().free(at) });
        Ok(seen)
    }
}

fn refused(context: &Context, range: &AddressRange, why: &str) -> Error {
    let AddressRange { address, bytes, .. } = *range;
    let name = &context.driver.info.name;
    let what = format!("the address {address:#x} of {bytes} bytes on {name}: {why}");
    Error::unsupported(what, "another route, or a runtime that vouches for the address")
}

/// Whether the process may read and write all of it, as the kernel has it.
fn is_mapped(range: &AddressRange) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let end = range.address.saturating_add(range.bytes as u64);
    covers(&maps, range.address, end)
}

/// Whether mappings that may be written lie from the one address to the other without a hole.
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
