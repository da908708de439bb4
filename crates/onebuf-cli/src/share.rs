//! `onebuf share`: offers a buffer that other processes attach to, one after another.

use crate::{
    devices,
    out::{Answer, Failure, Output, Result, warn},
    turns::{Hands, PageCounts, devices_json, judge, pages},
    units,
};
use onebuf::{
    Buffer, Device, Error, MemoryKind,
    peer::{Offer, Visit},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Offer a buffer to other processes; both sides write it in turns and check every page
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf share --name frames              then, in another terminal: onebuf attach frames
  onebuf share --bytes 256MiB --devices opencl:0 --peers 3
  onebuf share --elements 1048576 --json
  onebuf share --devices cuda:0           in the device's memory; then: onebuf attach NAME --devices cuda:0

The buffer is allocated in host pages (a memfd with a sealed size), or in memory of the first named device that
exports it (CUDA, HIP); a peer then needs a device of the same chip. Peers connect through a socket in a folder
of mode 0700, and must belong to the same user. In its turn this process, or each of its devices in order,
writes every word, hands the buffer over, and checks what the peer has written. A peer that dies
is reported at once, and the buffer stays usable. A process that connects and sends nothing is refused after 5 s,
with a warning, and does not delay others. A peer that keeps its turn for longer than --timeout is dropped.")]
pub struct ShareArgs {
    /// Size of the buffer: 65536, 64KiB, 256MiB; a multiple of 4
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = units::parse_bytes)]
    bytes: u64,
    /// Number of elements of 4 bytes
    #[arg(long, value_name = "N", conflicts_with = "bytes", value_parser = clap::value_parser!(u64).range(1..=MOST))]
    elements: Option<u64>,
    /// Name for peers; a path if it contains a `/`
    #[arg(long)]
    name: Option<String>,
    /// Devices that write and check here, in turn; the default is the host
    #[arg(long, value_name = "A,B,…", value_delimiter = ',')]
    devices: Vec<String>,
    /// Where the buffer is allocated [default: in device memory if one of --devices exports it, else in host pages]
    #[arg(long, value_enum)]
    memory: Option<Place>,
    /// Number of peers to serve before exiting
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    peers: u64,
    /// Seconds to wait for a peer to connect, and for each of its turns
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: u64,
}

/// Where the buffer is allocated.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Place {
    /// Host pages
    Pages,
    /// Device memory that is shared by a file descriptor
    Device,
    /// Plain device memory, shared by a handle of its API: a multiple of 2 MiB
    Handle,
}

impl ShareArgs {
    /// The device that allocates the memory, and the memory kind; none for host pages.
    fn home<'d>(&self, devices: &'d [Device]) -> Result<Option<(&'d Device, MemoryKind)>> {
        let first = |memory_kind, has: fn(&Device) -> bool| {
            let fits = |device: &&Device| has(device) && device.info().physical.uuid.is_some();
            devices.iter().find(fits).map(|device| (device, memory_kind))
        };
        let exports = |device: &Device| {
            let caps = &device.info().caps;
            caps.memory_kinds.contains(&MemoryKind::Exportable) && !caps.parses_fds
        };
        let home = match self.memory {
            Some(Place::Pages) => return Ok(None),
            Some(Place::Handle) => first(MemoryKind::Device, |device| device.info().caps.ipc),
            Some(Place::Device) | None => first(MemoryKind::Exportable, exports),
        };
        match self.memory {
            Some(place) if home.is_none() => Err(Failure::new(format!(
                "--memory {}: name one with --devices that supports it (see `onebuf devices`)",
                if place == Place::Handle { "handle" } else { "device" },
            ))),
            _ => Ok(home),
        }
    }
}

/// Kernels count words with 32 bits.
const MOST: u64 = u32::MAX as u64 - 4096;

impl ShareArgs {
    fn elements(&self) -> Result<usize> {
        let bytes = self.elements.map_or(self.bytes, |elements| elements * 4);
        let elements = bytes / 4;
        if !bytes.is_multiple_of(4) || !(1..=MOST).contains(&elements) {
            return Err(Failure::new(format!(
                "--bytes {bytes}: give a multiple of 4 bytes, and less than 16 GiB"
            )));
        }
        Ok(usize::try_from(elements)?)
    }
}

pub fn run(args: &ShareArgs, output: &Output) -> Result<Answer> {
    let elements = args.elements()?;
    let hub = devices::discover()?;
    let (hands, devices) = Hands::open(&hub, &args.devices)?;
    let builder = hub.buffer::<u32>(elements).shared_with(&devices);
    let buffer = match args.home(&devices)? {
        Some((home, memory_kind)) => builder.memory_kind(memory_kind).allocate_on(home).build()?,
        None => builder.memory_kind(MemoryKind::HostPages).allocate_on(&hub.host()).build()?,
    };
    let name = args.name.clone().unwrap_or_else(|| format!("share-{}", std::process::id()));
    let mut offer = Offer::open(&buffer, &name)?;
    let size = units::bytes(buffer.size_bytes() as u64);
    let path = offer.path().display().to_string();
    output.tell(&format!("{size} at {path}: `onebuf attach {name}`"))?;
    let host = Owner { hands, timeout: Duration::from_secs(args.timeout), output };
    let visits = host.serve(&mut offer, args.peers)?;
    drop(offer);
    let mut all = PageCounts::default();
    visits.iter().for_each(|visit| add(&mut all, &visit.seen));
    judge(&all)?;
    if let Some(lost) = visits.iter().find_map(|visit| visit.lost.as_deref()) {
        return Err(Failure::new(format!("a peer was lost: {lost}")));
    }
    Ok(answer(&buffer, &path, &name, &visits, &all))
}

fn add(all: &mut PageCounts, one: &PageCounts) {
    all.rounds += one.rounds;
    all.pages_checked += one.pages_checked;
    all.pages_wrong += one.pages_wrong;
}

fn answer(
    buffer: &Buffer<u32>,
    path: &str,
    name: &str,
    visits: &[Visited],
    all: &PageCounts,
) -> Answer {
    let mut json = json!({
        "path": path,
        "name": name,
        "bytes": buffer.size_bytes(),
        "pages": pages(buffer.len()),
        "devices": devices_json(buffer),
        "memory": buffer.plan().memory_kind,
        "peers": visits.iter().map(Visited::json).collect::<Vec<_>>(),
        "bytes_copied": buffer.hub().ledger().implied_bytes(),
    });
    all.add_to(&mut json);
    let s = if visits.len() == 1 { "" } else { "s" };
    Answer { json, text: format!("{} peer{s}: {}\n", visits.len(), all.words()) }
}

/// A visit that has ended.
struct Visited {
    pid: u32,
    uid: u32,
    seen: PageCounts,
    lost: Option<String>,
}

impl Visited {
    fn json(&self) -> Value {
        let mut json = json!({ "pid": self.pid, "uid": self.uid });
        self.seen.add_to(&mut json);
        json
    }
}

struct Owner<'o> {
    hands: Hands,
    timeout: Duration,
    output: &'o Output,
}

impl Owner<'_> {
    /// Serves this many peers. Refused peers do not count and do not prolong the wait for the next, however many
    /// connect.
    fn serve(&self, offer: &mut Offer<'_, u32>, peers: u64) -> Result<Vec<Visited>> {
        let (mut visits, mut since) = (Vec::new(), Instant::now());
        while (visits.len() as u64) < peers {
            match offer.accept(self.timeout.saturating_sub(since.elapsed())) {
                Ok(visit) => {
                    visits.push(self.visit(visit)?);
                    since = Instant::now();
                }
                Err(Error::Timeout { .. }) => return Err(self.nobody_came()),
                // An error of this process would repeat at once.
                Err(error @ Error::Driver { .. }) => return Err(error.into()),
                Err(error) => {
                    warn(error);
                    if since.elapsed() >= self.timeout {
                        return Err(self.nobody_came());
                    }
                }
            }
        }
        Ok(visits)
    }

    fn nobody_came(&self) -> Failure {
        Error::timeout("waiting for a peer to connect", self.timeout).into()
    }

    fn visit(&self, mut visit: Visit<'_, '_, u32>) -> Result<Visited> {
        let mut seen = PageCounts::default();
        let ended = loop {
            match self.round(&mut visit, &mut seen) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        let (peer, left) = (visit.peer(), visit.has_left());
        let who = format!("peer of process {}", peer.pid);
        // This process waits for a peer only in the peer's turn.
        let hangs = matches!(ended, Error::Timeout { .. }) && !visit.is_our_turn();
        let mut lost = match ended {
            Error::PeerLost { .. } if left => None,
            Error::PeerLost { .. } | Error::PeerRefused { .. } => Some(ended.to_string()),
            _ if hangs => Some(format!("it hangs: {ended}")),
            // This side failed.
            other => return Err(other.into()),
        };
        self.output.tell(&format!("{who}: {}", seen.words()))?;
        if let Some(why) = &mut lost {
            self.output.tell(&format!("{who}: {why}"))?;
            // A peer that hangs can still write: nothing can be checked.
            if !hangs {
                let alive = self.show_alive(visit.buffer());
                self.output.tell(alive.as_ref().unwrap_or_else(|spoilt| spoilt))?;
                if let Err(spoilt) = alive {
                    why.push_str(&format!("; {spoilt}"));
                }
            }
        }
        Ok(Visited { pid: peer.pid, uid: peer.uid, seen, lost })
    }

    /// Checks the buffer after a peer was lost in the middle of its turn. It is intact unless the peer kept its mapping
    /// and still writes.
    fn show_alive(&self, buffer: &Buffer<u32>) -> Result<String, String> {
        let mut own = PageCounts::default();
        let written = self.hands.write(buffer, 0, 1);
        let checked = written.and_then(|()| self.hands.check(buffer, 0, 1, &mut own));
        let PageCounts { pages_checked, pages_wrong, .. } = own;
        match checked {
            Err(error) => Err(format!("the buffer could not be checked: {error}")),
            Ok(()) if pages_wrong > 0 => Err(format!(
                "a peer still writes the buffer: {pages_wrong} of {pages_checked} pages are not what this process wrote"
            )),
            Ok(()) => {
                Ok(format!("the buffer is intact: {pages_checked} pages written and checked again"))
            }
        }
    }

    /// This side's turn, then the peer's.
    fn round(&self, visit: &mut Visit<'_, '_, u32>, seen: &mut PageCounts) -> onebuf::Result<()> {
        let (session, round) = (visit.session(), visit.round());
        self.hands.write(visit.buffer(), session, round + 1)?;
        visit.hand_over()?;
        visit.wait(self.timeout)?;
        self.hands.check(visit.buffer(), session, round + 2, seen)
    }
}
