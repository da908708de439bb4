//! 1. One buffer, seen by the CPU and by a device.
//!
//! `cargo run -p onebuf-examples --example 01-one-buffer`

use onebuf::{Access, Result, Signature, Source, args};

const N: usize = 1 << 16;

fn main() -> Result<()> {
    // The hub is this process's view of the machine. Nothing is global: there may be several.
    let hub = onebuf::discover()?;

    // A missing API is a fact, not an error: whoever wants a device decides what to do without.
    let device = hub.device("opencl").unwrap_or_else(|missing| {
        println!("{missing}");
        hub.host()
    });
    println!("on {device}: {}", device.info().name);

    // One allocation, however many devices see it. New buffers hold zeroes.
    let numbers = hub.buffer::<u32>(N).shared_with([&device]).build()?;

    // The CPU writes. `write` copies from our vector, because we asked; it is counted as that.
    let first: Vec<u32> = (0..N as u32).collect();
    numbers.write(&first)?;

    // The program, in OpenCL C and as a Rust function for the host. A device takes what it speaks.
    let source = Source::opencl_c(
        "kernel void square(global uint *x) { size_t i = get_global_id(0); x[i] *= x[i]; }",
    )
    .with_native("square", |args| {
        args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x = x.wrapping_mul(*x));
        Ok(())
    });

    // The compiler cannot see into a kernel, so declaring what it does is the one unsafe step. The
    // requirement is checked at every launch; launching is safe.
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite).require(|call| {
        if call.global()[0] <= call.len(0) {
            Ok(())
        } else {
            Err("more items than elements".into())
        }
    });
    // SAFETY: work-item i touches x[i] only, and the requirement says that there is an x[i].
    let square = unsafe { device.program(&source)?.kernel("square", signature)? };

    // A view says "this queue writes this buffer now". The launch takes it, and nobody else gets one
    // meanwhile. Nothing is waited for here.
    let queue = device.queue()?;
    queue.launch(&square, [N], args![numbers.write_on(&queue)?])?;

    // The CPU reads in place. Taking the map waits for the kernel: that is the fence's business.
    let map = numbers.map()?;
    assert!((0..N as u32).all(|i| map[i as usize] == i.wrapping_mul(i)));
    println!("the last square is {}", map[N - 1]);
    drop(map);

    // Every byte that onebuf moved. What is implied was not asked for: example 6 gets rid of it.
    println!("{}", hub.ledger());
    Ok(())
}
