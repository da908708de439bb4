//! When the exchanges of a corner turn's frames ended, for traces.

use onebuf_hal::locks::{Mutex, lock};
use std::{collections::VecDeque, mem, sync::Arc, time::Instant};

/// The exchange of one frame with one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exchange {
    /// The number of the frame.
    pub frame: u64,
    /// The other rank.
    pub peer: usize,
    /// The bytes that it sent.
    pub received_bytes: u64,
    /// When this rank began the frame.
    pub began: Instant,
    /// When the last message to or from the other rank had ended.
    pub ended: Instant,
}

/// The newest exchanges of a [`CornerTurn`](crate::CornerTurn), which a pipeline owns: made by
/// [`CornerTurn::log`](crate::CornerTurn::log).
#[derive(Clone, Debug)]
pub struct TurnLog(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    most: usize,
    newest: Mutex<VecDeque<Exchange>>,
}

impl TurnLog {
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Kept { most, newest: Mutex::default() }))
    }

    pub(super) fn note(&self, exchanges: impl Iterator<Item = Exchange>) {
        let mut newest = lock(&self.0.newest);
        for exchange in exchanges {
            if newest.len() == self.0.most {
                newest.pop_front();
            }
            newest.push_back(exchange);
        }
        newest.truncate(self.0.most);
    }

    /// Takes the exchanges so far, in the order of the frames.
    pub fn take(&self) -> Vec<Exchange> {
        mem::take(&mut *lock(&self.0.newest)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept() {
        let now = Instant::now();
        let exchange =
            |frame| Exchange { frame, peer: 1, received_bytes: 8, began: now, ended: now };
        for (most, kept) in [(0, vec![]), (2, vec![3, 4]), (9, vec![0, 1, 2, 3, 4])] {
            let log = TurnLog::new(most);
            log.note((0..5).map(exchange));
            assert_eq!(log.take().iter().map(|one| one.frame).collect::<Vec<_>>(), kept);
            assert!(log.take().is_empty());
        }
    }
}
