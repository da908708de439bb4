//! Buffers of gigabytes on one device: every element is computed by a kernel and read back, and so are their odd ends.

use crate::{Ending, Outcome, Side, Step};
use onebuf::{Buffer, Error, Hub};
use onebuf_hal::native::panic_text;
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
};

const CASE: &str = "large::every_element";
const GIB: u64 = 1 << 30;
/// Bytes read at a time.
const PIECE: usize = 64 << 20;
/// Words at each of the two ends that kernels and the host write alone.
const EDGE: usize = 1031;
/// Memory that the machine keeps for everything else.
const RESERVE: u64 = GIB;

/// 1, 2 and 4 GiB, and sizes that end beside those.
pub const LARGE_SIZES: [u64; 6] =
    [GIB - 4, GIB, 2 * GIB - 4096, 2 * GIB + 4100, 4 * GIB, 4 * GIB + 4];

/// Checks a buffer of each size, in bytes, on one device. Sizes for which there is not enough memory are skipped.
pub fn large(hub: &Hub, side: &Side, sizes: &[u64]) -> Vec<Outcome> {
    let outcome = |bytes: &u64| {
        let caught = catch_unwind(AssertUnwindSafe(|| check(hub, side, *bytes)));
        let ending = caught.unwrap_or_else(|panic| Ending::Failed(panic_text(&*panic).to_owned()));
        let (devices, detail) = (vec![side.device.id().to_owned()], format!("{bytes} bytes"));
        Outcome { case: CASE, devices, detail, ending }
    };
    sizes.iter().map(outcome).collect()
}

fn check(hub: &Hub, side: &Side, bytes: u64) -> Ending {
    if let Some(why) = too_large(side, bytes, available()) {
        return Ending::NotApplicable(why);
    }
    let elements = (bytes / 4) as usize;
    let builder = hub.buffer::<u32>(elements).shared_with([&side.device]);
    let buffer = match builder.allocate_on(&side.device).build() {
        Ok(buffer) => buffer,
        Err(error @ Error::OutOfMemory { .. }) => return Ending::Skipped(error.to_string()),
        Err(error) => return Ending::Failed(error.to_string()),
    };
    match turns(side, &buffer) {
        Ok(()) => Ending::Passed,
        Err(why) => Ending::Failed(why),
    }
}

/// Why this machine or the device has no room for such a buffer. Memory of the host counts twice: a driver may keep its own copy.
fn too_large(side: &Side, bytes: u64, available: u64) -> Option<String> {
    let info = side.device.info();
    let most = info.caps.max_alloc_bytes;
    if most != 0 && bytes > most {
        return Some(format!("the device allocates at most {most} bytes"));
    }
    let needed = bytes.saturating_mul(2).saturating_add(RESERVE);
    if needed > available {
        return Some(format!("{needed} bytes of memory are needed and {available} are free"));
    }
    let memory = info.memory_bytes;
    let full = memory != 0 && bytes > memory / 4 * 3;
    full.then(|| format!("the device has {memory} bytes of memory"))
}

/// The memory in bytes that programs can still get, according to the kernel.
fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib.saturating_mul(1024))
}

/// Steps over all elements, then over both ends, which the host also writes; each time all of it is read.
fn turns(side: &Side, buffer: &Buffer<u32>) -> Result<(), String> {
    let told = |what: &'static str| move |error: Error| format!("{what}: {error}");
    let len = buffer.len();
    let whole = Step::nth(1);
    side.step(buffer, whole).map_err(told("a kernel over all elements"))?;
    let computed = |i: usize| stepped(0, i, whole);
    compare(buffer, computed)?;
    // The host writes the last words, a kernel computes both ends from what it finds there.
    let (tail, edge) = (len - EDGE, Step::nth(2));
    let words: Vec<u32> = (0..EDGE as u32).collect();
    buffer.write_range(tail.., &words).map_err(told("writing the end"))?;
    for first in [0, tail] {
        side.step_range(buffer, first, EDGE, edge).map_err(told("a kernel over one end"))?;
    }
    compare(buffer, |i| match i {
        i if i < EDGE => stepped(computed(i), i, edge),
        i if i >= tail => stepped((i - tail) as u32, i - tail, edge),
        i => computed(i),
    })
}

/// The kernel's effect on one element, which is number `i` of its range.
fn stepped(x: u32, i: usize, step: Step) -> u32 {
    x.wrapping_mul(step.mul).wrapping_add(step.add).wrapping_add(i as u32)
}

/// Reads all elements in pieces.
fn compare(buffer: &Buffer<u32>, expected: impl Fn(usize) -> u32) -> Result<(), String> {
    let mut piece = vec![0; (PIECE / 4).min(buffer.len())];
    for first in (0..buffer.len()).step_by(piece.len()) {
        let seen = &mut piece[..(PIECE / 4).min(buffer.len() - first)];
        let range = first..first + seen.len();
        buffer.read_range(range, seen).map_err(|error| format!("reading: {error}"))?;
        let mut elements = (first..).zip(seen.iter());
        if let Some((i, seen)) = elements.find(|(i, seen)| **seen != expected(*i)) {
            let expected = expected(i);
            return Err(format!("element {i} is {seen:#x} instead of {expected:#x}"));
        }
    }
    Ok(())
}
