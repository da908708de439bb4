//! Volatile bytes: memory that others may write at any time. It is copied, never borrowed.
//!
//! # Safety
//! No reference to plain bytes of such memory is created. Every access is a relaxed atomic access to a byte or an aligned word:
//! it gives some value whatever others write, and copied bytes do not change afterwards. The others may be another process, or
//! another mapping of the same pages in this one. Drivers get such memory by raw pointers, and copy it as a device would.

#![allow(unsafe_code)]

use crate::{Error, Result};
use std::{
    marker::PhantomData,
    ptr::NonNull,
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
};

const WORD: usize = size_of::<u64>();
/// Bytes that a copy or fill moves at a time.
const STEP: usize = 16 << 10;

/// Volatile bytes, borrowed for as long as a guard of them lives.
pub struct VolatileBytes<'h> {
    start: NonNull<u8>,
    len: usize,
    guard: PhantomData<&'h ()>,
}

impl VolatileBytes<'_> {
    /// # Safety
    /// `len` bytes at `start` are mapped for reading and writing during the lifetime.
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, guard: PhantomData }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let head = self.head(offset, into.len())?;
        let (first, rest) = into.split_at_mut(head);
        let (words, last) = rest.as_chunks_mut();
        let end = offset + head + words.len() * WORD;
        let bytes = (offset..).zip(first).chain((end..).zip(last));
        bytes.for_each(|(at, to)| *to = self.byte(at).load(Relaxed));
        let words = (offset + head..).step_by(WORD).zip(words);
        words.for_each(|(at, to)| *to = self.word(at).load(Relaxed).to_ne_bytes());
        Ok(())
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        let head = self.head(offset, from.len())?;
        let (first, rest) = from.split_at(head);
        let (words, last) = rest.as_chunks();
        let end = offset + head + words.len() * WORD;
        let bytes = (offset..).zip(first).chain((end..).zip(last));
        bytes.for_each(|(at, from)| self.byte(at).store(*from, Relaxed));
        let words = (offset + head..).step_by(WORD).zip(words);
        words.for_each(|(at, from)| self.word(at).store(u64::from_ne_bytes(*from), Relaxed));
        Ok(())
    }

    /// Fills a range with a repeated pattern.
    pub fn fill(&self, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()> {
        self.head(offset, bytes)?;
        let times = STEP.div_ceil(pattern.len().max(1)).min(bytes.div_ceil(pattern.len().max(1)));
        let step = pattern.repeat(times);
        let starts = (0..bytes).step_by(step.len().max(1));
        starts
            .map(|at| (at, &step[..step.len().min(bytes - at)]))
            .try_for_each(|(at, part)| self.write(offset + at, part))
    }

    /// Copies bytes from another range, which may be in the same memory.
    pub fn copy_from(
        &self,
        offset: usize,
        from: &VolatileBytes<'_>,
        from_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        self.head(offset, bytes)?;
        from.head(from_offset, bytes)?;
        let mut step = vec![0; bytes.min(STEP)];
        let mut starts: Vec<usize> = (0..bytes).step_by(STEP).collect();
        // Direction as in `memmove`: no byte is overwritten before it was read.
        if from.start.addr().get() + from_offset < self.start.addr().get() + offset {
            starts.reverse();
        }
        starts.into_iter().try_for_each(|at| {
            let part = &mut step[..STEP.min(bytes - at)];
            from.read(from_offset + at, part)?;
            self.write(offset + at, part)
        })
    }

    /// How many of the bytes precede the first aligned word. An error unless all of them are in range.
    fn head(&self, offset: usize, bytes: usize) -> Result<usize> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            let len = self.len;
            return Err(Error::invalid(format!("{bytes} bytes at {offset} of {len}")));
        }
        let at = self.start.addr().get() + offset;
        Ok((at.next_multiple_of(WORD) - at).min(bytes))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at + WORD <= self.len, "a word inside of the bytes");
        // SAFETY: the word was just checked to lie inside the bytes.
        let word = unsafe { self.start.add(at) }.cast::<u64>();
        assert!(word.is_aligned(), "`head` bytes come before the first word");
        // SAFETY: mapped during the lifetime, aligned, and only accessed atomically.
        unsafe { AtomicU64::from_ptr(word.as_ptr()) }
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.len, "a byte inside of the bytes");
        // SAFETY: just checked to lie inside; mapped and accessed as above.
        unsafe { AtomicU8::from_ptr(self.start.add(at).as_ptr()) }
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_and_length() {
        let mut memory = [0_u64; 8];
        let start = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: a local array, accessed only through this value.
        let volatile = unsafe { VolatileBytes::new(start, 64) };
        let model: Vec<u8> = (1..=64).collect();
        for offset in 0..24 {
            for len in 0..=40 {
                volatile.write(0, &[0; 64]).unwrap();
                volatile.write(offset, &model[..len]).unwrap();
                let mut all = [9; 64];
                volatile.read(0, &mut all).unwrap();
                let mut want = [0; 64];
                want[offset..offset + len].copy_from_slice(&model[..len]);
                assert_eq!(all, want, "{len} bytes at {offset}");
                let mut back = vec![0; len];
                volatile.read(offset, &mut back).unwrap();
                assert_eq!(back, model[..len]);
            }
        }
        assert!(volatile.read(60, &mut [0; 5]).is_err());
        assert!(
            volatile.fill(60, 5, &[1]).is_err() && volatile.copy_from(0, &volatile, 60, 5).is_err()
        );
        assert!(volatile.write(usize::MAX, &[0; 2]).is_err());
    }

    #[test]
    fn fills_and_copies_are_what_slices_do() {
        let mut memory = vec![0_u64; 3 * STEP / WORD];
        let (start, len) = (NonNull::from(&mut memory[..]).cast::<u8>(), 3 * STEP);
        // SAFETY: a local vector, accessed only through this value.
        let volatile = unsafe { VolatileBytes::new(start, len) };
        let mut model: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        volatile.write(0, &model).unwrap();
        for (offset, bytes, pattern) in
            [(3, 9, &[1, 2, 3][..]), (40, 2 * STEP, &[9; 8]), (0, 0, &[5])]
        {
            volatile.fill(offset, bytes, pattern).unwrap();
            let target = model[offset..offset + bytes].iter_mut();
            target.zip(pattern.iter().cycle()).for_each(|(to, from)| *to = *from);
        }
        for (from, to, bytes) in [(5, 9, 2 * STEP), (9, 5, 2 * STEP), (0, STEP, 100), (STEP, 1, 3)]
        {
            volatile.copy_from(to, &volatile, from, bytes).unwrap();
            model.copy_within(from..from + bytes, to);
        }
        let mut all = vec![0; len];
        volatile.read(0, &mut all).unwrap();
        assert_eq!(all, model);
    }
}
