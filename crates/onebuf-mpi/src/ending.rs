//! How a stream or a turn ends before its time: the other ranks are told, and waited for, but not forever.

use crate::{
    board::Board,
    deadline::Deadline,
    engine::{Io, Posted},
    world::World,
};
use onebuf_hal::{Error, Result, locks::MutexGuard};
use std::{mem, time::Duration};

/// How long receives that were given up are waited for.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// How far a stream or a turn is from its end, which its owner shares with the communication thread.
#[derive(Default)]
pub(crate) struct Fate {
    /// Why it has failed: the first reason.
    pub error: Option<Error>,
    /// Frames or slots whose memory is in use.
    pub busy: usize,
    /// No more of them are begun.
    pub over: bool,
    /// Both sides have said their last.
    pub closed: bool,
    /// The owner waits no longer for the other ranks.
    pub abandoned: bool,
    /// The owner has something to collect that it was not told of.
    pub news: bool,
    /// It has, and is told at the end of the burst.
    pub later: bool,
}

/// Frames up to this size come in bursts: the owner is told of several at a time. Larger ones take so long that telling of each
/// costs little, and waiting for the next would cost more.
const BURST_BYTES: usize = 2 << 20;

/// How many frames of a ring are a burst.
pub(crate) fn burst(slots: usize, bytes: usize) -> usize {
    if bytes > BURST_BYTES { 1 } else { (slots / 2).max(1) }
}

impl Fate {
    pub fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// Notes how many frames the owner can collect, and of how many it is told at once. Of fewer it is told when nothing else
    /// ends.
    pub fn note_ready(&mut self, ready: usize, burst: usize) {
        self.news |= ready >= burst;
        self.later |= ready > 0;
    }

    /// Whether the owner is to be woken. Each time costs a change of threads, so that happens only if it has something to do.
    pub fn tells(&mut self) -> bool {
        let now =
            mem::take(&mut self.news) || self.error.is_some() || self.closed || self.abandoned;
        self.later &= !now;
        now
    }

    /// Whether both sides have said their last, and no memory is in use.
    fn is_over(&self) -> bool {
        self.closed && self.busy == 0
    }
}

/// State with a fate.
pub(crate) trait Ends {
    fn fate(&mut self) -> &mut Fate;
}

/// Wakes the owner now, or later, if it has something to do.
pub(crate) fn tell<E: Ends>(board: &Board<E>, mut state: MutexGuard<'_, E>, io: &mut Io<'_>) {
    let (now, later) = (state.fate().tells(), state.fate().later);
    drop(state);
    if now {
        board.tell();
    } else if later {
        io.tell_later();
    }
}

/// The burst is over: wakes the owner if it was to be told later.
pub(crate) fn tell_now<E: Ends>(board: &Board<E>) {
    if mem::take(&mut board.lock().fate().later) {
        board.tell();
    }
}

/// Waits for an orderly end.
///
/// # Errors
/// Why it has failed; `late` if the other ranks do not come to the end in time.
pub(crate) fn finish<E: Ends>(
    board: &Board<E>,
    posted: &Posted,
    world: &World,
    timeout: Duration,
    late: impl FnOnce() -> Error,
) -> Result<()> {
    posted.wake();
    let ended = board.wait(Deadline::after(timeout), |state| match &state.fate().error {
        Some(error) => Some(Err(error.clone())),
        None => state.fate().is_over().then_some(Ok(())),
    });
    world.watch(ended.unwrap_or_else(|| Err(late())))
}

/// Waits until it is over. Returns whether the owner's memory is free.
pub(crate) fn settle<E: Ends>(board: &Board<E>, posted: &Posted, world: &World) -> bool {
    posted.wake();
    let over = |state: &mut E| state.fate().is_over().then_some(());
    if board.wait(Deadline::after(world.last_wait()), over).is_some() {
        return true;
    }
    board.lock().fate().abandoned = true;
    posted.wake();
    let free = |state: &mut E| (state.fate().busy == 0).then_some(());
    board.wait(Deadline::after(LAST_WAIT), free).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_told_of_a_burst_at_once_and_of_less_later() {
        assert_eq!([burst(8, 1 << 20), burst(2, 1), burst(1, 1), burst(8, 8 << 20)], [4, 1, 1, 1]);
        let mut fate = Fate::default();
        fate.note_ready(0, 2);
        assert_eq!((fate.tells(), fate.later), (false, false), "nothing to collect");
        fate.note_ready(1, 2);
        assert_eq!((fate.tells(), fate.later), (false, true));
        fate.note_ready(2, 2);
        assert_eq!((fate.tells(), fate.later), (true, false));
        assert!(!fate.tells(), "once");
        fate.fail(Error::invalid("first"));
        fate.fail(Error::invalid("second"));
        assert!(fate.tells() && fate.tells(), "the end is told again and again");
        assert_eq!(fate.error, Some(Error::invalid("first")));
    }
}
