//! Counters that one thread updates and any thread may read without waiting.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares a struct of plain numbers, and the struct of atomics that it is read from.
macro_rules! counters {
    ($(#[$about:meta])* $plain:ident, $atomic:ident { $($(#[$each:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        #[non_exhaustive]
        pub struct $plain {
            $($(#[$each])* pub $name: u64,)*
        }

        impl $plain {
            /// The sums of both.
            #[allow(dead_code)]
            pub(super) fn plus(self, other: Self) -> Self {
                Self { $($name: self.$name.wrapping_add(other.$name),)* }
            }
        }

        #[derive(Debug, Default)]
        pub(super) struct $atomic {
            $(pub $name: std::sync::atomic::AtomicU64,)*
        }

        impl $atomic {
            pub fn get(&self) -> $plain {
                $plain { $($name: self.$name.load(std::sync::atomic::Ordering::Relaxed),)* }
            }
        }
    };
}
pub(crate) use counters;

/// Adds to a counter. Only one thread may do so.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// Adds to a counter that several threads may add to.
pub(crate) fn add_shared(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
