//! How often a source starts over.

/// Turns that are left; without an end where there is no number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns(Option<u64>);

impl Turns {
    pub const ONE: Self = Self(Some(1));
    pub const FOREVER: Self = Self(None);

    pub fn of(times: u64) -> Self {
        Self(Some(times))
    }

    pub fn is_over(self) -> bool {
        self.0 == Some(0)
    }

    /// One turn is over.
    pub fn end_one(&mut self) {
        self.0 = self.0.map(|left| left.saturating_sub(1));
    }
}
