//! What tests of several modules use: how much memory and time a parser takes, and inputs that try to make it much.

pub(crate) mod fuzz;
pub(crate) mod meter;
