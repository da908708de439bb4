//! Checks of views that are passed to a library.
//!
//! # Safety
//! Only this module accesses the internals of views and queues. A library gets a view's memory only on the view's own queue
//! ([`Wanted::check`]) and while the call holds the view; scratch memory is used on the queue that keeps it.

#![allow(unsafe_code)]

use bytemuck::Pod;
use onebuf_core::{
    Queue, ReadView, WriteView,
    internals::{self, Hold},
};
use onebuf_hal::{self as hal, Access, Error, Result, locks::Arc};

/// A view that a library may read: a [`ReadView`] or a [`WriteView`].
pub trait Operand<T: Pod>: sealed::View {}

impl<T: Pod> Operand<T> for ReadView<'_, T> {}
impl<T: Pod> Operand<T> for WriteView<'_, T> {}

pub(super) mod sealed {
    use super::*;

    /// The guard inside a view, visible to this crate only.
    pub struct Held<'a>(pub(crate) &'a Hold<'a>);

    pub trait View {
        fn held(&self) -> Held<'_>;
    }

    impl<T: Pod> View for ReadView<'_, T> {
        fn held(&self) -> Held<'_> {
            // SAFETY: see the module's safety section.
            Held(unsafe { internals::read_hold(self) })
        }
    }

    impl<T: Pod> View for WriteView<'_, T> {
        fn held(&self) -> Held<'_> {
            Held(self.hold())
        }
    }
}

/// The guard inside a view that a library writes.
pub(super) trait Written<'b> {
    fn hold(&self) -> &Hold<'b>;
    #[cfg(feature = "cpu-libs")]
    fn hold_mut(&mut self) -> &mut Hold<'b>;
}

impl<'b, T: Pod> Written<'b> for WriteView<'b, T> {
    fn hold(&self) -> &Hold<'b> {
        // SAFETY: see the module's safety section.
        unsafe { internals::write_hold(self) }
    }

    #[cfg(feature = "cpu-libs")]
    fn hold_mut(&mut self) -> &mut Hold<'b> {
        // SAFETY: see the module's safety section.
        unsafe { internals::write_hold_mut(self) }
    }
}

/// The native queue.
pub(super) fn native(queue: &Queue) -> &Arc<dyn hal::Queue> {
    // SAFETY: see the module's safety section.
    unsafe { internals::queue(queue) }
}

/// The queue's device, as its backend sees it.
pub(super) fn device(queue: &Queue) -> &dyn hal::Device {
    // SAFETY: see the module's safety section.
    unsafe { internals::device(queue.hub(), queue.device().index()) }
}

/// What a call requires of one argument: its name in messages, how many elements it uses, and how it accesses them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub name: &'static str,
    pub elements: usize,
    pub access: Access,
}

impl Wanted {
    pub fn new(name: &'static str, elements: usize, access: Access) -> Self {
        Self { name, elements, access }
    }

    /// Checks that a view satisfies this requirement.
    pub fn check<T: Pod>(&self, queue: &Queue, hold: &Hold<'_>) -> Result<()> {
        let Self { name, elements, access } = *self;
        let wrong = |why: String| Err(Error::invalid(format!("`{name}`: {why}")));
        let has = hold.bytes() / size_of::<T>();
        if !hold.is_on(queue) {
            return wrong("the view was taken on another queue".into());
        }
        if !hold.allows(access) {
            let made_for = hold.buffer_access();
            return wrong(format!(
                "the buffer was created for {made_for}, but the call needs {access}"
            ));
        }
        if has < elements {
            return wrong(format!("the call needs {elements} elements, the view has {has}"));
        }
        Ok(())
    }
}

/// Whether two ranges of addresses have no byte in common.
pub(super) fn apart(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0.saturating_add(a.1) <= b.0 || b.0.saturating_add(b.1) <= a.0
}

/// Checks that an output does not overlap an input. Views guarantee it, except for memory that was wrapped twice under two
/// handles.
pub(super) fn check_apart(output: (usize, usize), input: (usize, usize), name: &str) -> Result<()> {
    if apart(output, input) {
        return Ok(());
    }
    Err(Error::invalid(format!("`{name}` overlaps the output: use separate memory")))
}

/// Converts a size to the libraries' 32 bits.
pub(super) fn narrow(name: &str, size: usize) -> Result<i32> {
    let too_large = |_| Error::invalid(format!("{name} = {size} does not fit 32 bits"));
    i32::try_from(size).map_err(too_large)
}

/// Checks a column-major matrix' sizes and returns the number of elements from its first to its last.
pub(super) fn extent(name: &str, rows: usize, columns: usize, ld: usize) -> Result<usize> {
    let wrong = |why: String| Err(Error::invalid(format!("`{name}`: {why}")));
    if rows == 0 || columns == 0 {
        return wrong(format!("{rows} x {columns} is empty"));
    }
    if ld < rows {
        return wrong(format!("a leading dimension of {ld} is less than the {rows} rows"));
    }
    for (what, size) in [("rows", rows), ("columns", columns), ("a leading dimension", ld)] {
        narrow(&format!("`{name}`: {what}"), size)?;
    }
    // No overflow: both are below 2^31.
    Ok(ld * (columns - 1) + rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_apart() {
        assert!(apart((0, 8), (8, 8)) && apart((8, 8), (0, 8)));
        assert!(!apart((0, 9), (8, 8)) && !apart((8, 1), (0, 100)));
        assert!(!apart((usize::MAX - 4, 100), (usize::MAX - 1, 1)));
        let error = check_apart((0, 8), (4, 8), "a").unwrap_err().to_string();
        assert!(error.contains("`a` overlaps the output"), "{error}");
    }

    #[test]
    fn extents_end_with_the_last_element() {
        assert_eq!(extent("a", 3, 4, 3), Ok(12));
        assert_eq!(extent("a", 3, 4, 10), Ok(33));
        for (rows, columns, ld) in [(0, 1, 1), (1, 0, 1), (3, 1, 2), (1 << 31, 1, 1 << 31)] {
            assert!(extent("a", rows, columns, ld).is_err(), "{rows} {columns} {ld}");
        }
        assert!(extent("a", 1, 1, 1 << 31).unwrap_err().to_string().contains("32 bits"));
    }
}
