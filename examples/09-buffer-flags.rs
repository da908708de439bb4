//! 9. Declaring how a buffer is used, which on some chips decides whether bytes are copied.
//!
//! `cargo run -p onebuf-examples --example 09-buffer-flags`
//!
//! On embedded chips the CPU and the accelerator share memory but not caches, and flags select the caches to
//! maintain. onebuf accepts named options or OpenCL flags, and enforces them for kernels and host.

use onebuf::{Access, HostAccess, MemoryKind, Result};
use std::{ptr::NonNull, sync::Arc};

const N: usize = 4096;
/// As in `CL/cl.h`; the last one is from TI's header.
const CL_MEM_READ_ONLY: u64 = 1 << 2;
const CL_MEM_WRITE_ONLY: u64 = 1 << 1;
const CL_MEM_ALLOC_HOST_PTR: u64 = 1 << 4;
const CL_MEM_HOST_WRITE_ONLY: u64 = 1 << 7;
const CL_MEM_USE_MSMC_TI: u64 = 1 << 20;

/// Page-aligned, so that any device can use it in place.
#[repr(align(4096))]
struct Samples([f32; N]);

/// Owns memory that onebuf borrows. Dropped after the last use, it frees the memory.
struct Lent(NonNull<Samples>);

// SAFETY: the pointer refers to plain data that is not bound to a thread.
unsafe impl Send for Lent {}
// SAFETY: as for `Send`; only `drop` uses the pointer.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::leak` below, and `drop` runs once.
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

    // With named options: kernels only read it, the host only writes it.
    let builder = hub.buffer::<f32>(N).shared_with([&device]);
    let input = builder.access(Access::Read).host_access(HostAccess::Write).build()?;
    input.write(&[1.0; N])?;
    println!("an input:\n{}\n", input.explain());
    println!("refused: {}\n", input.to_vec().expect_err("the host only writes"));

    // With OpenCL flags, in memory that the driver maps: no copy on unified memory. Devices without such
    // memory return an error; so does the host, which has its own pages.
    let flags = CL_MEM_READ_ONLY | CL_MEM_HOST_WRITE_ONLY | CL_MEM_ALLOC_HOST_PTR;
    match hub.buffer::<f32>(N).shared_with([&device]).cl_flags(flags)?.build() {
        Ok(mapped) => println!("by flags:\n{}\n", mapped.explain()),
        Err(error) => println!("by flags: {error}\n"),
    }

    // Contradictory flags are refused, whatever the driver would do with them.
    let both = hub.buffer::<f32>(N).cl_flags(CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY);
    println!("refused: {}\n", both.err().expect("a contradiction"));

    // The program's own memory. The device uses it in place if that route is proven (`onebuf doctor`); see `explain`.
    let samples = NonNull::from(Box::leak(Box::new(Samples([2.0; N]))));
    let builder = hub.buffer::<f32>(N).shared_with([&device]);
    // SAFETY: N numbers at a fixed address that nothing else uses until `Lent` is dropped.
    let own = unsafe { builder.host_memory(samples.cast(), Arc::new(Lent(samples))) }.build()?;
    println!("memory of our own:\n{}", own.explain());
    println!("its first number is {}", own.map()?[0]);
    drop(own);

    // On-chip memory is small and fast. It is used only on request; most platforms have none.
    let chip = hub.buffer::<f32>(N).shared_with([&device]).cl_flags(CL_MEM_USE_MSMC_TI)?.build();
    match chip {
        Ok(chip) => assert_eq!(chip.plan().memory_kind, MemoryKind::OnChip),
        Err(error) => println!("refused: {error}"),
    }
    Ok(())
}
