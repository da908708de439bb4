//! Who holds a guard of a buffer now.

use crate::{Error, Result};

/// Many readers, or one writer. Only dropping a guard clears its mark, so a forgotten one keeps the
/// buffer busy for ever, which is safe.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    readers: u32,
    writer: bool,
}

impl Marks {
    pub fn take(&mut self, write: bool) -> Result<()> {
        if self.writer {
            return Err(busy("a write view or map is held"));
        }
        if write && self.readers > 0 {
            return Err(busy("a read view or map is held"));
        }
        if write {
            self.writer = true;
        } else {
            self.readers += 1;
        }
        Ok(())
    }

    pub fn give_back(&mut self, write: bool) {
        if write {
            self.writer = false;
        } else {
            self.readers = self.readers.saturating_sub(1);
        }
    }

    /// Whether at most one guard is held.
    pub fn alone(&self) -> bool {
        self.writer || self.readers <= 1
    }

    pub fn any(&self) -> bool {
        self.writer || self.readers > 0
    }
}

fn busy(what: &str) -> Error {
    Error::Busy { what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_writers_do_not() {
        let mut marks = Marks::default();
        marks.take(false).unwrap();
        marks.take(false).unwrap();
        assert!(matches!(marks.take(true), Err(Error::Busy { .. })));
        marks.give_back(false);
        assert!(marks.any());
        marks.give_back(false);
        marks.take(true).unwrap();
        assert!(matches!(marks.take(true), Err(Error::Busy { .. })));
        assert!(matches!(marks.take(false), Err(Error::Busy { .. })));
        marks.give_back(true);
        assert!(!marks.any());
    }
}
