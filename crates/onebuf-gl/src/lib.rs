//! OpenGL: contexts without a window, buffers that stay mapped, compute shaders.
//!
//! A context is current on one thread at a time, and being made current costs. So each device's own context
//! lives on a thread of its own, and calls are handed to it: any thread may call, and what an embedding
//! program has current on its threads stays so.
//!
//! | file | what |
//! |---|---|
//! | `executor` | the thread, and handing calls to it |
//! | `stage` | a context that is current on such a thread |
//! | `backend` | what the hub is given |
//! | `discover`, `asked` | the library, its devices, and what each can do |
//! | `device` | the device, its context |
//! | `habits` | how buffers are mapped, by what they are for and by vendor |
//! | `memory` | buffers, mapped or not; host pages and descriptors of others |
//! | `foreign` | contexts and buffers that somebody else made |
//! | `queue`, `event`, `transfer` | the one stream of a context, fences, copies |
//! | `semaphore` | semaphores of another API, signalled and waited on |
//! | `program`, `kernel` | compute shaders, and launching them |
//! | `conv` | every number that means something else elsewhere |
//!
//! # Safety
//!
//! OpenGL's functions are called on the thread where the context is current, and nowhere else: only
//! `stage::Stage::run` and `stage::Stage::post` give out the table; and for a context of somebody else's
//! `context::Context::run`, which looks first whether that one is current. Every object is owned by exactly one struct, which keeps
//! its context alive and deletes it once; so a name that can be reached is alive. OpenGL itself keeps what
//! work still uses; host pages, which it does not own, are kept behind a fence.

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
