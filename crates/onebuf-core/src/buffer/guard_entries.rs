//! Who holds a guard of a buffer now.

use super::{few::Few, span::Span};
use onebuf_hal::{Error, Result};

/// One guard: which bytes, at which alias, and whether it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GuardEntry {
    pub span: Span,
    pub alias: usize,
    pub write: bool,
}

impl GuardEntry {
    /// Reads go together. Writes go with nothing that touches the same bytes, and with nothing at another
    /// alias: a hand-over moves the whole buffer, and a driver that copies behind it would undo what the
    /// other alias wrote beside.
    fn conflicts(&self, other: &GuardEntry) -> bool {
        let apart = !self.span.overlaps(other.span) && self.alias == other.alias;
        (self.write || other.write) && !apart
    }
}

/// Many readers, or one writer, of each byte. Only dropping a guard clears its mark, so a forgotten one
/// keeps its bytes busy for ever, which is safe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct GuardEntries {
    held: Few<GuardEntry>,
    /// Nobody here holds anything while it is not ours.
    turn: Turn,
}

/// Which process may use a buffer that two of them see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Turn {
    /// This one; always, for a buffer that nobody else sees.
    #[default]
    Ours,
    /// The other one.
    Theirs,
    /// The other one, and it is gone. There is no turn after this.
    Lost,
    /// This one's again, as soon as a client in this process has let go of it.
    Claimed,
}

impl GuardEntries {
    #[inline]
    pub fn take(&mut self, entry: GuardEntry) -> Result<()> {
        self.check(&entry)?;
        self.held.push(entry);
        Ok(())
    }

    /// Whether a guard could be taken.
    #[inline]
    pub fn check(&self, entry: &GuardEntry) -> Result<()> {
        if self.turn != Turn::Ours {
            return Err(not_ours(self.turn));
        }
        match self.held.iter().find(|held| held.conflicts(entry)) {
            Some(held) => Err(busy(held, entry)),
            None => Ok(()),
        }
    }

    /// A mark of a guard that was taken without asking, which no other can have been.
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

    /// There is no turn after one that is lost: that stays.
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
            "the visit is over, but its client in this process holds a guard of the buffer, or works on it; drop that first"
        }
        Turn::Ours | Turn::Lost => {
            let reason = "the visit is over, and the buffer is its owner's again".into();
            return Error::PeerLost { reason };
        }
    };
    Error::Busy { what: what.into() }
}

fn busy(held: &GuardEntry, wanted: &GuardEntry) -> Error {
    let kind = if held.write { "a write view or map" } else { "a read view or map" };
    let place = match () {
        () if held.span == wanted.span => "",
        () if held.span.overlaps(wanted.span) => " of overlapping bytes",
        () => " of other bytes on another device",
    };
    Error::Busy { what: format!("{kind}{place} is held; drop that guard first") }
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
        assert!(matches!(guard_entries.take(write), Err(Error::Busy { .. })));
        guard_entries.give_back(&read);
        assert!(guard_entries.any());
        guard_entries.give_back(&read);
        guard_entries.take(write).unwrap();
        assert!(matches!(guard_entries.take(write), Err(Error::Busy { .. })));
        assert!(matches!(guard_entries.take(read), Err(Error::Busy { .. })));
        guard_entries.give_back(&write);
        assert!(!guard_entries.any());
    }

    #[test]
    fn nothing_is_held_out_of_turn() {
        let (mut guard_entries, read) = (GuardEntries::default(), entry(0..8, 0, false));
        guard_entries.set_turn(Turn::Theirs);
        assert!(matches!(guard_entries.take(read), Err(Error::Busy { .. })));
        guard_entries.set_turn(Turn::Ours);
        guard_entries.take(read).unwrap();
        guard_entries.give_back(&read);
        for late in [Turn::Lost, Turn::Ours, Turn::Theirs, Turn::Claimed] {
            guard_entries.set_turn(Turn::Lost);
            guard_entries.set_turn(late);
            assert!(matches!(guard_entries.take(read), Err(Error::PeerLost { .. })), "{late:?}");
        }
        assert!(!guard_entries.any());
    }

    #[test]
    fn halves_are_written_at_once_at_one_alias_only() {
        let mut guard_entries = GuardEntries::default();
        guard_entries.take(entry(0..8, 1, true)).unwrap();
        guard_entries.take(entry(8..16, 1, true)).unwrap();
        let overlapping = guard_entries.take(entry(4..12, 1, false)).unwrap_err();
        assert!(overlapping.to_string().contains("overlapping"), "{overlapping}");
        let elsewhere = guard_entries.take(entry(16..24, 2, false)).unwrap_err();
        assert!(elsewhere.to_string().contains("another device"), "{elsewhere}");
        guard_entries.give_back(&entry(0..8, 1, true));
        guard_entries.take(entry(0..8, 1, false)).unwrap();
    }
}
