//! The contract of buffers, views, fences and the ledger, on every device and every ordered pair.

mod alone;
mod flags;
mod futures;
mod kernels;
mod leases;
mod ledger;
mod local;
mod order;
mod pairs;
mod queues;
mod regions;
mod threads;
