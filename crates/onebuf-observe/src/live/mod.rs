//! A running program, seen from another terminal: `onebuf top`.
//!
//! A program that wants to be seen says so, and is seen by processes of the same user alone: by the rules of
//! `onebuf::peer`, through a socket in a folder of mode 0700.
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
//! let published = hub.publish(name)?;                      // first: buffers made from now on are listed
//! let frame = hub.buffer::<f32>(1024).name("frame").build()?;
//!
//! // In another process, as a rule; or `onebuf top radar`.
//! let mut viewer = Viewer::attach(name, Duration::from_secs(5))?;
//! let seen = viewer.next(Duration::from_secs(5))?;
//! assert_eq!((seen.buffers[0].name.as_str(), seen.buffers[0].bytes), ("frame", 4096));
//! # drop(frame);
//! drop(published);                                         // nobody sees it any more
//! # Ok(())
//! # }
//! ```
//!
//! # What it costs
//!
//! A thread sleeps until somebody comes. Then it looks twice a second at counters that the program keeps anyway, and at
//! a list whose lock is held while the list is copied. It calls no driver and takes no lock of a buffer, so the program
//! never waits for whoever watches. A viewer that does not read misses what it does not read, and is
//! left after ten seconds. Not published, a buffer that is made or handed over costs one load more.

mod server;
mod snapshot;
mod statistics;
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests;
mod viewer;

pub use server::Published;
pub use snapshot::{
    BufferSeen, DeviceSeen, HandOver, Moved, PipelineSeen, RouteSeen, Snapshot, StageSeen,
};
use statistics::StatisticsTable;
pub use viewer::{Viewer, names};

use onebuf_core::Hub;
use onebuf_hal::Result;
use onebuf_socket::socket_path;
use std::path::PathBuf;

/// What the names of these sockets end with: a shared buffer may have the same name.
const SUFFIX: &str = ".top";

/// Where a program of this name is seen, or the path itself where it is one.
fn path_of(name: &str) -> Result<PathBuf> {
    if name.contains('/') { socket_path(name) } else { socket_path(&format!("{name}{SUFFIX}")) }
}

/// The live view of a [`Hub`].
pub trait HubLiveExt {
    /// Lets other processes of the same user look at this hub while what is returned lives: see [`live`](self).
    /// A name is as for `onebuf::peer::socket_path`, a few characters shorter. Buffers that were made
    /// before are not listed.
    ///
    /// # Errors
    /// [`Error::Busy`](onebuf_hal::Error::Busy) while the name is another's; [`Error::Cache`](onebuf_hal::Error::Cache) for a folder that
    /// others can enter; [`Error::InvalidArgument`](onebuf_hal::Error::InvalidArgument) for what is no name.
    fn publish(&self, name: &str) -> Result<Published>;
}

impl HubLiveExt for Hub {
    fn publish(&self, name: &str) -> Result<Published> {
        Published::open(self, name)
    }
}
