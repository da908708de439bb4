//! The C ABI of onebuf.
//!
//! One noun, one file, one section of `include/onebuf.h`, which is made of these files by `./dev header`:
//! their heads become the sections' heads, the documentation of what they export becomes the header's.
//!
//! Every function is a body of safe Rust inside `entry::entry`, which turns its error into a status
//! and its panic into another: nothing unwinds into C. Objects live in tables (`handle`) and are named by
//! handles; a handle that names nothing is an error.
//!
//! Modules are levels, each of which uses only those before it: `status`, `fault`, `words`, `input`, `handle`, `entry`;
//! then objects that several nouns share (`kept`, `visit`, `claim`, `typed`), then the nouns.
//!
//! # Safety
//! What C promises, by the header's words: a pointer is null or valid for what the function does with it, a
//! data pointer for as many bytes as are named beside it, a string ends with a zero, an options structure is
//! as large as its `size` says. Handles need no promise.

#![allow(non_camel_case_types)]
// The promise is the same everywhere: it is written above, and at the head of the header.
#![allow(clippy::missing_safety_doc)]

mod callback;
mod claim;
mod entry;
mod fault;
mod handle;
mod input;
mod kept;
mod typed;
mod visit;

pub mod bridge;
pub mod buffer;
pub mod device;
pub mod doctor;
pub mod event;
pub mod export;
pub mod fence;
pub mod foreign;
pub mod frame;
pub mod hub;
pub mod kernel;
pub mod ledger;
pub mod libs;
pub mod log;
pub mod mapping;
pub mod message;
pub mod offer;
pub mod owner;
pub mod peer;
pub mod pipeline;
pub mod pool;
pub mod program;
pub mod queue;
pub mod sink;
pub mod source;
pub mod standing;
pub mod status;
pub mod string;
pub mod transfer;
pub mod version;
pub mod view;
pub mod words;
pub mod wrap;
