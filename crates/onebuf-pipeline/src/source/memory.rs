//! A source that reads frames from memory.

use super::{FrameSource, turns::Turns};
use crate::Filled;
use onebuf_hal::{Error, Result};
use std::borrow::Cow;

/// Reads frames that lie one after another in memory.
#[derive(Clone, Debug)]
pub struct Memory<'m, T: Clone> {
    all: Cow<'m, [T]>,
    at: usize,
    turns: Turns,
}

impl<'m, T: Clone> Memory<'m, T> {
    /// Reads the frames of a vector or a slice once.
    pub fn new(all: impl Into<Cow<'m, [T]>>) -> Self {
        Self { all: all.into(), at: 0, turns: Turns::ONE }
    }

    /// Repeats the data this many times instead of once.
    pub fn times(self, times: u64) -> Self {
        Self { turns: Turns::of(times), ..self }
    }

    /// Repeats the data forever.
    pub fn forever(self) -> Self {
        Self { turns: Turns::FOREVER, ..self }
    }
}

impl<T: Copy> FrameSource<T> for Memory<'_, T> {
    fn fill(&mut self, frame: &mut [T]) -> Result<Filled> {
        let (all, one) = (self.all.len(), frame.len());
        if all == 0 || one == 0 || !all.is_multiple_of(one) {
            let what = format!("{all} elements in memory are not a multiple of the frame's {one}");
            return Err(Error::invalid(what));
        }
        if self.at == all {
            (self.at, _) = (0, self.turns.end_one());
        }
        if self.turns.is_over() {
            return Ok(Filled::End);
        }
        frame.copy_from_slice(&self.all[self.at..self.at + one]);
        self.at += one;
        Ok(Filled::Frame)
    }
}
