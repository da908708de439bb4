//! Pipelines, peers and the doctor while processes around them are killed or stopped, disks are full and the load changes.
//!
//! Each turn is one kind of trouble; afterwards the same objects must work, and no frame may be wrong. A pseudo-random sequence of
//! turns runs for `ONEBUF_CHAOS` seconds, four by default; `./dev soak chaos` runs an hour. Descriptors, threads and memory are compared
//! before and after.
//!
//! The other processes are this test program again: `child` is their part.

mod child;
mod disk;
mod doctor;
mod load;
mod peers;
mod senders;

use load::Load;
use onebuf_conformance::{Machine, Random, Resources, Side, Watchdog, machine, note};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// What happened so far.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    turns: u64,
    frames: u64,
    incomplete_frames: u64,
    /// Between two devices or two processes; those within one device do not count.
    hand_overs: u64,
    killed_senders: u64,
    killed_peers: u64,
    visits: u64,
    full_disks: u64,
    stopped_helpers: u64,
    load_changes: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} turns: {} frames complete and right, {} incomplete; {} hand-overs; {} senders killed; {} visits of peers, {} \
             killed; {} full disks; {} helpers stopped; {} changes of load",
            self.turns,
            self.frames,
            self.incomplete_frames,
            self.hand_overs,
            self.killed_senders,
            self.visits,
            self.killed_peers,
            self.full_disks,
            self.stopped_helpers,
            self.load_changes,
        )
    }
}

/// The state of a run.
struct Chaos<'m> {
    machine: &'m Machine,
    random: Random,
    load: Load,
    figures: Figures,
}

/// A kind of trouble.
type Turn = fn(&mut Chaos<'_>);

const TURNS: [Turn; 4] =
    [senders::are_killed, peers::are_killed, disk::is_full, doctor::has_a_stopped_helper];

impl Chaos<'_> {
    /// A device that is not a fake.
    fn any_side(&mut self) -> &Side {
        let fake = |side: &&Side| side.device.info().api.0 != "fake";
        let real: Vec<&Side> = self.machine.sides.iter().filter(fake).collect();
        real[self.random.below(real.len())]
    }

    fn pause(&mut self, most_ms: usize) -> Duration {
        Duration::from_millis(self.random.below(most_ms) as u64)
    }

    fn turn(&mut self, turn: Turn) {
        self.load.change(self.random.below(load::MOST + 1));
        self.figures.load_changes += 1;
        turn(self);
        self.figures.turns += 1;
    }
}

fn seconds() -> u64 {
    let wanted = std::env::var("ONEBUF_CHAOS").ok();
    wanted.map_or(4, |text| text.parse().expect("ONEBUF_CHAOS is a number of seconds"))
}

#[test]
fn trouble_around_it_leaves_the_library_whole() {
    let time = Duration::from_secs(seconds());
    let _watchdog = Watchdog::new("chaos", time + Duration::from_secs(300));
    let machine = machine();
    let (load, random) = (Load::start(), Random::new(4));
    let mut chaos = Chaos { machine: &machine, random, load, figures: Figures::default() };
    // Every kind once: drivers compile, allocate and start threads on first use.
    TURNS.into_iter().for_each(|turn| chaos.turn(turn));
    let (before, start, mut told) = (Resources::now(), Instant::now(), Instant::now());
    while start.elapsed() < time {
        let next = chaos.random.below(TURNS.len());
        chaos.turn(TURNS[next]);
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            note(&format!("after {} s, {}", start.elapsed().as_secs(), chaos.figures));
        }
    }
    let after = settled(before);
    note(&format!("{}", chaos.figures));
    note(&format!("before: {before}; after: {after}"));
    after.assert_not_above(before);
    let Figures { frames, killed_senders, killed_peers, full_disks, stopped_helpers, .. } =
        chaos.figures;
    assert!(
        frames > 0
            && [killed_senders, killed_peers, full_disks, stopped_helpers].iter().all(|&n| n > 0)
    );
}

/// Threads of drivers and of the library may end late: waits for them, up to ten seconds.
fn settled(before: Resources) -> Resources {
    let start = Instant::now();
    loop {
        let now = Resources::now();
        let fits = now.threads <= before.threads && now.descriptors <= before.descriptors;
        if fits || start.elapsed() > Duration::from_secs(10) {
            return now;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
