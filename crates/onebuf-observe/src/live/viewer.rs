//! The viewer's side. Nothing that the other says is believed before it was checked.

use super::{SUFFIX, Snapshot, path_of, snapshot::MOST_BYTES};
use onebuf_hal::{Error, Result};
use onebuf_socket::{Deadline, Peer, Socket, folder};
use std::{path::Path, time::Duration};

/// Looks at a program that published itself.
#[derive(Debug)]
pub struct Viewer {
    socket: Socket,
    peer: Peer,
}

impl Viewer {
    /// Attaches to a program of this user's by the name that it gave itself, or by the path of its socket.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is none; [`Error::PeerRefused`] when it is another user's.
    pub fn attach(name: &str, timeout: Duration) -> Result<Self> {
        let path = path_of(name)?;
        let socket = Socket::connect(&path, Deadline::after(timeout));
        let socket = socket.map_err(|error| nobody(&path, error))?;
        let peer = socket.peer()?.check(&[])?;
        Ok(Self { socket, peer })
    }

    /// Whose program it is.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// What it tells next: at once after attaching, and then twice a second.
    ///
    /// # Errors
    /// [`Error::PeerLost`] when the program has ended; [`Error::PeerRefused`] when it says something else than how it
    /// does; [`Error::Timeout`] when it says nothing.
    pub fn next(&mut self, timeout: Duration) -> Result<Snapshot> {
        // One more, so that a longer one is seen.
        let mut packet = vec![0; MOST_BYTES + 1];
        let got = self.socket.packet(
            &mut packet,
            Deadline::after(timeout),
            "a program to tell how it does",
        )?;
        Snapshot::decode(&packet[..got])
    }
}

/// The names of programs that can be seen, dead ones' perhaps among them.
pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let name = |file: String| Some(file.strip_suffix(".sock")?.strip_suffix(SUFFIX)?.to_owned());
    let mut names: Vec<String> = files.filter_map(name).collect();
    names.sort();
    names
}

/// The words of the other sockets are about shared buffers.
fn nobody(path: &Path, error: Error) -> Error {
    match error {
        Error::Unavailable { tried, .. } => Error::Unavailable {
            what: "a program to look at".into(),
            tried,
            reason: match path.exists() {
                true => "whoever could be seen here is gone".into(),
                false => {
                    "nobody can be seen under this name: programs say `hub.publish(name)`".into()
                }
            },
        },
        other => other,
    }
}
