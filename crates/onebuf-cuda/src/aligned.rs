//! Allocations that begin at an alignment, whatever the driver's own alignment is.
//!
//! CUDA's and AMD's drivers align to 256 bytes, pinned memory to a page; a runtime built on OpenCL aligns to 128. A buffer may
//! need more: another device's alignment, or the one that the program requested.

use super::device::Context;
use onebuf_sys::{
    Refused,
    cuda_like::{DevicePtr, HostPtr},
};

/// An address that a driver returned.
pub(super) trait Address: Copy {
    fn number(self) -> usize;
    fn forward(self, bytes: usize) -> Self;
}

impl Address for DevicePtr {
    fn number(self) -> usize {
        self.0 as usize
    }

    fn forward(self, bytes: usize) -> Self {
        DevicePtr(self.0 + bytes as u64)
    }
}

impl Address for HostPtr {
    fn number(self) -> usize {
        self.0.addr()
    }

    fn forward(self, bytes: usize) -> Self {
        HostPtr(self.0.wrapping_byte_add(bytes))
    }
}

/// An allocation, and where its aligned part begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Aligned<P> {
    /// What the driver returned, to be freed.
    pub base: P,
    /// The first aligned address.
    pub at: P,
    /// The bytes of the whole allocation.
    pub bytes: usize,
}

/// Allocates `bytes` that begin at a multiple of `align`, a power of two. If the driver's address is not one, it is freed, and
/// a larger allocation contains an aligned part.
pub(super) fn allocate<P: Address>(
    bytes: usize,
    align: usize,
    allocate: impl Fn(usize) -> Result<P, Refused>,
    free: impl FnOnce(P),
) -> Result<Aligned<P>, Refused> {
    let base = allocate(bytes)?;
    if base.number().is_multiple_of(align) {
        return Ok(Aligned { base, at: base, bytes });
    }
    free(base);
    let bytes = bytes.saturating_add(align);
    let base = allocate(bytes)?;
    let offset = base.number().next_multiple_of(align) - base.number();
    Ok(Aligned { base, at: base.forward(offset), bytes })
}

/// Allocates device or managed memory that begins at a multiple of `align`. The context is current. What is not aligned is freed
/// later if a free could block forever.
pub(super) fn on_device(
    context: &Context,
    bytes: usize,
    align: usize,
    allocate_bytes: impl Fn(usize) -> Result<DevicePtr, Refused>,
) -> Result<Aligned<DevicePtr>, Refused> {
    let free = |at| {
        context.free_later(&[], move |context| {
            // SAFETY: what was allocated just now, unused.
            context.driver.note(unsafe { context.table().free(at) });
        });
    };
    allocate(bytes, align, allocate_bytes, free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn an_aligned_part_lies_inside_of_the_allocation() {
        for (start, align) in [(4096, 256), (4096 + 128, 256), (4096 + 1, 256), (4096 + 255, 64)] {
            let (asked, freed) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
            let driver = |bytes: usize| {
                asked.borrow_mut().push(bytes);
                Ok(DevicePtr(start))
            };
            let made = allocate(1000, align, driver, |at| freed.borrow_mut().push(at)).unwrap();
            assert_eq!((made.base, made.at.number() % align), (DevicePtr(start), 0), "{start}");
            assert!(made.at.0 >= start && made.at.0 + 1000 <= start + made.bytes as u64);
            let (plain, freed) = (start.is_multiple_of(align as u64), freed.into_inner());
            assert_eq!(freed, if plain { vec![] } else { vec![DevicePtr(start)] });
            let asked = asked.into_inner();
            assert_eq!(asked, if plain { vec![1000] } else { vec![1000, 1000 + align] });
            assert_eq!(made.bytes, *asked.last().unwrap());
        }
    }
}
