//! Buffers and pipelines over several machines, by MPI.
//!
//! [`Join`] finds the MPI of this process and joins the other ranks; the [`World`] sends buffers and makes calls of all ranks.
//! [`sink::Mpi`] and [`source::Mpi`] connect the pipelines of two ranks, [`CornerTurn`] those of all. `docs/mpi.md` is the guide.
//!
//! ```
//! # fn main() -> onebuf::Result<()> {
//! let hub = onebuf::discover()?;
//! let world = onebuf_mpi::Join::new().start()?; // without mpirun: one rank
//! let buffer = hub.buffer_from(&[world.rank() as u32; 1000]).build()?;
//! world.broadcast(&buffer, 0)?.wait(world.timeout())?;
//! assert!(buffer.map()?.iter().all(|&x| x == 0));
//! # Ok(())
//! # }
//! ```
//!
//! It may depend on `onebuf` and what is below, and knows no front end.

#![deny(unsafe_code)]

/// Tests of parsers measure what they allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: onebuf_hal::testing::meter::Counting = onebuf_hal::testing::meter::Counting;

mod board;
mod bundle;
mod checksum;
mod claim;
mod collective;
mod counts;
mod deadline;
mod direct;
mod ending;
mod engine;
mod error;
mod flight;
mod greet;
mod join;
mod layout;
mod library_key;
mod live;
mod memory;
mod message;
mod post;
mod process;
mod prove;
mod ranks;
#[doc(hidden)]
pub mod raw;
pub mod sink;
pub mod source;
mod stream;
mod transport;
mod turn;
mod wire;
mod world;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/mpi.md")]
struct MpiPage;

pub use claim::GpuClaim;
pub use counts::{MpiCounts, MpiMeter};
pub use flight::InFlight;
pub use join::Join;
pub use live::LiveRanks;
pub use memory::Span;
pub use message::MOST_TAG;
pub use process::PeerState;
pub use prove::DeviceMemory;
pub use ranks::Peer;
pub use stream::MOST_STREAM;
pub use turn::{CornerTurn, Exchange, MOST_TURN, TurnLog, TurnStage, share};
pub use world::World;
