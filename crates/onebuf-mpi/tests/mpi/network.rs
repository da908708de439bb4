//! Two ranks in network namespaces of their own, joined by one cable: their frames are seen on its counter.

use crate::{
    launch::{self, Mpi},
    ranks::{SOON, hub, join},
    streams::{checked, numbered, ring},
};
use onebuf::Buffer;
use onebuf_conformance::{absent, note};
use onebuf_mpi::{sink, source};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const ADDRESSES: [&str; 2] = ["10.231.77.1", "10.231.77.2"];
const WIRE: &str = "wire";

const FRAMES: u64 = 40;
const ELEMENTS: usize = 1 << 18;
const BYTES: u64 = FRAMES * 4 * ELEMENTS as u64;

/// A machine of its own as far as the network is concerned: a process in namespaces that live as long as it does. It ends when its
/// standard input does, so that nothing is left behind however this test ends.
struct Island(Child);

impl Island {
    fn new() -> Result<Self, String> {
        let mut command = Command::new("unshare");
        // UCX looks for networks in /sys, which shows those of the process that has mounted it. The line says when all is there.
        let script = "mount -t sysfs sysfs /sys && echo && exec cat >/dev/null";
        command.args(["--net", "--uts", "--mount", "sh", "-c", script]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|why| format!("unshare: {why}"))?;
        let mut first = [0];
        let out = child.stdout.as_mut().expect("a pipe");
        std::io::Read::read_exact(out, &mut first).map_err(|_| "unshare is refused")?;
        Ok(Self(child))
    }

    /// The beginning of a command in these namespaces.
    fn enter(&self) -> [String; 5] {
        let target = format!("--target={}", self.0.id());
        ["nsenter".into(), target, "--net".into(), "--uts".into(), "--mount".into()]
    }

    fn run(&self, command: &[&str]) -> Result<String, String> {
        let [program, options @ ..] = self.enter();
        let ran = Command::new(program).args(options).args(command).output();
        let ran = ran.map_err(|why| format!("nsenter: {why}"))?;
        match ran.status.success() {
            true => Ok(String::from_utf8_lossy(&ran.stdout).into_owned()),
            false => {
                Err(format!("{}: {}", command.join(" "), String::from_utf8_lossy(&ran.stderr)))
            }
        }
    }

    /// Waits until the wire is up at this end: the kernel notices that up to a second late, and UCX uses nothing that is down.
    fn wait_for_wire(&self) -> Result<(), String> {
        let began = Instant::now();
        while self.run(&["cat", "/sys/class/net/wire/operstate"])?.trim() != "up" {
            if began.elapsed() > SOON {
                return Err("the wire does not come up".into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The bytes that have come over the wire.
    fn received(&self) -> u64 {
        let table = self.run(&["cat", "/proc/net/dev"]).expect("the counters");
        let line = table.lines().find_map(|line| line.trim().strip_prefix(WIRE)?.strip_prefix(':'));
        let first = line.and_then(|line| line.split_whitespace().next()).expect("the wire");
        first.parse().expect("a number")
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Two of them, and the wire between. `Err` says why not.
fn islands() -> Result<[Island; 2], String> {
    let both = [Island::new()?, Island::new()?];
    let other = both[1].0.id().to_string();
    let veth = ["ip", "link", "add", WIRE, "type", "veth", "peer", "name", WIRE, "netns", &other];
    both[0].run(&veth)?;
    for (at, (island, address)) in both.iter().zip(ADDRESSES).enumerate() {
        island.run(&["hostname", &format!("island{at}")])?;
        island.run(&["ip", "address", "add", &format!("{address}/24"), "dev", WIRE])?;
        island.run(&["ip", "link", "set", WIRE, "up"])?;
        island.run(&["ip", "link", "set", "lo", "up"])?;
    }
    both.iter().try_for_each(Island::wait_for_wire)?;
    Ok(both)
}

/// Runs `rank_frames` on these hosts, and returns how many bytes the wire has carried to the second island.
fn carried(mpi: &Mpi, both: &[Island; 2], hosts: [&str; 2]) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    // What the launcher takes for ssh: the host, and the command for it.
    let agent = folder.path().join("agent");
    let enter = both[1].enter().join(" ");
    let text = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\n\
         shift\nexec {enter} sh -c \"$*\"\n"
    );
    fs::write(&agent, text).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o700)).unwrap();
    let run = || {
        let before = both[1].received();
        let job = mpi.start_on(&both[0].enter(), hosts, &agent, "network::rank_frames");
        let ended = job.wait(Duration::from_secs(120));
        match ended.success && !ended.said.contains("0 passed") {
            true => Ok(both[1].received() - before),
            false => Err(ended.said),
        }
    };
    // On a machine with much other work MPICH's launcher has lost the other side once, after 35 s instead of 3.
    let again = |said| {
        note(&format!("{}: once more: {said}", mpi.name));
        run()
    };
    run().or_else(again).unwrap_or_else(|said| panic!("{}: {said}", mpi.name))
}

/// The control: two ranks of one island do not use the wire.
#[test]
fn frames_cross_the_wire_between_two_machines() {
    // SAFETY: no arguments, and it cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return note("skip: two network namespaces: only root may make them");
    }
    let both = match islands() {
        Ok(both) => both,
        Err(why) => return absent("two network namespaces", &why),
    };
    for mpi in launch::all() {
        let [here, there] = ADDRESSES;
        let bytes = carried(&mpi, &both, [here, there]);
        assert!(bytes >= BYTES, "{}: {bytes} of {BYTES} bytes were on the wire", mpi.name);
        let bytes = carried(&mpi, &both, [here, here]);
        assert!(bytes < BYTES / 100, "{}: {bytes} bytes were on the wire", mpi.name);
    }
}

#[test]
#[ignore = "a rank"]
fn rank_frames() {
    let (hub, world) = (hub(), join());
    let frames = if world.rank() == 0 {
        let to = sink::Mpi::new(&world, 1).unwrap().checksum(true);
        let out = ring(&hub, 4, ELEMENTS).source(numbered(0, FRAMES));
        let out = out.sink_overlapped(to.drain(|slot: &Buffer<u32>| slot));
        out.build().unwrap().run().unwrap().frames
    } else {
        let from = source::Mpi::new(&world, 0).unwrap().checksum(true);
        let into = ring(&hub, 4, ELEMENTS).source_overlapped(from.feed(|slot: &Buffer<u32>| slot));
        into.sink(checked(0)).build().unwrap().run().unwrap().frames
    };
    assert_eq!(frames, FRAMES);
}
