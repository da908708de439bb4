//! All ranks of a job in the live view of rank 0.
//!
//! Every rank sends what its own live view has to rank 0, in messages of one size: small enough that MPI sends them without waiting for
//! the receiver.

use crate::{
    direct::By,
    flight::InFlight,
    process::PeerState,
    ranks::{Peer, Ranks},
    transport::Way,
    world::World,
};
use onebuf::{
    Buffer, Hub,
    live::{Collector, Published, RankSeen, RankSource, RankState, RankTold},
};
use onebuf_hal::{
    Error, Result,
    locks::{Mutex, lock},
};
use std::{
    fmt,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The tag follows those of corner turns.
const TAG: i32 = 28_672;
/// How often ranks tell their state: as often as viewers are told.
const EVERY: Duration = Duration::from_millis(500);
/// How often rank 0 looks for messages.
const LOOK: Duration = Duration::from_millis(100);
/// A rank that has told nothing for so long is silent.
const SILENCE: Duration = Duration::from_secs(5);
/// How long the last messages may take at the end.
const FAREWELL: Duration = Duration::from_secs(2);
/// The same after a failure, which the program is about to report.
const SHORT_FAREWELL: Duration = Duration::from_millis(200);
/// The size of a message. Libraries send up to 4 KiB at once.
const PAGE: usize = 3072;
/// The first byte of a message: more of them follow, or this was the last.
const MORE: u8 = b'+';
const LAST: u8 = b'.';

/// Shows all ranks of a job in the [live view](onebuf::live) of rank 0, so that `onebuf top` shows them from there. They tell their state
/// through MPI, twice a second.
///
/// ```
/// use onebuf::prelude::*;
///
/// # fn main() -> onebuf::Result<()> {
/// # use std::os::unix::fs::PermissionsExt;
/// # let rights = std::fs::Permissions::from_mode(0o700);
/// # let folder = tempfile::Builder::new().permissions(rights).tempdir().unwrap();
/// # let name = folder.path().join("doc.sock").to_str().unwrap().to_owned();
/// let (hub, world) = (onebuf::discover()?, onebuf_mpi::Join::new().start()?);
/// # /*
/// let name = format!("radar-{}", world.rank());
/// # */
/// let published = hub.publish(&name)?;
/// let shown = onebuf_mpi::LiveRanks::open(&world, Some(&published))?; // on all ranks
/// // … the ranks work …
/// drop(shown);
/// # Ok(())
/// # }
/// ```
///
/// Dropping it ends this: a rank tells that it has ended, and rank 0 waits until all have, for at most two seconds, and
/// after a failure for a fifth of one.
pub struct LiveRanks {
    /// Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LiveRanks {
    /// Begins to tell this rank's state, or to gather those of all ranks on rank 0. All ranks must call it, and drop it before the world; each at
    /// most once at a time. A rank without a live view passes `None`: it is listed, without what it does.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is open already; [`Error::Unsupported`] if there is no thread for it.
    pub fn open(world: &World, published: Option<&Published>) -> Result<Self> {
        let claimed = world.claim(("live view", 0, 0))?;
        let hub = onebuf::builder().only(["host"]).verdicts(Default::default()).build()?;
        let (stop, stopped) = channel();
        let collector = published.map(Published::collector);
        let world = world.clone();
        let mut gathered = None;
        if world.rank() == 0 {
            let all = Arc::new(Gathered::new(&world, collector.clone()));
            if let Some(published) = published {
                published.ranks(Some(all.clone()));
            }
            gathered = Some(all);
        }
        let body = move || {
            let outcome = match gathered {
                Some(all) => gather(&hub, &world, &all, &stopped),
                None => tell(&hub, &world, collector.as_ref(), &stopped),
            };
            if let Err(error) = outcome {
                tracing::warn!(%error, "the live view of all ranks has ended");
            }
            drop((claimed, hub));
        };
        let spawned = thread::Builder::new().name("onebuf ranks".into()).spawn(body);
        let thread = spawned.map_err(|why| {
            Error::unsupported("a live view of ranks", format!("a thread ({why})"))
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for LiveRanks {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the thread for the live view of ranks panicked");
        }
    }
}

impl fmt::Debug for LiveRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveRanks")
    }
}

/// Waits until the owner ends this, for at most so long.
fn has_stopped(stopped: &Receiver<()>, limit: Duration) -> bool {
    stopped.recv_timeout(limit) != Err(RecvTimeoutError::Timeout)
}

/// Until when the last messages are waited for.
fn farewell(world: &World) -> Instant {
    Instant::now() + if world.has_failed() { SHORT_FAREWELL } else { FAREWELL }
}

/// What this rank tells.
fn told_by(collector: Option<&Collector>) -> RankTold {
    let seen = collector.and_then(Collector::snapshot);
    seen.map_or_else(RankTold::default, |seen| RankTold::of(&seen))
}

/// A message: its first byte, the text, and spaces.
fn page(told: &RankTold, last: bool) -> Vec<u8> {
    let mut page = vec![if last { LAST } else { MORE }];
    page.extend(told.encode(PAGE - 1));
    page.resize(PAGE, b' ');
    page
}

/// Tells rank 0 this rank's state until the owner ends it, and then that it has ended.
fn tell(
    hub: &Hub,
    world: &World,
    collector: Option<&Collector>,
    stopped: &Receiver<()>,
) -> Result<()> {
    let buffer = hub.buffer::<u8>(PAGE).build()?;
    let mut last = false;
    while !last {
        last = has_stopped(stopped, EVERY);
        buffer.write(&page(&told_by(collector), last))?;
        let mut sent = world.tagged(Way::Send, (&buffer).into(), 0, TAG, By::Host)?;
        let mut ends_at = last.then(|| farewell(world));
        while !sent.is_done_within(LOOK)? {
            if ends_at.is_none() && has_stopped(stopped, Duration::ZERO) {
                ends_at = Some(farewell(world));
            }
            if ends_at.is_some_and(|end| Instant::now() > end) {
                // Rank 0 is stopped, or far away: its end is not waited for either.
                world.doubt();
                return Ok(());
            }
        }
        sent.wait(Duration::ZERO)?;
    }
    Ok(())
}

/// What rank 0 knows of a rank.
#[derive(Clone, Default)]
struct Known {
    told: RankTold,
    at: Option<Instant>,
    /// It has told that it has ended.
    ended: bool,
    /// Nothing can be received from it.
    lost: bool,
}

/// The ranks as rank 0 knows them, for its live view.
struct Gathered {
    ranks: Arc<Ranks>,
    /// Rank 0's own.
    collector: Option<Collector>,
    /// Of each rank: the number, host and process.
    all: Vec<RankSeen>,
    known: Mutex<Vec<Known>>,
}

impl Gathered {
    fn new(world: &World, collector: Option<Collector>) -> Self {
        let seen = |peer: Peer| RankSeen {
            rank: peer.rank as u64,
            host: peer.host,
            pid: peer.pid,
            ..RankSeen::default()
        };
        let all: Vec<RankSeen> = world.peers().into_iter().map(seen).collect();
        let known = Mutex::new(vec![Known::default(); all.len()]);
        Self { ranks: world.ranks(), collector, all, known }
    }

    fn change(&self, rank: usize, change: impl FnOnce(&mut Known)) {
        if let Some(known) = lock(&self.known).get_mut(rank) {
            change(known);
        }
    }

    /// What rank 0 itself does is known without messages.
    fn own(&self) -> Known {
        Known {
            told: told_by(self.collector.as_ref()),
            at: Some(Instant::now()),
            ..Known::default()
        }
    }
}

impl Known {
    /// The state of a rank whose process is in that one.
    fn state(&self, process: PeerState) -> RankState {
        match process {
            _ if self.ended => RankState::Ended,
            PeerState::Gone => RankState::Gone,
            PeerState::Stopped => RankState::Stopped,
            _ if self.lost => RankState::Gone,
            _ => match self.at {
                None => RankState::Unknown,
                Some(at) if at.elapsed() > SILENCE => RankState::Silent,
                Some(_) => RankState::Running,
            },
        }
    }
}

impl RankSource for Gathered {
    fn ranks(&self) -> Vec<RankSeen> {
        let mut known = lock(&self.known).clone();
        known[0] = self.own();
        let seen = |(known, (rank, seen)): (Known, (usize, &RankSeen))| RankSeen {
            state: known.state(self.ranks.state(rank)),
            told_us_ago: known.at.map(|at| at.elapsed().as_micros() as u64),
            told: known.told,
            ..seen.clone()
        };
        known.into_iter().zip(self.all.iter().enumerate()).map(seen).collect()
    }
}

/// Receives what the other ranks tell, until the owner ends it and they have ended.
fn gather(hub: &Hub, world: &World, all: &Gathered, stopped: &Receiver<()>) -> Result<()> {
    let page = |_| hub.buffer::<u8>(PAGE).build();
    let pages: Vec<Buffer<u8>> = (1..world.size()).map(page).collect::<Result<_>>()?;
    let mut flights: Vec<Option<InFlight<'_, u8>>> = pages.iter().map(|_| None).collect();
    let mut open = vec![true; pages.len()];
    let mut ends_at = None;
    loop {
        for (at, flight) in flights.iter_mut().enumerate() {
            if open[at] {
                open[at] = hear(world, all, &pages[at], flight, at + 1);
            }
        }
        let ended = ends_at.is_some_and(|end| Instant::now() > end);
        if ends_at.is_some() && (ended || !open.contains(&true)) {
            return Ok(());
        }
        match ends_at {
            None if has_stopped(stopped, LOOK) => ends_at = Some(farewell(world)),
            None => {}
            Some(_) => thread::sleep(LOOK / 10),
        }
    }
}

/// Notes what a rank has told. Returns whether it may tell more.
fn hear<'b>(
    world: &World,
    all: &Gathered,
    page: &'b Buffer<u8>,
    flight: &mut Option<InFlight<'b, u8>>,
    rank: usize,
) -> bool {
    match next(world, page, flight, rank) {
        Ok(None) => true,
        Ok(Some(text)) => all.hear(rank, &text),
        Err(error) => {
            tracing::debug!(%error, "a rank tells nothing more");
            all.change(rank, |known| known.lost = true);
            false
        }
    }
}

/// What a rank has told, if it has. The next message is expected at once.
fn next<'b>(
    world: &World,
    page: &'b Buffer<u8>,
    flight: &mut Option<InFlight<'b, u8>>,
    rank: usize,
) -> Result<Option<Vec<u8>>> {
    let mut told = None;
    if let Some(came) = flight {
        if !came.is_done()? {
            return Ok(None);
        }
        came.wait(Duration::ZERO)?;
        *flight = None;
        told = Some(page.to_vec()?);
    }
    if told.as_ref().is_none_or(|text| text.first() == Some(&MORE)) {
        *flight = Some(world.tagged(Way::Receive, page.into(), rank, TAG, By::Host)?);
    }
    Ok(told)
}

impl Gathered {
    /// Notes a message. Returns whether there will be more.
    fn hear(&self, rank: usize, text: &[u8]) -> bool {
        let more = text.first() == Some(&MORE);
        let told = text.get(1..).and_then(RankTold::decode);
        self.change(rank, |known| {
            // The last message is the state at the end.
            if let Some(told) = told {
                known.told = told;
            }
            known.at = Some(Instant::now());
            known.ended = !more;
        });
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_one_size() {
        for last in [false, true] {
            let page = page(&RankTold::default(), last);
            assert_eq!((page.len(), page[0]), (PAGE, if last { b'.' } else { b'+' }));
            assert_eq!(RankTold::decode(&page[1..]), Some(RankTold::default()));
        }
    }

    #[test]
    fn a_state_says_what_is_known() {
        let now = || Some(Instant::now());
        let before = Instant::now().checked_sub(2 * SILENCE);
        let known = |at, ended, lost| Known { at, ended, lost, ..Known::default() };
        for (known, process, state) in [
            (known(None, false, false), PeerState::Running, RankState::Unknown),
            (known(now(), false, false), PeerState::Running, RankState::Running),
            (known(now(), false, false), PeerState::Unknown, RankState::Running),
            (known(before, false, false), PeerState::Unknown, RankState::Silent),
            (known(now(), false, false), PeerState::Stopped, RankState::Stopped),
            (known(now(), false, false), PeerState::Gone, RankState::Gone),
            (known(now(), false, true), PeerState::Unknown, RankState::Gone),
            (known(now(), true, false), PeerState::Gone, RankState::Ended),
        ] {
            assert_eq!(known.state(process), state);
        }
    }
}
