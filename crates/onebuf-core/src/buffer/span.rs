//! Byte ranges of a buffer.

use std::{fmt, ops::Range};

/// Bytes from `start` up to `end`; never empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    /// The first `bytes` bytes.
    pub fn whole(bytes: usize) -> Self {
        Self { start: 0, end: bytes }
    }

    pub fn len(self) -> usize {
        self.end - self.start
    }

    /// Whether both spans have a byte in common.
    pub fn overlaps(self, other: Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether all of `other` is inside.
    pub fn covers(self, other: Span) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The smallest span that covers both.
    pub fn hull(self, other: Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_do_not_overlap() {
        let (left, right) = (Span::from(0..8), Span::from(8..16));
        assert!(!left.overlaps(right) && !right.overlaps(left));
        assert!(left.overlaps(Span::from(7..9)) && Span::from(7..9).overlaps(right));
        assert!(left.hull(right).covers(right) && !left.covers(Span::from(7..9)));
    }
}
