//! Ranks of real MPI libraries: this program starts itself under their launchers.

mod application;
mod claims;
mod collectives;
mod failures;
mod faults;
mod gpus;
mod launch;
mod live;
mod messages;
mod model;
mod network;
mod ranks;
mod streams;
mod turns;
