//! The contract of buffers, views, fences and the ledger, on every device and every ordered pair.

mod alone;
mod kernels;
mod ledger;
mod order;
mod pairs;
mod queues;
mod regions;
mod threads;
