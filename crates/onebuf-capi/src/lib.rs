//! The C ABI of onebuf.
//!
//! Each file is one noun and one section of `include/onebuf.h`, which `./dev header` generates from these files: the
//! head of a file becomes the head of its section, and the documentation of exported items becomes the header's
//! comments.
//!
//! Every function is a body of safe Rust inside `entry::entry`, which turns errors and panics into statuses: nothing
//! unwinds into C. Objects live in tables (`handle`) and are named by handles. Using an invalid handle is an error.
//!
//! Modules are levels, and each uses only earlier ones: `status`, `fault`, `words`, `input`, `handle`, `entry`; then
//! objects that several nouns share (`kept`, `wait`, `visit`, `claim`, `registered`, `typed`); then the nouns.
//!
//! # Safety
//! The contract of C callers, as stated in the header: a pointer is null or valid for what the function does with it; a
//! data pointer is valid for the number of bytes that the call states; a string is NUL-terminated; an options structure
//! is as large as its `size` says. Handles need no guarantee.

#![allow(non_camel_case_types)]
// All functions have the same contract. It is stated above and at the top of the header.
#![allow(clippy::missing_safety_doc)]

mod callback;
mod claim;
mod entry;
mod fault;
mod handle;
mod input;
mod kept;
mod registered;
mod typed;
mod visit;
mod wait;

pub mod bridge;
pub mod buffer;
pub mod cache;
pub mod device;
pub mod doctor;
pub mod event;
pub mod export;
pub mod fence;
pub mod foreign;
pub mod foreign_gl;
pub mod foreign_vulkan;
pub mod frame;
pub mod graft;
pub mod hub;
pub mod kernel;
pub mod launch;
pub mod ledger;
pub mod libs;
pub mod live;
pub mod log;
pub mod mapping;
pub mod message;
pub mod observer;
pub mod offer;
pub mod owner;
pub mod peer;
pub mod persistent;
pub mod pipeline;
pub mod pointer;
pub mod pool;
pub mod program;
pub mod progress;
pub mod queue;
pub mod queue_pool;
pub mod sink;
pub mod source;
pub mod status;
pub mod string;
pub mod trace;
pub mod transfer;
pub mod verdict;
pub mod version;
pub mod view;
pub mod viewer;
pub mod words;
pub mod wrap;
