//! Observers of a hub: a trace of recorded events, and a live view for another terminal.
//!
//! Both implement [`Observer`](onebuf_core::observe::Observer); the core does not know them. Depends on `onebuf-core`,
//! `onebuf-socket` and `onebuf-hal`.

#![deny(unsafe_code)]

/// Tests of parsers measure what they allocate.
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[global_allocator]
static ALLOCATOR: onebuf_hal::testing::meter::Counting = onebuf_hal::testing::meter::Counting;

pub mod live;
pub mod trace;
