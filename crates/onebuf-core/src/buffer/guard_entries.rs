//! The access guard entries of a buffer.

use super::{few::Few, span::Span};
use onebuf_hal::Error;

/// The record of one guard: its bytes, its alias, and whether it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GuardEntry {
    pub span: Span,
    pub alias: usize,
    pub write: bool,
}

impl GuardEntry {
    /// Whether two guards exclude each other. Reads never do. A write conflicts with every guard of the same bytes, and with
    /// every guard at another alias: a hand-over covers the whole buffer, and a driver that copies would overwrite what the
    /// other alias wrote to other bytes.
    fn conflicts(&self, other: &GuardEntry) -> bool {
        let apart = !self.span.overlaps(other.span) && self.alias == other.alias;
        (self.write || other.write) && !apart
    }
}

/// The guards that are held: many readers or one writer of each byte. Only dropping a guard removes its entry, so the
/// bytes of a leaked guard stay busy forever, which is safe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct GuardEntries {
    held: Few<GuardEntry>,
    /// Guards can be taken only during `Turn::Ours`.
    turn: Turn,
}

/// Which process may use a buffer that two processes share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Turn {
    /// This process. Always so for a buffer that is not shared with another process.
    #[default]
    Ours,
    /// The other process.
    Theirs,
    /// The owner, for good: this process is a client that lost the buffer. The turn never changes again.
    Lost,
    /// This process, as soon as a client in the same process has given up the buffer.
    Claimed,
}

/// Why a guard cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is not this process's turn.
    Turn(Turn),
    /// This guard is in the way.
    Held(GuardEntry),
}

impl GuardEntries {
    #[inline]
    pub fn take(&mut self, entry: GuardEntry) -> Result<(), Refused> {
        self.check(&entry)?;
        self.held.push(entry);
        Ok(())
    }

    /// Checks that a guard can be taken.
    #[inline]
    pub fn check(&self, entry: &GuardEntry) -> Result<(), Refused> {
        if self.turn != Turn::Ours {
            return Err(Refused::Turn(self.turn));
        }
        match self.held.iter().find(|held| held.conflicts(entry)) {
            Some(held) => Err(Refused::Held(*held)),
            None => Ok(()),
        }
    }

    /// Adds the entry of a guard that was taken on a lease. It cannot conflict: a lease excludes all other guards.
    pub fn put(&mut self, entry: GuardEntry) {
        self.held.push(entry);
    }

    #[inline]
    pub fn give_back(&mut self, entry: &GuardEntry) {
        if let Some(index) = self.held.iter().rposition(|held| held == entry) {
            self.held.swap_remove(index);
        }
    }

    /// Whether at most one guard is held.
    pub fn alone(&self) -> bool {
        self.held.len() <= 1
    }

    /// Whether a guard is held at an alias.
    pub fn held_at(&self, alias: usize) -> bool {
        self.held.iter().any(|held| held.alias == alias)
    }

    /// Whether more than one guard is held at an alias.
    pub fn crowded(&self, alias: usize) -> bool {
        self.held.iter().filter(|held| held.alias == alias).count() > 1
    }

    pub fn any(&self) -> bool {
        !self.held.is_empty()
    }

    pub fn turn(&self) -> Turn {
        self.turn
    }

    /// Sets the turn. A lost turn stays lost.
    pub fn set_turn(&mut self, turn: Turn) {
        if self.turn != Turn::Lost {
            self.turn = turn;
        }
    }
}

#[cold]
pub(super) fn not_ours(turn: Turn) -> Error {
    let what = match turn {
        Turn::Theirs => "it is the other process's turn; wait until it hands the buffer over",
        Turn::Claimed => {
            "the visit is over, but its client in this process still holds a guard or has work in progress; drop the guard first"
        }
        Turn::Ours | Turn::Lost => {
            let reason = "the visit is over, and the buffer is its owner's again".into();
            return Error::PeerLost { reason };
        }
    };
    Error::Busy { what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(span: std::ops::Range<usize>, alias: usize, write: bool) -> GuardEntry {
        GuardEntry { span: span.into(), alias, write }
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let (mut guard_entries, read, write) =
            (GuardEntries::default(), entry(0..8, 0, false), entry(0..8, 0, true));
        guard_entries.take(read).unwrap();
        guard_entries.take(read).unwrap();
        assert!(matches!(guard_entries.take(write), Err(Refused::Held(_))));
        guard_entries.give_back(&read);
        assert!(guard_entries.any());
        guard_entries.give_back(&read);
        guard_entries.take(write).unwrap();
        assert!(matches!(guard_entries.take(write), Err(Refused::Held(_))));
        assert!(matches!(guard_entries.take(read), Err(Refused::Held(_))));
        guard_entries.give_back(&write);
        assert!(!guard_entries.any());
    }

    #[test]
    fn nothing_is_held_out_of_turn() {
        let (mut guard_entries, read) = (GuardEntries::default(), entry(0..8, 0, false));
        guard_entries.set_turn(Turn::Theirs);
        assert!(matches!(guard_entries.take(read), Err(Refused::Turn(Turn::Theirs))));
        guard_entries.set_turn(Turn::Ours);
        guard_entries.take(read).unwrap();
        guard_entries.give_back(&read);
        for late in [Turn::Lost, Turn::Ours, Turn::Theirs, Turn::Claimed] {
            guard_entries.set_turn(Turn::Lost);
            guard_entries.set_turn(late);
            let refused = guard_entries.take(read);
            assert_eq!(refused, Err(Refused::Turn(Turn::Lost)), "{late:?}");
        }
        assert!(!guard_entries.any());
    }

    #[test]
    fn halves_are_written_at_once_at_one_alias_only() {
        let mut guard_entries = GuardEntries::default();
        guard_entries.take(entry(0..8, 1, true)).unwrap();
        guard_entries.take(entry(8..16, 1, true)).unwrap();
        let first = Err(Refused::Held(entry(0..8, 1, true)));
        assert_eq!(guard_entries.take(entry(4..12, 1, false)), first);
        assert_eq!(guard_entries.take(entry(16..24, 2, false)), first);
        guard_entries.give_back(&entry(0..8, 1, true));
        guard_entries.take(entry(0..8, 1, false)).unwrap();
    }
}
