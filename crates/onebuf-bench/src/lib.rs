//! The benchmarks of onebuf, and how they are measured.
//!
//! ```text
//!   WORKLOADS ── cases ──► run ──► Row    one row of `onebuf bench`, of `benches/peers`
//!                           │
//!              abba::compare│ solo::measure
//! ```
//!
//! A comparison runs both sides in the same process in blocks of four batches, **A B B A**, so that changes of the
//! machine's speed affect both; see [`abba`]. A cost without a baseline is measured in batches so long that reading the
//! clock is negligible; see [`solo`].
//!
//! ```
//! use onebuf_bench::{Effort, Unit, solo};
//!
//! let numbers = [3.0_f64; 64];
//! let sum = || std::hint::black_box(&numbers).iter().sum::<f64>();
//! let alone = solo::measure(Effort::QUICK, |times| Ok::<_, ()>(solo::timed(times, sum)))?;
//! println!("{}", alone.row("sum_ns", Unit::Ns));
//! # Ok::<(), ()>(())
//! ```

#![deny(unsafe_code)]

pub mod abba;
mod bandwidth;
mod case;
mod effort;
mod machine;
mod raw;
mod row;
pub mod solo;
mod stats;
mod suite;
mod workload;

pub use bandwidth::copy_bandwidth;
pub use case::{Case, Workload};
pub use effort::Effort;
pub use machine::{Bench, ITEMS, Side, Stop, TOUCH, distinct_text, platforms, too_few_platforms};
pub use raw::{
    Direction, RawBus, RawClFft, RawCopy, RawCuda, RawLaunch, RawPair, RawQueue, RawSemaphores,
    RawSender, RawUdp, RawWrap, RawWrite,
};
pub use row::{Bar, Met, Row, Unit};
pub use suite::{Outcome, Skipped, WORKLOADS, cases, known, run};
pub use workload::mpi::{Ranks, run_rank};
