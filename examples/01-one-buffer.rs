//! 1. One buffer, shared by the CPU and a device.
//!
//! `cargo run -p onebuf-examples --example 01-one-buffer`

use onebuf::{Access, Result, Signature, Source, args};

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

    // One allocation, shared by all listed devices. A new buffer is zeroed.
    let numbers = hub.buffer::<u32>(N).shared_with([&device]).build()?;

    // The CPU writes. `write` copies from our vector; the ledger counts it as a requested copy.
    let first: Vec<u32> = (0..N as u32).collect();
    numbers.write(&first)?;

    // The kernel in OpenCL C, and as a Rust function for the host. Each device uses a form it supports.
    let source = Source::opencl_c(
        "kernel void square(global uint *x) { size_t i = get_global_id(0); x[i] *= x[i]; }",
    )
    .with_native("square", |args| {
        args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x = x.wrapping_mul(*x));
        Ok(())
    });

    // The Rust compiler cannot check a kernel, so declaring its signature is the only unsafe step.
    // Each launch checks the requirement, so launching is safe.
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite).require(|call| {
        if call.global()[0] <= call.len(0) {
            Ok(())
        } else {
            Err("more items than elements".into())
        }
    });
    // SAFETY: work-item i touches x[i] only, and the requirement checks that x[i] exists.
    let square = unsafe { device.program(&source)?.kernel("square", signature)? };

    // A view gives this queue write access to the buffer. The launch consumes the view; until then,
    // no conflicting view can be taken. Neither call waits.
    let queue = device.queue()?;
    queue.launch(&square, [N], args![numbers.write_on(&queue)?])?;

    // The CPU reads in place. `map` waits for the kernel through the buffer's fence.
    let map = numbers.map()?;
    assert!((0..N as u32).all(|i| map[i as usize] == i.wrapping_mul(i)));
    println!("the last square is {}", map[N - 1]);
    drop(map);

    // The ledger counts every byte that onebuf moved. Example 6 shows how to avoid implied copies.
    println!("{}", hub.ledger());
    Ok(())
}
