//! 9. Saying how a buffer is used, for chips on which that decides whether bytes are moved.
//!
//! `cargo run -p onebuf-examples --example 09-buffer-flags`
//!
//! On embedded chips CPU and accelerator share one memory but not their caches, and flags say which caches to
//! keep up to date. onebuf has words for them, takes the numbers too, and holds everybody to them.

use onebuf::{Access, HostAccess, MemoryKind, Result};
use std::{ptr::NonNull, sync::Arc};

const N: usize = 4096;
/// As in `CL/cl.h`; the last is in TI's own header.
const CL_MEM_READ_ONLY: u64 = 1 << 2;
const CL_MEM_WRITE_ONLY: u64 = 1 << 1;
const CL_MEM_ALLOC_HOST_PTR: u64 = 1 << 4;
const CL_MEM_HOST_WRITE_ONLY: u64 = 1 << 7;
const CL_MEM_USE_MSMC_TI: u64 = 1 << 20;

/// Aligned to a page, so that any device can use it in place.
#[repr(align(4096))]
struct Samples([f32; N]);

/// Memory of our own that somebody else uses; freed when nobody does any more.
struct Lent(NonNull<Samples>);

// SAFETY: a pointer to plain data that nothing is bound to a thread by.
unsafe impl Send for Lent {}
// SAFETY: the same; only its drop uses the pointer.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: made of a box below, and dropped once.
        let samples = unsafe { Box::from_raw(self.0.as_ptr()) };
        println!("our memory came back, and its first number is {}", samples.0[0]);
    }
}

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let device = hub.device("opencl").unwrap_or_else(|missing| {
        println!("{missing}");
        hub.host()
    });

    // In words: kernels only read it, the host only writes it.
    let builder = hub.buffer::<f32>(N).shared_with([&device]);
    let input = builder.access(Access::Read).host_access(HostAccess::Write).build()?;
    input.write(&[1.0; N])?;
    println!("an input:\n{}\n", input.explain());
    println!("refused: {}\n", input.to_vec().expect_err("the host only writes"));

    // The same in OpenCL's numbers, and from memory that the driver maps: no copy on unified memory. Devices
    // that have no such memory (the host has its own pages) say so.
    let flags = CL_MEM_READ_ONLY | CL_MEM_HOST_WRITE_ONLY | CL_MEM_ALLOC_HOST_PTR;
    match hub.buffer::<f32>(N).shared_with([&device]).cl_flags(flags)?.build() {
        Ok(mapped) => println!("by flags:\n{}\n", mapped.explain()),
        Err(error) => println!("by flags: {error}\n"),
    }

    // Flags that exclude each other are refused whatever the driver would make of them.
    let both = hub.buffer::<f32>(N).cl_flags(CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY);
    println!("refused: {}\n", both.err().expect("a contradiction"));

    // Memory of one's own. The device uses it in place where that is proven (`onebuf doctor`); `explain` says.
    let samples = NonNull::from(Box::leak(Box::new(Samples([2.0; N]))));
    let builder = hub.buffer::<f32>(N).shared_with([&device]);
    // SAFETY: N numbers that nobody else uses, at a fixed address, until `Lent` is dropped.
    let own = unsafe { builder.host_memory(samples.cast(), Arc::new(Lent(samples))) }.build()?;
    println!("memory of our own:\n{}", own.explain());
    println!("its first number is {}", own.map()?[0]);
    drop(own);

    // On-chip memory, small and fast, is never chosen, only asked for; most platforms have none.
    let chip = hub.buffer::<f32>(N).shared_with([&device]).cl_flags(CL_MEM_USE_MSMC_TI)?.build();
    match chip {
        Ok(chip) => assert_eq!(chip.plan().memory_kind, MemoryKind::OnChip),
        Err(error) => println!("refused: {error}"),
    }
    Ok(())
}
