//! `onebuf share` and `onebuf attach`: two processes, one buffer.

use crate::{
    liars::{ended, hears, packet},
    support::{Cli, Ran, assert_fields, assert_has, private, skip},
};
use rustix::{
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags,
        SocketAddrUnix, SocketType, connect, recv, recvmsg, send, socket,
    },
    process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit},
};
use serde_json::Value;
use std::{
    fs::File,
    io::{BufRead, BufReader, IoSliceMut, Read},
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileExt, PermissionsExt},
            process::ExitStatusExt,
        },
    },
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

struct Two {
    cli: Cli,
    /// The folder of the sockets.
    runtime: TempDir,
    /// The CUDA library; `none` by default.
    cuda: String,
}

/// A running `onebuf share`, and what it has printed so far.
struct Owner {
    child: Child,
    heard: String,
}

impl Two {
    fn new() -> Self {
        Self { cli: Cli::new(), runtime: private(), cuda: "none".into() }
    }

    fn command(&self, args: &str) -> Command {
        let mut command = self.cli.command(args);
        command.env("XDG_RUNTIME_DIR", self.runtime.path());
        command.env("ONEBUF_CUDA_LIB", &self.cuda).env("ONEBUF_NVRTC_LIB", &self.cuda);
        if !args.contains("opencl") {
            command.env("ONEBUF_OPENCL_LIB", "none");
        }
        command
    }

    /// Starts `onebuf share` with `--json`, so that its lines go to stderr, and waits until it listens.
    fn share(&self, args: &str) -> Owner {
        let mut command = obeying(&self.command(&format!("share --json --name both {args}")));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut owner = Owner { child, heard: String::new() };
        // Drivers may print other lines first.
        owner.until("onebuf attach both");
        owner
    }

    /// Connects to the owner and sends nothing.
    fn knock(&self) -> OwnedFd {
        self.try_knock().unwrap()
    }

    fn try_knock(&self) -> rustix::io::Result<OwnedFd> {
        let path = self.runtime.path().join("onebuf/both.sock");
        let made = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
        connect(&made, &SocketAddrUnix::new(path)?)?;
        Ok(made)
    }

    /// A peer that follows the protocol until its first turn. Returns its socket and the memory it got.
    fn guest(&self) -> (OwnedFd, File) {
        let peer = self.knock();
        say(&peer, &packet(1, &4_u32.to_le_bytes()));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let (mut control, mut grant) = (RecvAncillaryBuffer::new(&mut space), [0; 600]);
        let flags = RecvFlags::CMSG_CLOEXEC;
        recvmsg(&peer, &mut [IoSliceMut::new(&mut grant)], &mut control, flags).unwrap();
        let memory = control.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        say(&peer, &packet(4, &[]));
        assert!(hears(&peer), "no turn");
        let heard = recv(&peer, &mut grant, RecvFlags::empty()).unwrap();
        assert_eq!(heard.1, packet(5, &[0; 8]).len(), "another word than a turn");
        (peer, memory.expect("a memfd").into())
    }

    fn attach(&self, args: &str) -> Ran {
        self.command(&format!("attach both {args}")).output().unwrap().into()
    }
}

fn say(peer: &OwnedFd, packet: &[u8]) {
    assert_eq!(send(peer, packet, SendFlags::NOSIGNAL), Ok(packet.len()));
}

impl Owner {
    /// Reads the owner's lines until one contains these words.
    fn until(&mut self, words: &str) {
        let mut lines = BufReader::with_capacity(1, self.child.stderr.as_mut().unwrap());
        while !self.heard.contains(words) {
            assert_ne!(lines.read_line(&mut self.heard).unwrap(), 0, "it ended: {}", self.heard);
        }
    }

    fn end(mut self) -> Ran {
        let mut rest = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut rest).unwrap();
        let mut ran: Ran = self.child.wait_with_output().unwrap().into();
        ran.stderr = self.heard + &rest;
        ran
    }
}

#[track_caller]
fn assert_counts(value: &Value, rounds: u64, pages: u64) {
    assert_eq!(value["rounds"], rounds, "{value:#}");
    assert_eq!(value["pages_checked"], rounds * pages, "{value:#}");
    assert_eq!(value["pages_wrong"], 0, "{value:#}");
}

#[test]
fn both_sides_check_every_page() {
    let two = Two::new();
    let owner = two.share("--bytes 1000004 --peers 2");
    let pid = owner.child.id();
    let attached = two.attach("--json").json();
    assert_has(&attached, &["path", "owner", "bytes", "pages", "devices", "bytes_copied"]);
    assert_eq!((&attached["bytes"], &attached["pages"]), (&1_000_004.into(), &245.into()));
    assert_eq!(attached["owner"]["pid"], pid);
    assert_counts(&attached, 3, 245);
    let text = two.attach("--rounds 1").ok().stdout;
    assert!(text.contains("1 round, 245 pages checked, 0 wrong"), "{text}");
    let shared = owner.end().json();
    assert_has(&shared, &["path", "name", "bytes", "pages", "devices", "peers", "bytes_copied"]);
    assert_fields(&shared["peers"], &["pid", "uid", "rounds", "pages_checked", "pages_wrong"]);
    assert_counts(&shared, 4, 245);
    assert_counts(&shared["peers"][0], 3, 245);
    let left = std::fs::read_dir(two.runtime.path().join("onebuf")).unwrap().count();
    assert_eq!(left, 0, "the socket is removed");
}

#[test]
fn devices_take_part_on_either_side() {
    let two = Two::new();
    let devices = two.cli.run("devices --json").json();
    if !devices["devices"].as_array().unwrap().iter().any(|d| d["id"] == "opencl:0") {
        return skip("a device of another process: no OpenCL here");
    }
    let owner = two.share("--elements 5000 --peers 2 --devices opencl:0,host");
    assert_counts(&two.attach("--json --rounds 4").json(), 4, 5);
    assert_counts(&two.attach("--json --rounds 2 --devices opencl:0").json(), 2, 5);
    assert_counts(&owner.end().json(), 6, 5);
}

/// Builds the CUDA stub, whose memory two processes really share; `None`, after a printed skip, without a C compiler.
pub fn cuda_stub(folder: &TempDir) -> Option<String> {
    let library = folder.path().join("libcuda_stub.so");
    let stubs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/stub");
    let names = include_str!("../../../../conformance/stub/cuda_stub.sources").lines();
    let sources = names.map(|name| format!("{stubs}/{name}"));
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-O1", "-fPIC", "-shared", "-pthread", "-o"]).arg(&library);
    match compile.args(sources).arg("-lm").status() {
        Ok(status) => assert!(status.success(), "the stub does not build"),
        Err(why) => {
            skip(&format!("device memory of another process: cc: {why}"));
            return None;
        }
    }
    library.to_str().map(str::to_owned)
}

#[test]
fn device_memory_is_seen_from_both_sides() {
    let mut two = Two::new();
    let Some(library) = cuda_stub(&two.runtime) else { return };
    two.cuda = library;
    let owner = two.share("--elements 5000 --peers 2 --devices cuda:0");
    let attached = two.attach("--json --rounds 4 --devices cuda:0").json();
    assert_counts(&attached, 4, 5);
    assert_eq!((&attached["memory"], &attached["bytes_copied"]), (&"exportable".into(), &0.into()));
    // A peer that names no device, and one without a device of that chip.
    two.attach("").failed(1, "one of cuda:0, with `shared_with` or `onebuf attach --devices`");
    let mut bare = two.command("attach both");
    let bare = Ran::from(bare.env("ONEBUF_CUDA_LIB", "none").output().unwrap());
    bare.failed(1, "01112131-4151-6171-8191-a1b1c1d1e1f1");
    assert_counts(&two.attach("--json --rounds 1 --devices cuda:0").json(), 1, 5);
    let shared = owner.end().json();
    assert_counts(&shared, 5, 5);
    assert_eq!((&shared["memory"], &shared["bytes_copied"]), (&"exportable".into(), &0.into()));

    // The same devices over host pages, if requested.
    let owner = two.share("--elements 5000 --devices cuda:0 --memory pages");
    assert_eq!(two.attach("--json --devices cuda:0").json()["memory"], "host_pages");
    assert_eq!(owner.end().json()["memory"], "host_pages");
    let run = |args: &str| Ran::from(two.command(args).output().unwrap());
    let owner = two.share("--bytes 4MiB --devices cuda:0 --memory handle");
    let attached = two.attach("--json --devices cuda:0").json();
    assert_eq!((&attached["memory"], &attached["bytes_copied"]), (&"device".into(), &0.into()));
    let shared = owner.end().json();
    assert_eq!((&shared["memory"], &shared["pages_wrong"]), (&"device".into(), &0.into()));

    run("share --memory device").failed(1, "name one with --devices");
    run("share --memory handle").failed(1, "name one with --devices");
}

#[test]
fn a_killed_peer_is_told_and_the_buffer_lives_on() {
    let two = Two::new();
    let owner = two.share("--bytes 64MiB");
    let mut peer =
        two.command("attach both --rounds 1000000").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(peer.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("64 MiB of process"), "{line}");
    peer.kill().unwrap();
    peer.wait().unwrap();
    let ran = owner.end();
    assert!(ran.stderr.contains("the buffer is intact: 16384 pages"), "{}", ran.stderr);
    ran.failed(1, "a peer was lost: the peer process is gone");
}

/// Processes that connect and send nothing, or single bytes, are refused with a warning; others are served meanwhile.
#[test]
fn silent_processes_do_not_end_the_service() {
    let two = Two::new();
    let mut owner = two.share("--elements 5000 --peers 3");
    let silent: Vec<OwnedFd> = (0..3).map(|_| two.knock()).collect();
    let drips = two.knock();
    say(&drips, b"1");
    assert_counts(&two.attach("--json --rounds 1").json(), 1, 5);
    owner.until("does not speak onebuf's protocol");
    assert_counts(&two.attach("--json --rounds 2").json(), 2, 5);
    // Their time limit runs while the owner waits for the third peer.
    let pid = std::process::id();
    owner.until(&format!("process {pid} connected and did not say hello within 5000 ms"));
    assert_counts(&two.attach("--json --rounds 1").json(), 1, 5);
    assert_counts(&owner.end().json(), 4, 5);
    drop((silent, drips));
}

/// A peer that keeps its turn is given up after the timeout; the next peer is served.
#[test]
fn a_peer_that_hangs_does_not_end_the_service() {
    let two = Two::new();
    let mut owner = two.share("--elements 5000 --peers 2 --timeout 2");
    let mut hung =
        two.command("attach both --rounds 1000000").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(hung.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    kill_process(Pid::from_child(&hung), Signal::STOP).unwrap();
    owner.until(&format!("peer of process {}: it hangs: ", hung.id()));
    let served = two.attach("--json --rounds 2").json();
    assert_counts(&served, 2, 5);
    hung.kill().unwrap();
    hung.wait().unwrap();
    owner.end().failed(1, "a peer was lost: it hangs");
}

/// A peer that sends another protocol version during its visit is lost; the next peer is served.
#[test]
fn a_peer_of_another_version_does_not_end_the_service() {
    let two = Two::new();
    let mut owner = two.share("--elements 5000 --peers 2");
    let (peer, _memory) = two.guest();
    let mut newer = packet(5, &2_u64.to_le_bytes());
    newer[4] = 2;
    say(&peer, &newer);
    owner.until("the buffer is intact: 5 pages");
    assert_counts(&two.attach("--json --rounds 2").json(), 2, 5);
    owner.end().failed(1, "version 2 of the protocol");
}

/// A peer that violates the protocol and still writes its mapping is reported; the next peer is served.
#[test]
fn a_peer_that_still_writes_does_not_end_the_service() {
    let two = Two::new();
    let mut owner = two.share("--bytes 16MiB --peers 2");
    let ((peer, memory), stop) = (two.guest(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            while !stop.load(Ordering::Relaxed) && begin.elapsed() < Duration::from_secs(60) {
                (0..16).for_each(|mib| memory.write_all_at(&[7; 4096], mib << 20).unwrap());
            }
        });
        // `Ready` a second time violates the protocol.
        say(&peer, &packet(4, &[]));
        owner.until("a peer still writes the buffer");
        stop.store(true, Ordering::Relaxed);
    });
    assert_counts(&two.attach("--json --rounds 1").json(), 1, 4096);
    owner.end().failed(1, "a peer was lost");
}

/// An owner without free descriptors reports the error once and exits.
#[test]
fn an_owner_that_cannot_let_anybody_in_ends() {
    let two = Two::new();
    let owner = two.share("--elements 5000 --timeout 600");
    let none = Rlimit { current: Some(3), maximum: Some(3) };
    prlimit(Some(Pid::from_child(&owner.child)), Resource::Nofile, none).unwrap();
    let _peer = two.try_knock();
    ended(owner.child).failed(1, "Too many open files");
}

/// Refused peers, however many, do not prolong the wait for an acceptable one.
#[test]
fn refused_peers_do_not_prolong_the_wait() {
    let two = Two::new();
    let timeout = Duration::from_secs(6);
    let mut owner = two.share(&format!("--elements 5000 --timeout {}", timeout.as_secs()));
    let pid = Pid::from_child(&owner.child);
    // An owner that has refused a peer is waiting for the next: on a busy machine it may begin long after it said so.
    let first = two.knock();
    say(&first, b"noise");
    owner.until("warning");
    // The owner is stopped until its timeout is over; meanwhile many peers connect.
    kill_process(pid, Signal::STOP).unwrap();
    let crowd: Vec<OwnedFd> = (0..10).map(|_| two.knock()).collect();
    crowd.iter().for_each(|noise| say(noise, b"noise"));
    thread::sleep(timeout);
    kill_process(pid, Signal::CONT).unwrap();
    owner.until("waiting for a peer to connect");
    // At most one of the crowd was refused: an owner that looks at the clock first, refuses none.
    let warnings = owner.heard.matches("warning").count();
    assert!((1..=2).contains(&warnings), "{}", owner.heard);
    owner.end().failed(1, "timed out after 6000 ms");
}

/// The reader of the warnings has closed the pipe (`2>&1 | head -1`): the owner continues.
#[test]
fn a_closed_standard_error_does_not_end_the_service() {
    let two = Two::new();
    let mut owner = two.share("--elements 5000");
    drop(owner.child.stderr.take());
    let noise = two.knock();
    say(&noise, b"noise");
    assert_counts(&two.attach("--json --rounds 1").json(), 1, 5);
    assert_counts(&ended(owner.child).json(), 1, 5);
}

#[test]
fn what_cannot_be_done_is_told() {
    let two = Two::new();
    two.attach("").failed(1, "no process shares a buffer under this name");
    let run = |args: &str| Ran::from(two.command(args).output().unwrap());
    run("share --bytes 6").failed(1, "multiple of 4");
    run("share --name /nonsuch/x").failed(1, "/nonsuch");
    run("share --name .x").failed(1, "without a leading dot");
    run("share --devices nonsuch").failed(1, "nonsuch");
    let owner = two.share("");
    run("share --name both").failed(1, "another owner");
    two.attach("--rounds 1").ok();
    owner.end().ok();
    std::fs::set_permissions(
        two.runtime.path().join("onebuf"),
        std::fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    run("share").failed(1, "chmod 700");
}

/// An owner that a signal ends leaves no file in the folder. Files left after SIGKILL are taken over by the next owner.
#[test]
fn signals_leave_nothing_behind() {
    let two = Two::new();
    let folder = two.runtime.path().join("onebuf");
    let files = || std::fs::read_dir(&folder).unwrap().count();
    for (name, signal) in [("INT", 2), ("TERM", 15), ("HUP", 1), ("KILL", 9)] {
        let mut owner = two.share("--elements 1000");
        assert_eq!(files(), 2, "a socket and its lock");
        let pid = owner.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(sent.success(), "kill -s {name}");
        let ended = owner.child.wait().unwrap();
        assert_eq!(ended.signal(), Some(signal), "it ends by SIG{name}, as its caller expects");
        assert_eq!(files(), if name == "KILL" { 2 } else { 0 }, "SIG{name}");
    }
    let owner = two.share("--elements 1000");
    two.attach("").ok();
    owner.end().ok();
    assert_eq!(files(), 0);
}

/// The command with default signal actions: shells make background jobs ignore some signals.
fn obeying(command: &Command) -> Command {
    let mut obeying = Command::new("env");
    obeying
        .arg("--default-signal=INT,TERM,HUP")
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => obeying.env(name, value),
            None => obeying.env_remove(name),
        };
    }
    obeying
}

/// A signal that the caller of the program ignores stays ignored.
#[test]
fn nohup_is_obeyed() {
    let two = Two::new();
    let share = two.command("share --json --name both --elements 1000");
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\""])
        .arg(share.get_program())
        .args(share.get_args());
    for (name, value) in share.get_envs() {
        value.map(|value| command.env(name, value));
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut heard = String::new();
    let mut lines = BufReader::with_capacity(1, child.stderr.as_mut().unwrap());
    while !heard.contains("onebuf attach both") {
        assert_ne!(lines.read_line(&mut heard).unwrap(), 0, "it ended: {heard}");
    }
    let sent = Command::new("kill").args(["-s", "HUP", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    two.attach("").ok();
    assert!(child.wait().unwrap().success());
}
