//! Counts that one thread makes, and any may read without waiting for it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Plain numbers, and `Counters` that they are read from.
macro_rules! counters {
    ($(#[$about:meta])* $plain:ident { $($(#[$each:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        #[non_exhaustive]
        pub struct $plain {
            $($(#[$each])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub $name: std::sync::atomic::AtomicU64,)*
        }

        impl Counters {
            pub fn get(&self) -> $plain {
                $plain { $($name: self.$name.load(std::sync::atomic::Ordering::Relaxed),)* }
            }
        }
    };
}
pub(crate) use counters;

/// Adds to a counter, which one thread alone does.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}
