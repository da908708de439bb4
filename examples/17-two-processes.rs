//! 17. One buffer, two processes: this program starts itself a second time.
//!
//! `cargo run -p onebuf-examples --example 17-two-processes`

use onebuf::{
    Error, MemoryKind, Result,
    peer::{Attach, Offer},
};
use std::{
    process::{Child, Command},
    time::Duration,
};

const SOON: Duration = Duration::from_secs(30);
const SAMPLES: usize = 1 << 18;

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        None => owner(),
        Some(name) => peer(&name),
    }
}

/// Owns the buffer and hands it to two peers, one after the other.
fn owner() -> Result<()> {
    let hub = onebuf::discover()?;
    // Host pages can be shared with another process.
    let samples =
        hub.buffer::<f32>(SAMPLES).memory_kind(MemoryKind::HostPages).allocate_on(&hub.host());
    let samples = samples.build()?;
    let name = format!("example-17-{}", std::process::id());
    let mut offer = Offer::open(&samples, &name)?;

    let mut second = Second::start(&name);
    let mut visit = offer.accept(SOON)?;
    samples.fill(1.5)?;
    visit.hand_over()?; // waits for all work on the buffer: fences do not cross processes
    println!("meanwhile: {}", samples.fill(0.0).unwrap_err());
    visit.wait(SOON)?;
    println!("process {} made {} of it", visit.peer().pid, samples.to_vec()?[SAMPLES - 1]);
    drop(visit);
    second.0.wait().expect("the peer ends");

    // The second peer is killed during its turn.
    let second = Second::start(&name);
    let mut visit = offer.accept(SOON)?;
    visit.hand_over()?;
    drop(second); // kill -9
    match visit.wait(SOON) {
        // The peer may finish before the signal arrives.
        Ok(()) | Err(Error::PeerLost { .. }) => drop(visit),
        Err(other) => return Err(other),
    }
    samples.fill(2.5)?;
    println!("a dead peer, and the buffer lives on: {}", samples.to_vec()?[0]);
    // Memory that another process can write is only copied, never borrowed.
    println!("{}", samples.map().unwrap_err());
    Ok(())
}

/// Attaches to the owner's pages, with its own device if it finds one.
fn peer(name: &str) -> Result<()> {
    let hub = onebuf::discover()?;
    let device = hub.device("opencl").unwrap_or(hub.host());
    let mut there = Attach::to(name).open::<f32>(&hub, |builder| builder.shared_with([&device]))?;
    there.wait(SOON)?; // for its turn
    let mut all = there.buffer().to_vec()?;
    all.iter_mut().for_each(|x| *x *= 2.0);
    there.buffer().write(&all)?;
    there.hand_over()
}

/// The other process. Dropping it kills the process.
struct Second(Child);

impl Second {
    fn start(name: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        Self(Command::new(program).arg(name).spawn().expect("a second process"))
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let ended = self.0.kill().and_then(|()| self.0.wait());
        ended.expect("a process of ours can be ended");
    }
}
