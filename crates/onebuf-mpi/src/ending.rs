//! How a stream or a turn ends before its time: the other ranks are told, and waited for, but not forever.

use crate::{board::Board, deadline::Deadline, engine::Posted, world::World};
use onebuf_hal::{Error, Result};
use std::time::Duration;

/// How long receives that were given up are waited for.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// State of a stream or a turn that its owner shares with the communication thread.
pub(crate) trait Ends {
    /// Whether both sides have said their last, and no memory is in use.
    fn is_over(&self) -> bool;
    /// Whether memory of the owner is in use.
    fn is_busy(&self) -> bool;
    fn error(&self) -> Option<&Error>;
    /// Tells that the owner waits no longer for the other ranks.
    fn abandon(&mut self);
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
    let ended = board.wait(Deadline::after(timeout), |state| match state.error() {
        Some(error) => Some(Err(error.clone())),
        None => state.is_over().then_some(Ok(())),
    });
    world.watch(ended.unwrap_or_else(|| Err(late())))
}

/// Waits until it is over. Returns whether the owner's memory is free.
pub(crate) fn settle<E: Ends>(board: &Board<E>, posted: &Posted, world: &World) -> bool {
    posted.wake();
    let over = |state: &mut E| state.is_over().then_some(());
    if board.wait(Deadline::after(world.last_wait()), over).is_some() {
        return true;
    }
    board.lock().abandon();
    posted.wake();
    let free = |state: &mut E| (!state.is_busy()).then_some(());
    board.wait(Deadline::after(LAST_WAIT), free).is_some()
}
