//! Who the ranks are: what each tells the others at the start, and whether they fit together.
//!
//! | offset | bytes | field of a rank's record |
//! |---|---|---|
//! | 0 | 8 | `1bufrank` |
//! | 8 | 4 | version of the record, 1 |
//! | 12 | 4 | process id |
//! | 16 | 8 | start time of the process |
//! | 24 | 8 | machine: the same number if the ranks see each other in `/proc` |
//! | 32 | 8 | checksum of the options |
//! | 40 | 32 | onebuf's version, padded with zeros |
//! | 72 | 64 | host name, padded with zeros |
//! | 136 | 120 | zeros |

use crate::{
    checksum::checksum,
    claim::GpuClaim,
    process::{self, PeerState},
};
use onebuf_hal::{Error, Result, printable};
use std::collections::BTreeMap;

/// The size of a rank's record. It never changes, so that ranks of other versions can be told so.
pub(crate) const BYTES: usize = 256;

/// How much of the options' text the ranks exchange if their checksums differ.
pub(crate) const OPTIONS_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"1bufrank";
const RECORD_VERSION: u32 = 1;

/// A rank, as it described itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its number in the world.
    pub rank: usize,
    /// The name of its machine.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    began: u64,
    machine: u64,
    version: String,
    options: u64,
}

impl Peer {
    /// This process.
    pub(crate) fn this(rank: usize, options: &str) -> Self {
        Self {
            rank,
            host: process::host(),
            pid: std::process::id(),
            began: process::began(),
            machine: process::machine(),
            version: env!("CARGO_PKG_VERSION").into(),
            options: checksum(options.as_bytes()),
        }
    }

    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&RECORD_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.pid.to_le_bytes());
        out[16..24].copy_from_slice(&self.began.to_le_bytes());
        out[24..32].copy_from_slice(&self.machine.to_le_bytes());
        out[32..40].copy_from_slice(&self.options.to_le_bytes());
        put_text(&mut out[40..72], &self.version);
        put_text(&mut out[72..136], &self.host);
        out
    }

    fn decode(rank: usize, from: &[u8]) -> Result<Self, String> {
        let Some(from) = from.get(..BYTES).filter(|from| from.starts_with(MAGIC)) else {
            return Err(format!("rank {rank} is no process of onebuf's"));
        };
        let word = |at: usize| {
            from[at..at + 8].iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte))
        };
        let half = |at: usize| word(at) as u32;
        let version = text(&from[40..72]);
        if half(8) != RECORD_VERSION {
            return Err(format!("rank {rank} has onebuf {version}, whose protocol is another one"));
        }
        Ok(Self {
            rank,
            host: text(&from[72..136]),
            pid: half(12),
            began: word(16),
            machine: word(24),
            version,
            options: word(32),
        })
    }
}

fn put_text(into: &mut [u8], text: &str) {
    let many = text.len().min(into.len());
    into[..many].copy_from_slice(&text.as_bytes()[..many]);
}

/// Text that is padded with zeros.
fn unpadded(from: &[u8]) -> String {
    let end = from.iter().position(|&byte| byte == 0).unwrap_or(from.len());
    String::from_utf8_lossy(&from[..end]).into_owned()
}

fn text(from: &[u8]) -> String {
    printable(&unpadded(from))
}

/// All ranks of a world.
#[derive(Clone, Debug)]
pub(crate) struct Ranks {
    pub all: Vec<Peer>,
    pub own: usize,
    /// What this rank's library says of device memory.
    pub claim: GpuClaim,
}

impl Ranks {
    /// Reads the records of all ranks, one after another.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the ranks' numbers if they cannot work together. Every rank finds the same.
    pub fn read(own: usize, records: &[u8]) -> Result<Self> {
        let peers =
            records.chunks(BYTES).enumerate().map(|(rank, record)| Peer::decode(rank, record));
        let (good, bad): (Vec<_>, Vec<_>) = peers.partition(Result::is_ok);
        if !bad.is_empty() {
            let all: Vec<String> = bad.into_iter().filter_map(Result::err).collect();
            return Err(Error::invalid(all.join("; ")));
        }
        let all: Vec<Peer> = good.into_iter().flatten().collect();
        let versions = all.iter().map(|peer| (peer.rank, peer.version.as_str()));
        match differ(versions) {
            Some(said) => {
                Err(Error::invalid(format!("the ranks have different versions of onebuf: {said}")))
            }
            None => Ok(Self { all, own, claim: GpuClaim::default() }),
        }
    }

    /// Whether the ranks' options differ.
    pub fn options_differ(&self) -> bool {
        self.all.iter().any(|peer| peer.options != self.all[0].options)
    }

    /// The error for options that differ, from the texts of all ranks.
    pub fn options_error(&self, texts: &[u8]) -> Error {
        let texts: Vec<BTreeMap<String, String>> =
            texts.chunks(OPTIONS_BYTES).map(|text| options(&unpadded(text))).collect();
        let names: Vec<&String> = texts.iter().flat_map(BTreeMap::keys).collect();
        let said = |name: &&String| {
            let values = texts.iter().enumerate();
            let values =
                values.map(|(rank, of)| (rank, of.get(*name).map_or("nothing", String::as_str)));
            Some(format!("{name}: {}", differ(values)?))
        };
        let mut all: Vec<String> = names.iter().filter_map(said).collect();
        all.sort();
        all.dedup();
        if all.is_empty() {
            let sums: Vec<String> =
                self.all.iter().map(|peer| format!("{:x}", peer.options)).collect();
            let values = sums.iter().map(String::as_str).enumerate();
            all.extend(differ(values));
        }
        Error::invalid(format!("the ranks were started with different options: {}", all.join("; ")))
    }

    /// What the kernel knows of a rank.
    pub fn state(&self, rank: usize) -> PeerState {
        let Some(peer) = self.all.get(rank) else { return PeerState::Unknown };
        if peer.machine != self.all[self.own].machine {
            return PeerState::Unknown;
        }
        process::state(peer.pid, peer.began)
    }

    /// Whether a rank is a process of this machine.
    pub fn is_here(&self, rank: usize) -> bool {
        self.all[rank].machine == self.all[self.own].machine
    }

    /// Whether a rank of this machine is gone or stopped.
    pub fn ails(&self, rank: usize) -> bool {
        matches!(self.state(rank), PeerState::Gone | PeerState::Stopped)
    }

    /// A rank for messages: its number, its place and its state.
    pub fn describe(&self, rank: usize) -> String {
        match self.all.get(rank) {
            Some(Peer { host, pid, .. }) => {
                format!("rank {rank} (process {pid} on {host}, {})", self.state(rank))
            }
            None => format!("rank {rank}"),
        }
    }
}

/// Options as text: a line for each.
pub(crate) fn options_text(options: &BTreeMap<String, String>) -> String {
    options.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
}

fn options(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    lines.map(|(name, value)| (printable(name), printable(value))).collect()
}

/// Lists which ranks have which value; `None` if all have the same.
fn differ<'v>(values: impl IntoIterator<Item = (usize, &'v str)>) -> Option<String> {
    let mut by_value: Vec<(&str, Vec<usize>)> = Vec::new();
    for (rank, value) in values {
        match by_value.iter_mut().find(|(other, _)| *other == value) {
            Some((_, ranks)) => ranks.push(rank),
            None => by_value.push((value, vec![rank])),
        }
    }
    let said = |(value, ranks): &(&str, Vec<usize>)| format!("{value} ({})", list(ranks));
    (by_value.len() > 1).then(|| by_value.iter().map(said).collect::<Vec<_>>().join(", "))
}

/// `rank 3`, or `ranks 0, 1, 4`.
pub(crate) fn list(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(rank: usize, change: impl FnOnce(&mut Peer)) -> Vec<u8> {
        let mut peer = Peer::this(rank, "");
        change(&mut peer);
        peer.encode().to_vec()
    }

    #[test]
    fn a_rank_is_read_as_it_was_written() {
        let one = Peer { host: "some host".into(), ..Peer::this(1, "a=b\n") };
        assert_eq!(Peer::decode(1, &one.encode()), Ok(one.clone()));
        let records = [peer(0, |_| ()), one.encode().to_vec()].concat();
        let ranks = Ranks::read(0, &records).unwrap();
        assert_eq!(ranks.all[1], one);
        assert!(ranks.options_differ());
        let told = ranks.describe(1);
        assert!(
            told.contains("rank 1 (process ") && told.contains("on some host, running"),
            "{told}"
        );
        let all = vec![Peer { machine: 7, ..one }, ranks.all[0].clone()];
        let away = Ranks { all, own: 1, ..ranks };
        assert_eq!(away.state(0), PeerState::Unknown);
    }

    #[test]
    fn those_that_do_not_fit_are_named() {
        let old = |peer: &mut Peer| peer.version = "0.1.9".into();
        let records = [peer(0, |_| ()), peer(1, old), peer(2, |_| ()), peer(3, old)].concat();
        let refused = Ranks::read(2, &records).unwrap_err().to_string();
        assert!(refused.contains("(ranks 0, 2), 0.1.9 (ranks 1, 3)"), "{refused}");
        let mut records = [peer(0, |_| ()), peer(1, |_| ())].concat();
        records[BYTES + 8] = 2;
        let refused = Ranks::read(0, &records).unwrap_err().to_string();
        assert!(refused.contains("rank 1 has onebuf"), "{refused}");
        records[BYTES] = 0;
        let refused = Ranks::read(0, &records).unwrap_err().to_string();
        assert!(refused.contains("rank 1 is no process of onebuf's"), "{refused}");
    }

    #[test]
    fn options_that_differ_are_named_with_their_ranks() {
        let texts = ["samples=8\ntaps=4\n", "samples=8\ntaps=5\n", "samples=9\n"];
        let mut all = vec![0; 3 * OPTIONS_BYTES];
        texts
            .iter()
            .zip(all.chunks_mut(OPTIONS_BYTES))
            .for_each(|(text, into)| put_text(into, text));
        let records: Vec<u8> = texts
            .iter()
            .enumerate()
            .flat_map(|(rank, text)| Peer::this(rank, text).encode())
            .collect();
        let ranks = Ranks::read(0, &records).unwrap();
        assert!(ranks.options_differ());
        let said = ranks.options_error(&all).to_string();
        assert!(said.contains("samples: 8 (ranks 0, 1), 9 (rank 2)"), "{said}");
        assert!(said.contains("taps: 4 (rank 0), 5 (rank 1), nothing (rank 2)"), "{said}");
    }
}
