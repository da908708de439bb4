//! The viewer's side. Everything received is checked before it is used.

use super::{SUFFIX, Snapshot, path_of, snapshot::MOST_BYTES};
use onebuf_hal::{Error, Result};
use onebuf_socket::{Deadline, Peer, Socket, folder};
use std::{path::Path, time::Duration};

/// Watches a program that has published its hub.
#[derive(Debug)]
pub struct Viewer {
    socket: Socket,
    peer: Peer,
}

impl Viewer {
    /// Attaches to a program of the same user, by its published name or the path of its socket.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is none; [`Error::PeerRefused`] if it belongs to another user.
    pub fn attach(name: &str, timeout: Duration) -> Result<Self> {
        let path = path_of(name)?;
        let socket = Socket::connect(&path, Deadline::after(timeout));
        let socket = socket.map_err(|error| nobody(&path, error))?;
        let peer = socket.peer()?.check(&[])?;
        Ok(Self { socket, peer })
    }

    /// The program's process.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The next snapshot: one at once after attaching, then two per second.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if the program has exited; [`Error::PeerRefused`] if it sends anything but a snapshot;
    /// [`Error::Timeout`] if it sends nothing.
    pub fn next(&mut self, timeout: Duration) -> Result<Snapshot> {
        // One byte more, to detect longer packets.
        let mut packet = vec![0; MOST_BYTES + 1];
        let got = self.socket.packet(
            &mut packet,
            Deadline::after(timeout),
            "the program's next snapshot",
        )?;
        Snapshot::decode(&packet[..got])
    }
}

/// The names of published programs. Names of programs that have died may be among them.
pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let name = |file: String| Some(file.strip_suffix(".sock")?.strip_suffix(SUFFIX)?.to_owned());
    let mut names: Vec<String> = files.filter_map(name).collect();
    names.sort();
    names
}

/// Replaces the socket's error text, which is about shared buffers.
fn nobody(path: &Path, error: Error) -> Error {
    match error {
        Error::Unavailable { tried, .. } => Error::Unavailable {
            what: "a program to watch".into(),
            tried,
            reason: match path.exists() {
                true => "the program that published this name is gone".into(),
                false => "no program has published this name with `hub.publish(name)`".into(),
            },
        },
        other => other,
    }
}
