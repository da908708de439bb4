//! Buffers of gigabytes on one device: every element is computed by a kernel and read back, and so are their odd ends.

use super::{
    schedule::available,
    subject::{Side, Step, Unit},
};
use onebuf_core::{
    Buffer, Device, Hub,
    topology::{DeviceIx, Verdict, VerdictState},
};
use onebuf_hal::{Error, Result};
use std::ops::Range;

const GIB: u64 = 1 << 30;
/// Words read at a time.
const PIECE: usize = 4 << 20;
/// Words at each of the two ends that kernels and the host write alone.
const EDGE: usize = 1031;
/// Memory that the machine keeps for everything else.
const RESERVE: u64 = GIB;
/// How many times as long as in other experiments a helper may be silent.
pub(super) const PATIENCE: u32 = 6;

/// 1, 2 and 4 GiB, and sizes that end beside those.
pub const LARGE_SIZES: [u64; 6] =
    [GIB - 4, GIB, 2 * GIB - 4096, 2 * GIB + 4100, 4 * GIB, 4 * GIB + 4];

/// Whether one device computes every element of a large buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct LargeVerdict {
    /// The device.
    pub device: DeviceIx,
    /// The size of the buffer.
    pub bytes: u64,
    /// The verdict: refuted if an element was wrong, declared if there is not enough memory.
    pub verdict: Verdict,
}

/// The sizes that a reach includes, with their odd ends.
pub(super) fn sizes_within(reach: u64) -> Vec<u64> {
    LARGE_SIZES.into_iter().filter(|bytes| bytes / 8192 <= reach / 8192).collect()
}

/// The helper's side.
pub(super) fn run(hub: &Hub, id: &str, bytes: u64, tell: &mut dyn FnMut(&str)) -> Verdict {
    match hub.device(id) {
        Ok(device) => check_large(&device, bytes, tell),
        Err(error) => failed(error.to_string()),
    }
}

fn failed(why: String) -> Verdict {
    Verdict { state: VerdictState::Refuted, why, ..Verdict::default() }
}

/// Computes and checks every element of a buffer of this many bytes on one device, in this process. A size for which there is not
/// enough memory stays declared, with the reason. `tell` is called before each step.
pub fn check_large(device: &Device, bytes: u64, tell: &mut dyn FnMut(&str)) -> Verdict {
    if let Some(why) = too_large(device, bytes, available()) {
        return Verdict { why, ..Verdict::default() };
    }
    let mut tried = || -> Result<Option<String>> {
        let side = Side::open(device)?;
        let builder = device.hub().buffer::<u32>((bytes / 4) as usize).shared_with([device]);
        turns(&side, &builder.allocate_on(device).build()?, tell)
    };
    match tried() {
        Ok(None) => {
            let why = "every element, and both ends".into();
            Verdict { state: VerdictState::Proven, why, ..Verdict::default() }
        }
        Ok(Some(wrong)) => failed(wrong),
        Err(error @ Error::OutOfMemory { .. }) => {
            Verdict { why: error.to_string(), ..Verdict::default() }
        }
        Err(error) => failed(error.to_string()),
    }
}

/// Why this machine or the device has no room for such a buffer. Memory of the host counts twice: a driver may keep its own copy.
pub(super) fn too_large(device: &Device, bytes: u64, available: u64) -> Option<String> {
    let info = device.info();
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

/// Steps over all elements, then over both ends, which the host also writes; each time all of it is read. Returns what is wrong.
fn turns(side: &Side, buffer: &Buffer<u32>, tell: &mut dyn FnMut(&str)) -> Result<Option<String>> {
    let len = buffer.len();
    let whole = Step { mul: 2_654_435_761, add: 40_503 };
    tell("a kernel over all elements");
    step_range(side, buffer, 0..len, whole)?;
    side.queue.finish()?;
    let computed = |i: usize| 0u32.step(i as u32, whole);
    if let Some(wrong) = compare(buffer, computed, tell)? {
        return Ok(Some(format!("a kernel over all elements: {wrong}")));
    }
    // The host writes the last words, a kernel computes both ends from what it finds there.
    let (edge, step) = (EDGE.min(len / 2), Step { mul: 40_503, add: 0x5bd1_e995 });
    let tail = len - edge;
    tell("both ends");
    let words: Vec<u32> = (0..edge as u32).collect();
    buffer.write_range(tail.., &words)?;
    for first in [0, tail] {
        side.step(buffer, first, edge, step)?;
    }
    let wrong = compare(
        buffer,
        |i| match i {
            i if i < edge => computed(i).step(i as u32, step),
            i if i >= tail => ((i - tail) as u32).step((i - tail) as u32, step),
            i => computed(i),
        },
        tell,
    )?;
    Ok(wrong.map(|wrong| format!("both ends: {wrong}")))
}

/// Steps over a range of elements, in one launch if the device allows as many groups, otherwise in several.
fn step_range(side: &Side, buffer: &Buffer<u32>, range: Range<usize>, step: Step) -> Result<()> {
    // A kernel adds the element's number in its launch; with this, in the buffer.
    let here = Step { add: step.add.wrapping_add(range.start as u32), ..step };
    match side.step(buffer, range.start, range.len(), here) {
        // Such a refusal comes before anything is enqueued.
        Err(Error::InvalidArgument(_)) if range.len() > 1 => {
            let middle = range.start + range.len() / 2;
            step_range(side, buffer, range.start..middle, step)?;
            step_range(side, buffer, middle..range.end, step)
        }
        done => done,
    }
}

/// Reads all elements in pieces.
fn compare(
    buffer: &Buffer<u32>,
    expected: impl Fn(usize) -> u32,
    tell: &mut dyn FnMut(&str),
) -> Result<Option<String>> {
    let mut piece = vec![0; PIECE.min(buffer.len())];
    for first in (0..buffer.len()).step_by(piece.len()) {
        tell("reading every element");
        let seen = &mut piece[..PIECE.min(buffer.len() - first)];
        buffer.read_range(first..first + seen.len(), seen)?;
        let mut elements = (first..).zip(seen.iter());
        if let Some((i, seen)) = elements.find(|(i, seen)| **seen != expected(*i)) {
            let expected = expected(i);
            return Ok(Some(format!("element {i} is {seen:#x} instead of {expected:#x}")));
        }
    }
    Ok(None)
}

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_reach_includes_the_sizes_beside_it() {
        assert_eq!(sizes_within(GIB), LARGE_SIZES[..2]);
        assert_eq!(sizes_within(2 * GIB), LARGE_SIZES[..4]);
        assert_eq!(sizes_within(4 * GIB), LARGE_SIZES);
    }
}
