//! Tracks which bytes of a device memory are in use, and which accesses are allowed.
//!
//! Real drivers leave it undefined if work on two queues accesses the same bytes without an order. Here each command claims the
//! bytes that it uses, and fails if it finds a conflicting claim. The claims also make it sound that commands of several
//! threads use one allocation.

use super::misuse;
use crate::{
    AccessState, Error, Result,
    locks::{Mutex, lock},
    native::overlaps,
};
use std::ops::Range;

/// The device side of a memory's state, after the commands that have run, not after those enqueued.
#[derive(Debug)]
pub(super) struct Claims(Mutex<ClaimState>);

#[derive(Debug)]
struct ClaimState {
    access_state: AccessState,
    /// Whether the device has written since host and device last held the same bytes.
    dirty: bool,
    uses: Vec<(Range<usize>, bool)>,
}

/// A range in use; dropping it ends the use.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    claims: &'a Claims,
    range: Range<usize>,
    writes: bool,
}

impl Claims {
    /// No bytes are in use, and the memory is acquired.
    pub(super) fn new() -> Self {
        Claims(Mutex::new(ClaimState {
            access_state: AccessState::Acquired,
            dirty: false,
            uses: Vec::new(),
        }))
    }

    /// Claims bytes for a command, if the access state allows its access.
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

    /// Claims bytes for a change of access state, whatever the current state.
    pub(super) fn of_move(
        &self,
        call: &'static str,
        range: Range<usize>,
        writes: bool,
    ) -> Result<Claim<'_>> {
        lock(&self.0).take(call, &range, writes)?;
        Ok(Claim { claims: self, range, writes })
    }

    /// The access state, and whether the device has written since the last change.
    pub(super) fn place(&self) -> (AccessState, bool) {
        let state = lock(&self.0);
        (state.access_state, state.dirty)
    }

    /// Records a change of access state: host and device now hold the same bytes.
    pub(super) fn moved(&self, to: AccessState) {
        let mut state = lock(&self.0);
        state.access_state = to;
        state.dirty = false;
    }
}

impl ClaimState {
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
