//! Who holds a guard of a buffer now.

use super::{few::Few, span::Span};
use crate::{Error, Result};

/// One guard: which bytes, at which site, and whether it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub span: Span,
    pub site: usize,
    pub write: bool,
}

impl Mark {
    /// Reads go together. Writes go with nothing that touches the same bytes, and with nothing at another
    /// site: a hand-over moves the whole buffer, and a driver that copies behind it would undo what the
    /// other site wrote beside.
    fn conflicts(&self, other: &Mark) -> bool {
        let apart = !self.span.overlaps(other.span) && self.site == other.site;
        (self.write || other.write) && !apart
    }
}

/// Many readers, or one writer, of each byte. Only dropping a guard clears its mark, so a forgotten one
/// keeps its bytes busy for ever, which is safe.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    held: Few<Mark>,
    /// Nobody here holds anything while it is not ours.
    turn: Turn,
}

/// Which process may use a buffer that two of them see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This one; always, for a buffer that nobody else sees.
    #[default]
    Ours,
    /// The other one.
    Theirs,
    /// The other one, and it is gone. There is no turn after this.
    Lost,
    /// This one's again, as soon as a guest in this process has let go of it.
    Claimed,
}

impl Marks {
    #[inline]
    pub fn take(&mut self, mark: Mark) -> Result<()> {
        self.check(&mark)?;
        self.held.push(mark);
        Ok(())
    }

    /// Whether a guard could be taken.
    #[inline]
    pub fn check(&self, mark: &Mark) -> Result<()> {
        if self.turn != Turn::Ours {
            return Err(not_ours(self.turn));
        }
        match self.held.iter().find(|held| held.conflicts(mark)) {
            Some(held) => Err(busy(held, mark)),
            None => Ok(()),
        }
    }

    /// A mark of a guard that was taken without asking, which no other can have been.
    pub fn put(&mut self, mark: Mark) {
        self.held.push(mark);
    }

    #[inline]
    pub fn give_back(&mut self, mark: &Mark) {
        if let Some(index) = self.held.iter().rposition(|held| held == mark) {
            self.held.swap_remove(index);
        }
    }

    /// Whether at most one guard is held.
    pub fn alone(&self) -> bool {
        self.held.len() <= 1
    }

    /// Whether a guard is held at a site.
    pub fn held_at(&self, site: usize) -> bool {
        self.held.iter().any(|held| held.site == site)
    }

    /// Whether more than one guard is held at a site.
    pub fn crowded(&self, site: usize) -> bool {
        self.held.iter().filter(|held| held.site == site).count() > 1
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
            "the visit is over, but its guest in this process holds a guard of the buffer, or works on it; drop that first"
        }
        Turn::Ours | Turn::Lost => {
            let reason = "the visit is over, and the buffer is its owner's again".into();
            return Error::PeerLost { reason };
        }
    };
    Error::Busy { what: what.into() }
}

fn busy(held: &Mark, wanted: &Mark) -> Error {
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

    fn mark(span: std::ops::Range<usize>, site: usize, write: bool) -> Mark {
        Mark { span: span.into(), site, write }
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let (mut marks, read, write) =
            (Marks::default(), mark(0..8, 0, false), mark(0..8, 0, true));
        marks.take(read).unwrap();
        marks.take(read).unwrap();
        assert!(matches!(marks.take(write), Err(Error::Busy { .. })));
        marks.give_back(&read);
        assert!(marks.any());
        marks.give_back(&read);
        marks.take(write).unwrap();
        assert!(matches!(marks.take(write), Err(Error::Busy { .. })));
        assert!(matches!(marks.take(read), Err(Error::Busy { .. })));
        marks.give_back(&write);
        assert!(!marks.any());
    }

    #[test]
    fn nothing_is_held_out_of_turn() {
        let (mut marks, read) = (Marks::default(), mark(0..8, 0, false));
        marks.set_turn(Turn::Theirs);
        assert!(matches!(marks.take(read), Err(Error::Busy { .. })));
        marks.set_turn(Turn::Ours);
        marks.take(read).unwrap();
        marks.give_back(&read);
        for late in [Turn::Lost, Turn::Ours, Turn::Theirs, Turn::Claimed] {
            marks.set_turn(Turn::Lost);
            marks.set_turn(late);
            assert!(matches!(marks.take(read), Err(Error::PeerLost { .. })), "{late:?}");
        }
        assert!(!marks.any());
    }

    #[test]
    fn halves_are_written_at_once_at_one_site_only() {
        let mut marks = Marks::default();
        marks.take(mark(0..8, 1, true)).unwrap();
        marks.take(mark(8..16, 1, true)).unwrap();
        let overlapping = marks.take(mark(4..12, 1, false)).unwrap_err();
        assert!(overlapping.to_string().contains("overlapping"), "{overlapping}");
        let elsewhere = marks.take(mark(16..24, 2, false)).unwrap_err();
        assert!(elsewhere.to_string().contains("another device"), "{elsewhere}");
        marks.give_back(&mark(0..8, 1, true));
        marks.take(mark(0..8, 1, false)).unwrap();
    }
}
