//! Who watches a hub: a trace of what happened when, and a live view for another terminal.
//!
//! Both implement [`Observer`](onebuf_core::observe::Observer); the core does not know them. Depends on `onebuf-core`,
//! `onebuf-socket` and `onebuf-hal`.

#![deny(unsafe_code)]

pub mod live;
pub mod trace;
