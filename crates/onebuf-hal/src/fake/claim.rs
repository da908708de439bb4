//! Tracks which bytes of a device memory are in use, and which uses are allowed.
//!
//! Real drivers leave it undefined when work on two queues touches the same bytes unordered. Here each
//! command claims the bytes it uses, and one that finds a conflicting claim fails. This is also what
//! makes it sound that commands of several threads use one allocation.

use super::misuse;
use crate::{
    AccessState, Error, Result,
    locks::{Mutex, lock},
    native::overlaps,
};
use std::ops::Range;

/// The device's side of a memory's state: as of the commands that have run, not of those enqueued.
#[derive(Debug)]
pub(super) struct Claims(Mutex<State>);

#[derive(Debug)]
struct State {
    access_state: AccessState,
    /// Whether anything was written since the host's bytes were last the same.
    dirty: bool,
    uses: Vec<(Range<usize>, bool)>,
}

/// Bytes in use; dropping it ends the use.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    claims: &'a Claims,
    range: Range<usize>,
    writes: bool,
}

impl Claims {
    /// Nobody uses it, kernels may.
    pub(super) fn new() -> Self {
        Claims(Mutex::new(State {
            access_state: AccessState::Acquired,
            dirty: false,
            uses: Vec::new(),
        }))
    }

    /// Claims bytes for a command, when the memory is where the command may use it.
    pub(super) fn of_command(
        &self,
        call: &'static str,
        range: Range<usize>,
        writes: bool,
    ) -> Result<Claim<'_>> {
        let mut state = lock(&self.0);
        let allowed = match state.access_state {
            AccessState::Acquired => true,
            AccessState::SharedRead => !writes,
            AccessState::Released => false,
        };
        if !allowed {
            tracing::warn!("{call} used bytes {range:?} while they were {:?}", state.access_state);
            return Err(misuse(call, "PROTOCOL"));
        }
        state.take(call, &range, writes)?;
        state.dirty |= writes;
        Ok(Claim { claims: self, range, writes })
    }

    /// Claims bytes for a change of access state, wherever the memory is.
    pub(super) fn of_move(
        &self,
        call: &'static str,
        range: Range<usize>,
        writes: bool,
    ) -> Result<Claim<'_>> {
        lock(&self.0).take(call, &range, writes)?;
        Ok(Claim { claims: self, range, writes })
    }

    /// Where the memory is, and whether the device has changed it there.
    pub(super) fn place(&self) -> (AccessState, bool) {
        let state = lock(&self.0);
        (state.access_state, state.dirty)
    }

    /// Notes a change of access state: host and device now hold the same bytes.
    pub(super) fn moved(&self, to: AccessState) {
        let mut state = lock(&self.0);
        state.access_state = to;
        state.dirty = false;
    }
}

impl State {
    fn take(
        &mut self,
        call: &'static str,
        range: &Range<usize>,
        writes: bool,
    ) -> Result<(), Error> {
        let conflict = |(other, other_writes): &(Range<usize>, bool)| {
            (writes || *other_writes) && overlaps(range, other)
        };
        if let Some((other, _)) = self.uses.iter().find(|used| conflict(used)) {
            tracing::warn!("{call} used bytes {range:?} while other work used {other:?}");
            return Err(misuse(call, "RACE"));
        }
        self.uses.push((range.clone(), writes));
        Ok(())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.claims.0);
        let ours =
            |(range, writes): &(Range<usize>, bool)| *range == self.range && *writes == self.writes;
        if let Some(index) = state.uses.iter().position(ours) {
            state.uses.swap_remove(index);
        }
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn only_conflicts_are_refused() {
        let claims = Claims::new();
        let first = claims.of_command("a", 0..8, false).unwrap();
        let second = claims.of_command("b", 4..8, false).unwrap();
        assert_eq!(claims.of_command("c", 7..9, true).unwrap_err(), misuse("c", "RACE"));
        drop(first);
        assert!(claims.of_command("d", 7..9, true).is_err());
        drop(second);
        assert!(claims.of_command("e", 7..9, true).is_ok());
    }

    #[test]
    fn shared_read_memory_is_for_reading() {
        let claims = Claims::new();
        claims.moved(AccessState::SharedRead);
        assert!(claims.of_command("a", 0..8, false).is_ok());
        assert_eq!(claims.of_command("b", 0..8, true).unwrap_err(), misuse("b", "PROTOCOL"));
        claims.moved(AccessState::Released);
        assert_eq!(claims.of_command("c", 0..8, false).unwrap_err(), misuse("c", "PROTOCOL"));
    }
}
