//! 7. Sub-buffers: writing two halves concurrently, and sub-buffers that kernels only write or only read.
//!
//! `cargo run -p onebuf-examples --example 07-sub-buffers`

use onebuf::{Access, Device, Error, Kernel, Result, Signature, Source, args};

/// A multiple of the alignment that every known driver requires of a sub-buffer.
const HALF: usize = 1 << 15;

const TEXT: &str = "
kernel void fill(global uint *to, uint with) { to[get_global_id(0)] = with + (uint)get_global_id(0); }
kernel void copy(global const uint *from, global uint *to) {
    to[get_global_id(0)] = from[get_global_id(0)];
}";

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let device = hub.device("opencl").unwrap_or_else(|missing| {
        println!("{missing}");
        hub.host()
    });
    println!("on {device}: regions begin at multiples of {} bytes", device.info().caps.align_bytes);
    let [fill, copy] = kernels(&device)?;
    let buffer = hub.buffer::<u32>(2 * HALF).shared_with([&device]).build()?;

    // Two queues of one device write two sub-buffers concurrently, because these do not overlap. Each
    // queue waits only for work on its own bytes.
    let left = buffer.sub_buffer(..HALF, Access::ReadWrite)?;
    let right = buffer.sub_buffer(HALF.., Access::ReadWrite)?;
    let (one, two) = (device.queue()?, device.queue()?);
    let views = (left.write_on(&one)?, right.write_on(&two)?);

    // Access that overlaps a view in use would be a race. It is refused immediately.
    if let Err(Error::Busy { what }) = buffer.read_on(&one) {
        println!("the whole is busy: {what}");
    }
    one.launch(&fill, [HALF], args![views.0, 0u32])?;
    two.launch(&fill, [HALF], args![views.1, 1_000_000u32])?;

    // The host maps the whole buffer, so it waits for both queues.
    let map = buffer.map()?;
    assert!(map[HALF - 1] == HALF as u32 - 1 && map[HALF] == 1_000_000);
    println!("two halves, two queues: {} and {}", map[HALF - 1], map[HALF]);
    drop(map);

    // The first kernel writes through a write-only sub-buffer; the second reads the same bytes through a
    // read-only one. This lets a driver skip coherence work; onebuf enforces the access.
    let written = buffer.sub_buffer(..HALF, Access::Write)?;
    let read = buffer.sub_buffer(..HALF, Access::Read)?;
    one.launch(&fill, [HALF], args![&written, 7u32])?;
    one.launch(&copy, [HALF], args![&read, &right])?;
    assert_eq!(buffer.map()?[2 * HALF - 1], 7 + HALF as u32 - 1);

    // onebuf enforces these rules on every driver, including drivers that would accept the calls.
    for refused in [
        written.read_on(&one).map(drop),
        buffer.sub_buffer(1.., Access::Read).map(drop),
        buffer.sub_buffer(HALF..HALF, Access::Read).map(drop),
    ] {
        println!("refused: {}", refused.expect_err("against the rules"));
    }
    Ok(())
}

fn kernels(device: &Device) -> Result<[Kernel; 2]> {
    let source = Source::opencl_c(TEXT)
        .with_native("fill", |args| {
            let with = args.value::<u32>(1)?;
            (with..).zip(args.slice_mut::<u32>(0)?).for_each(|(value, to)| *to = value);
            Ok(())
        })
        .with_native("copy", |args| {
            let (from, to) = args.pair::<u32, u32>(0, 1)?;
            to.copy_from_slice(from);
            Ok(())
        });
    let program = device.program(&source)?;
    // `each` compares the work-items with the length of the sub-buffer, not with that of its buffer.
    let fill = Signature::new().each::<u32>(Access::Write).value::<u32>();
    let copy = Signature::new().each::<u32>(Access::Read).each::<u32>(Access::Write);
    // SAFETY: item i touches element i of each buffer.
    Ok(unsafe { [program.kernel("fill", fill)?, program.kernel("copy", copy)?] })
}
