//! The ranks that work together, as one of them sees them.

use crate::{
    claim::GpuClaim,
    deadline::Deadline,
    engine::Link,
    library_key::library_key,
    process::PeerState,
    ranks::{Peer, Ranks},
};
use onebuf_hal::{
    Error, Result,
    locks::{Mutex, lock},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// All ranks of a job, and this process's place among them.
///
/// Cheap to clone. The last clone that is dropped ends the communication: it waits for all ranks, for at most the timeout, and
/// finalises MPI if onebuf has initialised it. If a wait has timed out, that takes at most two seconds. After a failure
/// ([`World::has_failed`]) it waits for nothing. Where the ranks do not end together MPI is left as it is: the process should
/// exit.
#[derive(Clone)]
pub struct World(Arc<Shared>);

pub(crate) struct Shared {
    link: Link,
    ranks: Mutex<Arc<Ranks>>,
    rank: usize,
    size: usize,
    timeout: Duration,
    /// What MPI calls itself; empty without MPI.
    library: String,
    options: BTreeMap<String, String>,
    failed: AtomicBool,
    /// A wait has timed out, here or on another rank.
    late: AtomicBool,
    /// Streams and turns in use.
    claims: Mutex<BTreeSet<Claim>>,
    /// Numbers the calls that all ranks make.
    calls: AtomicU64,
    /// Bytes of devices' memory that MPI was given.
    device_bytes: AtomicU64,
    /// The library's part of the keys of verdicts.
    library_key: String,
    /// The chip whose memory MPI is given, by its UUID: all ranks have agreed on it.
    proven_chip: Mutex<Option<[u8; 16]>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The end of a stream, or a turn: what it is, its number, and the other rank.
pub(crate) type Claim = (&'static str, u32, usize);

/// Keeps others from using the same stream or turn meanwhile.
pub(crate) struct Claimed {
    world: World,
    claim: Claim,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        lock(&self.world.0.claims).remove(&self.claim);
    }
}

/// What a world is made of.
pub(crate) struct Parts {
    pub link: Link,
    pub ranks: Arc<Ranks>,
    pub timeout: Duration,
    pub library: String,
    pub options: BTreeMap<String, String>,
    pub thread: Option<JoinHandle<()>>,
}

impl World {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { link, ranks, timeout, library, options, thread } = parts;
        Self(Arc::new(Shared {
            link,
            rank: ranks.own,
            size: ranks.all.len(),
            ranks: Mutex::new(ranks),
            timeout,
            library_key: library_key(&library),
            library,
            proven_chip: Mutex::new(None),
            options,
            failed: AtomicBool::new(false),
            late: AtomicBool::new(false),
            claims: Mutex::default(),
            calls: AtomicU64::new(0),
            device_bytes: AtomicU64::new(0),
            thread: Mutex::new(thread),
        }))
    }

    /// The number of this process, from zero.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// The limit of waits that have none of their own.
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// The library's own description of itself; empty in a world of one rank without MPI.
    pub fn library(&self) -> &str {
        &self.0.library
    }

    /// What this rank's library says of device memory. It is not believed without an experiment ([`World::try_device_memory`]).
    pub fn gpu_claim(&self) -> GpuClaim {
        self.ranks().claim
    }

    /// How many bytes of messages MPI has been given in devices' memory, to send or to receive. Zero where all of it is staged.
    pub fn device_bytes(&self) -> u64 {
        self.0.device_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn library_key(&self) -> &str {
        &self.0.library_key
    }

    pub(crate) fn set_proven_chip(&self, chip: Option<[u8; 16]>) {
        *lock(&self.0.proven_chip) = chip;
    }

    pub(crate) fn has_proven_chip(&self, chip: [u8; 16]) -> bool {
        *lock(&self.0.proven_chip) == Some(chip)
    }

    pub(crate) fn note_device_bytes(&self, bytes: usize) {
        self.0.device_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// All ranks, in their order.
    pub fn peers(&self) -> Vec<Peer> {
        self.ranks().all.clone()
    }

    /// What the kernel knows of a rank's process: whether it runs, is stopped, or is gone. Ranks of other machines are
    /// [`PeerState::Unknown`].
    pub fn state_of(&self, rank: usize) -> PeerState {
        self.ranks().state(rank)
    }

    /// A sentence for each rank of this machine that is gone or stopped, such as `rank 2 (process 4711 on node7, gone)`.
    /// It calls no MPI, so that any thread may ask at any time: also when the launcher is about to end the process.
    pub fn ailing(&self) -> Vec<String> {
        let ranks = self.ranks();
        let ails =
            |rank: &usize| matches!(ranks.state(*rank), PeerState::Gone | PeerState::Stopped);
        (0..self.size()).filter(ails).map(|rank| ranks.describe(rank)).collect()
    }

    /// Whether a rank was lost, or MPI has failed. Then the ranks cannot end together any more.
    pub fn has_failed(&self) -> bool {
        self.0.failed.load(Ordering::Relaxed)
    }

    /// Goes on with the ranks that are left after one was lost. Every remaining rank calls it. Everything that is under way
    /// fails. Ranks have new numbers in the new world, in their order.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless this MPI has ULFM; [`Error::Timeout`] if the remaining ranks do not come; MPI's errors;
    /// [`Error::Busy`] while clones of this world exist.
    pub fn remaining(self) -> Result<World> {
        let timeout = self.0.timeout;
        let shared = Arc::into_inner(self.0).ok_or_else(|| Error::Busy {
            what: "this world has other users; drop streams, turns and clones first".into(),
        })?;
        let ranks = shared.link.shrink(Deadline::after(timeout), shared.options.clone())?;
        Ok(World::new(Parts {
            link: shared.link.clone(),
            ranks,
            timeout,
            library: shared.library.clone(),
            options: shared.options.clone(),
            thread: lock(&shared.thread).take(),
        }))
    }

    pub(crate) fn link(&self) -> &Link {
        &self.0.link
    }

    pub(crate) fn ranks(&self) -> Arc<Ranks> {
        lock(&self.0.ranks).clone()
    }

    /// Records an outcome after which the ranks may not end together.
    pub(crate) fn watch<R>(&self, outcome: Result<R>) -> Result<R> {
        let outcome = outcome.map_err(|error| self.with_names(error));
        match outcome {
            Err(Error::PeerLost { .. } | Error::Driver { .. }) => {
                self.0.failed.store(true, Ordering::Relaxed);
            }
            Err(Error::Timeout { .. }) => self.doubt(),
            _ => {}
        }
        outcome
    }

    /// MPI's own words for a lost process have no number: the ranks of this machine that are gone or stopped are added.
    fn with_names(&self, error: Error) -> Error {
        match error {
            Error::PeerLost { reason } if !reason.contains("(process ") => {
                let ailing = self.ailing().into_iter().map(|rank| format!("; {rank}"));
                Error::PeerLost { reason: reason + &ailing.collect::<String>() }
            }
            error => error,
        }
    }

    /// Whether no clone of this world exists, and nothing is under way in it. For bindings, which keep a world that
    /// [`World::remaining`] would refuse.
    #[doc(hidden)]
    pub fn is_only(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Records that a rank may not come any more: the end waits for at most two seconds. For bindings whose blocks end by exceptions.
    #[doc(hidden)]
    pub fn doubt(&self) {
        self.0.late.store(true, Ordering::Relaxed);
    }

    /// How long the end of something is waited for: not long if that is in doubt.
    pub(crate) fn last_wait(&self) -> Duration {
        self.0.last_wait()
    }

    /// The number of the next call that all ranks make.
    pub(crate) fn next_call(&self) -> u64 {
        self.0.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes a stream or a turn, which only one part of a pipeline may use.
    pub(crate) fn claim(&self, claim: Claim) -> Result<Claimed> {
        if !lock(&self.0.claims).insert(claim) {
            let (what, number, peer) = claim;
            return Err(Error::Busy {
                what: format!("{what} {number} with rank {peer} is in use; choose another number"),
            });
        }
        Ok(Claimed { world: self.clone(), claim })
    }

    pub(crate) fn check_rank(&self, rank: usize) -> Result<()> {
        match rank < self.size() {
            true => Ok(()),
            false => Err(Error::invalid(format!("rank {rank} in a world of {}", self.size()))),
        }
    }
}

/// How long ranks that may not come are waited for at the end.
const LAST_WAIT: Duration = Duration::from_secs(2);

impl Shared {
    fn last_wait(&self) -> Duration {
        let doubt = [&self.failed, &self.late].iter().any(|flag| flag.load(Ordering::Relaxed));
        if doubt { self.timeout.min(LAST_WAIT) } else { self.timeout }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(thread) = lock(&self.thread).take() else { return };
        let failed = self.failed.load(Ordering::Relaxed);
        match self.link.close(Deadline::after(self.last_wait()), failed) {
            Ok(()) => thread.join().unwrap_or_default(),
            // The thread is left to itself: it may be inside of MPI.
            Err(error) => tracing::warn!(%error, "MPI is not finalised"),
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World(rank {} of {}, {:?})", self.rank(), self.size(), self.0.library)
    }
}
