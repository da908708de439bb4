//! A live view of a running program, from another terminal: `onebuf top`.
//!
//! A program opts in by publishing its hub. Only processes of the same user can see it, by the rules of `onebuf::peer`,
//! through a socket in a directory of mode 0700.
//!
//! ```
//! use onebuf::{live::Viewer, prelude::*};
//! use std::time::Duration;
//!
//! # fn main() -> onebuf::Result<()> {
//! let hub = onebuf::discover()?;
//! # use std::os::unix::fs::PermissionsExt;
//! # let rights = std::fs::Permissions::from_mode(0o700);
//! # let folder = tempfile::Builder::new().permissions(rights).tempdir().unwrap();
//! # let name = folder.path().join("doc.sock").to_str().unwrap().to_owned();
//! # let name = name.as_str();
//! # /*
//! let name = "radar";
//! # */
//! let published = hub.publish(name)?;                      // lists buffers created from now on
//! let frame = hub.buffer::<f32>(1024).name("frame").build()?;
//!
//! // Usually in another process; or run `onebuf top radar`.
//! let mut viewer = Viewer::attach(name, Duration::from_secs(5))?;
//! let seen = viewer.next(Duration::from_secs(5))?;
//! assert_eq!((seen.buffers[0].name.as_str(), seen.buffers[0].bytes), ("frame", 4096));
//! # drop(frame);
//! drop(published);                                         // ends the live view
//! # Ok(())
//! # }
//! ```
//!
//! # Overhead
//!
//! A thread sleeps until a viewer connects. Then it reads, twice a second, counters that the program keeps anyway, and copies
//! a list under its lock. It calls no driver and takes no buffer's lock, so the program never waits for a viewer. A viewer
//! that does not read misses snapshots, and is disconnected after ten seconds. If the hub is not published, creating or
//! handing over a buffer costs one additional load.

mod ranks;
mod server;
mod snapshot;
mod statistics;
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests;
mod viewer;

pub use ranks::{RankSeen, RankSource, RankState, RankTold};
pub use server::{Collector, Published};
pub use snapshot::{
    BufferSeen, DeviceSeen, HandOver, Moved, PipelineSeen, RouteSeen, Snapshot, StageSeen,
};
use statistics::StatisticsTable;
pub use viewer::{Viewer, names};

use onebuf_core::Hub;
use onebuf_hal::Result;
use onebuf_socket::socket_path;
use std::path::PathBuf;

/// The suffix of these sockets' names, because a shared buffer may have the same name.
const SUFFIX: &str = ".top";

/// The socket path of a published program, or the name itself if it is a path.
fn path_of(name: &str) -> Result<PathBuf> {
    if name.contains('/') { socket_path(name) } else { socket_path(&format!("{name}{SUFFIX}")) }
}

/// The live view of a [`Hub`].
pub trait HubLiveExt {
    /// Lets other processes of the same user watch this hub while the returned value lives: see [`live`](self). Names follow
    /// the rules of `onebuf::peer::socket_path` and are a few characters shorter. Buffers created earlier are not listed.
    ///
    /// # Errors
    /// [`Error::Busy`](onebuf_hal::Error::Busy) if another program uses the name; [`Error::Cache`](onebuf_hal::Error::Cache)
    /// if other users can enter the directory; [`Error::InvalidArgument`](onebuf_hal::Error::InvalidArgument) if the name is
    /// invalid.
    fn publish(&self, name: &str) -> Result<Published>;
}

impl HubLiveExt for Hub {
    fn publish(&self, name: &str) -> Result<Published> {
        Published::open(self, name)
    }
}
