//! 1. One buffer, shared by the CPU and a device.
//!
//! `cargo run -p onebuf-examples --example 01-one-buffer`

use onebuf::{Each, Result, Source, prelude::*};

const N: usize = 1 << 16;

fn main() -> Result<()> {
    // The hub represents the machine as this process sees it. It is not global: a process may have several.
    let hub = onebuf::discover()?;

    // A missing API is not an error. The caller decides what to use instead: here, the host.
    let device = hub.device("opencl").unwrap_or_else(|missing| {
        println!("{missing}");
        hub.host()
    });
    println!("on {device}: {}", device.info().name);

    // One allocation, shared by all listed devices. The contents are copied from our vector; the ledger counts that as a
    // requested copy.
    let first: Vec<u32> = (0..N as u32).collect();
    let numbers = hub.buffer_from(&first).shared_with([&device]).build()?;

    // The kernel in OpenCL C, and as a Rust function for the host. Each device uses a form it supports.
    let source = Source::opencl_c(
        "kernel void square(global uint *x) { size_t i = get_global_id(0); x[i] *= x[i]; }",
    )
    .with_native("square", |args| {
        args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x = x.wrapping_mul(*x));
        Ok(())
    });

    // The Rust compiler cannot check a kernel, so declaring its parameters is the only unsafe step. `Each` says that the
    // buffer has an element for each work-item. Every launch checks that, so launching is safe.
    // SAFETY: work-item i touches x[i] only.
    let square = unsafe { device.kernel::<(Each<&mut u32>,)>(source, "square")? };

    // The launch takes a view of the buffer, which gives the device's default queue write access, and releases it when the
    // work is enqueued. It does not wait.
    square.launch([N], (&numbers,))?;

    // The CPU reads in place. `map` waits for the kernel through the buffer's fence.
    let map = numbers.map()?;
    assert!((0..N as u32).all(|i| map[i as usize] == i.wrapping_mul(i)));
    println!("the last square is {}", map[N - 1]);
    drop(map);

    // The ledger counts every byte that onebuf moved. Example 6 shows how to avoid implied copies.
    println!("{}", hub.ledger());
    Ok(())
}
