//! The contract of buffers, views, fences and the ledger, on every device and every ordered pair.

mod alone;
mod kernels;
mod ledger;
mod pairs;
mod threads;
