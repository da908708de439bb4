//! OpenGL: contexts without a window, persistently mapped buffers, compute shaders.
//!
//! A context is current on one thread at a time, and making it current is expensive. So each device's own context lives
//! on its own thread, and calls are passed to it: any thread may call, and an embedding program's current contexts are
//! not affected.
//!
//! | file | what |
//! |---|---|
//! | `executor` | the thread, and passing calls to it |
//! | `stage` | a context that is current on such a thread |
//! | `backend` | the entry point for the hub |
//! | `discover`, `asked` | the library, its devices, and their capabilities |
//! | `device` | the device, its context |
//! | `habits` | how buffers are mapped, by use and by vendor |
//! | `memory` | buffers, mapped or not; imported host pages and descriptors |
//! | `foreign` | foreign contexts and buffers |
//! | `queue`, `event`, `transfer` | the one stream of a context, fences, copies |
//! | `semaphore` | semaphores of another API, signalled and waited on |
//! | `program`, `kernel` | compute shaders, and launching them |
//! | `conv` | conversion of statuses, sizes and grids |
//!
//! # Safety
//!
//! OpenGL's functions are called only on the thread where the context is current: only `stage::Stage::run` and
//! `stage::Stage::post` give out the table; and for a foreign context `context::Context::run`, which first checks that
//! it is current. Every object is owned by exactly one struct, which keeps its context alive and deletes the object
//! once; so a reachable name is alive. OpenGL keeps its own memory while work uses it; host pages, which it does not
//! own, are kept until a fence.

mod asked;
mod backend;
mod context;
mod conv;
mod device;
mod discover;
mod event;
mod executor;
pub mod foreign;
mod habits;
mod kernel;
mod memory;
mod program;
mod queue;
mod semaphore;
mod stage;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod transfer;

pub use backend::GlBackend;
pub use discover::{Library, discover};
