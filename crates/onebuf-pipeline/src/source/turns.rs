//! How often a source repeats its data.

/// The remaining repetitions; `None` repeats forever.
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

    /// Counts one repetition.
    pub fn end_one(&mut self) {
        self.0 = self.0.map(|left| left.saturating_sub(1));
    }
}
