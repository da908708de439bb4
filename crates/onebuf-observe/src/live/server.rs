//! The publisher's side: a thread that sends snapshots to viewers and never waits for them.

use super::{RankSource, Snapshot, StatisticsTable, path_of};
use onebuf_core::{Hub, internals::WeakHub, observe::ProgressSource};
use onebuf_hal::{
    Error, Result,
    locks::{Arc, Mutex, lock},
};
use onebuf_socket::{Listener, Name, Socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    fmt,
    os::unix::net::UnixStream,
    path::Path,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The interval of snapshots.
pub(super) const EVERY: Duration = Duration::from_millis(500);
/// A viewer that misses this many snapshots in a row (ten seconds) is disconnected.
pub(super) const MOST_MISSED: u32 = 20;
/// The maximum number of viewers.
const MOST_VIEWERS: usize = 8;

/// What a published hub shows, for other threads of the program: it reads counters, and takes no buffer's lock.
#[derive(Clone)]
pub struct Collector(Arc<Shown>);

struct Shown {
    hub: WeakHub,
    statistics_table: Arc<StatisticsTable>,
    /// The published pipelines and their names.
    pipelines: Mutex<Vec<(String, Arc<dyn ProgressSource>)>>,
    ranks: Mutex<Option<Arc<dyn RankSource>>>,
    start: Instant,
}

impl Collector {
    /// What a viewer would see now, without other ranks; `None` once the hub is gone.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let hub = self.0.hub.upgrade()?;
        let pipelines = lock(&self.0.pipelines).clone();
        let uptime = self.0.start.elapsed();
        Some(Snapshot::of(&hub, &self.0.statistics_table, &pipelines, uptime))
    }

    /// The next packet for viewers.
    fn packet(&self) -> Option<Vec<u8>> {
        let mut seen = self.snapshot()?;
        let ranks = lock(&self.0.ranks).clone();
        seen.ranks = ranks.map(|ranks| ranks.ranks()).unwrap_or_default();
        seen.encode()
            .inspect_err(|error| tracing::warn!(%error, "a snapshot could not be sent"))
            .ok()
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

/// A hub that other processes of the same user can watch while this lives. Keeps the hub alive.
pub struct Published {
    name: Name,
    collector: Collector,
    /// Closing it wakes and ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    /// Keeps the thread from holding the last reference, so that drivers are unloaded on the program's thread.
    _hub: Hub,
}

impl Published {
    pub(super) fn open(hub: &Hub, name: &str) -> Result<Self> {
        let name = Name::take(path_of(name)?)?;
        let listener = Listener::open(&name.socket)?;
        let pair = UnixStream::pair().map_err(failed("socketpair"))?;
        let collector = Collector(Arc::new(Shown {
            hub: hub.downgrade(),
            statistics_table: hub.observe_with(StatisticsTable::default),
            pipelines: Mutex::default(),
            ranks: Mutex::default(),
            start: Instant::now(),
        }));
        let server = Server { collector: collector.clone(), viewers: Vec::new() };
        let body = move || server.serve(&listener, &pair.1);
        let thread = thread::Builder::new().name("onebuf top".into()).spawn(body);
        let thread = Some(thread.map_err(failed("pthread_create"))?);
        Ok(Self { name, collector, stop: Some(pair.0), thread, _hub: hub.clone() })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.name.socket
    }

    /// Also publishes a pipeline, by its handle. A pipeline of the same name is replaced.
    pub fn pipeline(&self, name: impl Into<String>, handle: impl ProgressSource + 'static) {
        let (name, mut all) = (name.into(), lock(&self.collector.0.pipelines));
        all.retain(|(other, _)| *other != name);
        all.push((name, Arc::new(handle)));
    }

    /// Also shows the ranks of a job, from now on; `None` ends that.
    pub fn ranks(&self, source: Option<Arc<dyn RankSource>>) {
        *lock(&self.collector.0.ranks) = source;
    }

    /// What the hub shows, for other threads of the program. It does not keep the hub alive.
    pub fn collector(&self) -> Collector {
        self.collector.clone()
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread never blocks on a viewer, so this returns soon.
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(_)) = ended {
            tracing::error!("the thread for viewers panicked");
        }
    }
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Published({})", self.path().display())
    }
}

struct Server {
    collector: Collector,
    viewers: Vec<Visitor>,
}

pub(super) struct Visitor {
    socket: Socket,
    missed: u32,
}

impl Server {
    fn serve(mut self, listener: &Listener, stop: &UnixStream) {
        let mut told = Instant::now();
        loop {
            let due = (!self.viewers.is_empty()).then(|| EVERY.saturating_sub(told.elapsed()));
            match self.wait(listener, stop, due) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    return tracing::error!(%error, "the live view has ended");
                }
            }
            self.greet(listener);
            // Viewers send nothing. One that does, or that has disconnected, is dropped.
            self.viewers.retain(|viewer| matches!(viewer.socket.try_packet(&mut [0; 1]), Ok(None)));
            if told.elapsed() >= EVERY && !self.viewers.is_empty() {
                told = Instant::now();
                self.tell();
            }
        }
    }

    /// Waits until a viewer connects or disconnects, or a snapshot is due. Returns false at the end.
    fn wait(&self, listener: &Listener, stop: &UnixStream, due: Option<Duration>) -> Result<bool> {
        let mut all = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        all.extend(self.viewers.iter().map(|v| PollFd::new(&v.socket, PollFlags::IN)));
        let limit = due.map(|due| Timespec {
            tv_sec: due.as_secs() as i64,
            tv_nsec: due.subsec_nanos().into(),
        });
        match poll(&mut all, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(all[0].revents().is_empty()),
            Err(errno) => Err(failed("poll")(errno.into())),
        }
    }

    /// Accepts a viewer of the same user, and sends it a snapshot at once.
    fn greet(&mut self, listener: &Listener) {
        let came = match listener.try_accept() {
            Ok(Some(came)) => came,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "a viewer could not be accepted");
                // The viewer still waits in the listen queue; without a pause this would be a busy loop.
                return thread::sleep(EVERY);
            }
        };
        let known = came.peer().and_then(|peer| peer.check(&[]));
        if let Err(error) = known {
            return tracing::warn!(%error, "a viewer was refused");
        }
        if self.viewers.len() == MOST_VIEWERS {
            return tracing::warn!("a viewer was refused: at most {MOST_VIEWERS} are allowed");
        }
        let mut viewer = Visitor::new(came);
        if self.collector.packet().is_some_and(|packet| viewer.tell(&packet)) {
            self.viewers.push(viewer);
        }
    }

    fn tell(&mut self) {
        if let Some(packet) = self.collector.packet() {
            self.viewers.retain_mut(|viewer| viewer.tell(&packet));
        }
    }
}

impl Visitor {
    pub fn new(socket: Socket) -> Self {
        Self { socket, missed: 0 }
    }

    /// Sends a snapshot without waiting. Returns false if the viewer should be dropped.
    pub fn tell(&mut self, packet: &[u8]) -> bool {
        match self.socket.try_send(packet) {
            Ok(true) => self.missed = 0,
            Ok(false) => self.missed += 1,
            Err(_) => return false,
        }
        self.missed < MOST_MISSED
    }
}

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::Driver {
        api: "host",
        call,
        code: error.raw_os_error().unwrap_or(0),
        name: error.to_string(),
    }
}
