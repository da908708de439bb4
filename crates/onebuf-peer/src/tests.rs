//! Peers and owners that lie, hang or die: each case has its own error and leaks nothing.
//!
//! # Safety
//! The only kernel stays within its slice, and memory allocated here outlives its buffer.

#![allow(unsafe_code)]

use super::{
    Attach, Attached, Offer,
    messages::Messages,
    wire::{Grant, Kind, Message},
};
use crate::Visit;
use onebuf_core::{Buffer, Device, Hub, Signature, Source, args};
use onebuf_hal::{Access, Error, Result};
use onebuf_socket::{Deadline, Listener, Socket};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::{
    fs,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);
const MOMENT: Duration = Duration::from_millis(50);
pub(super) const BYTES: u64 = 8192;

fn hub() -> Hub {
    let hub = onebuf::builder().only(["host"]);
    hub.verdicts(Default::default()).build().unwrap()
}

pub(super) fn private() -> TempDir {
    let rights = fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(rights).tempdir().unwrap()
}

pub(super) fn socket(folder: &TempDir) -> PathBuf {
    folder.path().join("x.sock")
}

/// How many fds of this process refer to an object with this text in its name.
pub(super) fn fds_to(what: &str) -> usize {
    let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
    links.filter(|link| link.to_string_lossy().contains(what)).count()
}

pub(super) fn mappings_of(what: &str) -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|l| l.contains(what)).count()
}

/// The kernel's name of an fd's object.
fn object(fd: impl AsFd) -> String {
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())).unwrap();
    link.to_string_lossy().into_owned()
}

pub(super) const ALL_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

pub(super) fn memfd(name: &str, bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create(name, flags).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn grant() -> Grant {
    Grant {
        kind: Kind::HostPages,
        fds: 1,
        element_bytes: 4,
        allocation_bytes: BYTES,
        offset: 0,
        bytes: BYTES,
        base: 0,
        session: 1,
        uuid: None,
        device: "host".into(),
        handle: Vec::new(),
    }
}

pub(super) fn packet(change: impl FnOnce(&mut Grant)) -> Vec<u8> {
    let mut grant = grant();
    change(&mut grant);
    Message::Grant(Box::new(grant)).encode()
}

/// What attaching reports if the owner sends this answer. Nothing of the answer may be left afterwards.
fn attach_to(answer: &[u8], fds: Vec<OwnedFd>) -> Error {
    attach_from(&hub(), answer, fds)
}

/// Like `attach_to`, with all devices of a hub named.
pub(super) fn attach_from(hub: &Hub, answer: &[u8], fds: Vec<OwnedFd>) -> Error {
    attach_naming(hub, &hub.devices(), answer, fds)
}

/// Like `attach_to`, with some devices of a hub named.
pub(super) fn attach_naming(
    hub: &Hub,
    named: &[Device],
    answer: &[u8],
    fds: Vec<OwnedFd>,
) -> Error {
    let folder = private();
    let listener = Listener::open(&socket(&folder)).unwrap();
    thread::scope(|scope| {
        let path = socket(&folder);
        let client = scope.spawn(move || {
            let attach = Attach::to(path.to_str().unwrap()).timeout(Duration::from_millis(500));
            attach.open::<u32>(hub, |builder| builder.shared_with(named)).map(drop).unwrap_err()
        });
        let door = listener.accept(Deadline::after(SOON)).unwrap();
        let hello = door.receive(Deadline::after(SOON), "hello").unwrap();
        assert_eq!(hello.0, Message::Hello { element_bytes: 4 });
        if !answer.is_empty() {
            let lent: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            door.send_packet(answer, &lent, Deadline::after(SOON)).unwrap();
        }
        let error = client.join().unwrap();
        drop((fds, door));
        error
    })
}

#[track_caller]
pub(super) fn assert_refused(error: &Error, why: &str) {
    assert!(matches!(error, Error::PeerRefused { .. }), "{error}");
    assert!(error.to_string().contains(why), "no `{why}` in: {error}");
}

#[test]
fn owners_that_lie_are_refused_and_leave_nothing() {
    let name = "onebuf-liar";
    let good = |many| (0..many).map(|_| memfd(name, BYTES, ALL_SEALS)).collect();
    let cases: [(Vec<u8>, usize, &str); 16] = [
        (b"HTTP/1.1 200 OK".to_vec(), 1, "does not speak"),
        (packet(|_| {})[..40].to_vec(), 1, "wrong length"),
        (vec![7; 2000], 1, "too long"),
        (packet(|g| g.offset = u64::MAX - 4), 1, "invalid `offset`"),
        (packet(|g| g.offset = 4096), 1, "invalid `offset`"),
        (packet(|g| g.bytes = 0), 1, "invalid `bytes`"),
        (packet(|g| g.bytes = 4098), 1, "invalid `bytes`"),
        (packet(|g| g.allocation_bytes = u64::MAX), 1, "`allocation_bytes`"),
        (packet(|g| g.fds = 2), 2, "invalid `fds`"),
        (packet(|_| {}), 0, "0 fds came with a message that has 1"),
        (packet(|_| {}), 2, "2 fds came with a message that has 1"),
        (packet(|_| {}), 9, "too long"),
        (Message::Ready.encode(), 0, "not a grant"),
        (Message::Bye.encode(), 1, "1 fds came with a message that has 0"),
        (packet(|g| (g.offset, g.bytes) = (2, 4096)), 1, "not aligned"),
        (packet(|g| g.allocation_bytes = 4096 + BYTES), 1, "has 8192 bytes"),
    ];
    let check = |answer: &[u8], fds, why| {
        assert_refused(&attach_to(answer, fds), why);
        assert_eq!((fds_to(name), mappings_of(name)), (0, 0), "{why}");
    };
    for (answer, many, why) in cases {
        check(&answer, good(many), why);
    }
    check(&packet(|_| {}), vec![memfd(name, BYTES, SealFlags::GROW)], "can still change");
    check(&packet(|_| {}), vec![tempfile::tempfile().unwrap().into()], "memfd");
    let no_memory: [(OwnedFd, &str); 3] = [
        (std::io::pipe().unwrap().0.into(), "not a memfd"),
        (std::os::unix::net::UnixStream::pair().unwrap().0.into(), "not a memfd"),
        (fs::File::open("/").unwrap().into(), "not a memfd"),
    ];
    for (fd, why) in no_memory {
        check(&packet(|_| {}), vec![fd], why);
    }
    // Control characters that a terminal interprets, and characters that no device id has.
    for device in ["\x1b]0;x\x07", "cuda:0\n", "\u{9b}2J", "\u{202e}0:aduc", "a b"] {
        check(&packet(|g| g.device = device.into()), good(1), "invalid `device`");
    }
}

#[test]
fn other_answers_have_errors_of_their_own() {
    let name = "onebuf-other";
    let good = || vec![memfd(name, BYTES, ALL_SEALS)];
    let mut newer = packet(|_| {});
    newer[4] = 2;
    assert!(matches!(attach_to(&newer, good()), Error::Unsupported { .. }));
    let huge = packet(|g| (g.allocation_bytes, g.bytes) = (1 << 62, 1 << 62));
    assert!(matches!(attach_to(&huge, good()), Error::OutOfMemory { .. }));
    let elements = attach_to(&packet(|g| g.element_bytes = 8), good());
    assert!(matches!(elements, Error::InvalidArgument(_)), "{elements}");
    let refusal = attach_to(&Message::WrongElement { element_bytes: 16 }.encode(), vec![]);
    assert!(refusal.to_string().contains("16 bytes"), "{refusal}");
    assert!(matches!(attach_to(b"", vec![]), Error::Timeout { .. }));
    for kind in [Kind::OpaqueFd, Kind::DmaBuf] {
        let answer = packet(|g| (g.kind, g.uuid) = (kind, Some([7; 16])));
        let error = attach_to(&answer, good());
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(kind.name()), "{error}");
    }
    for kind in [Kind::CudaIpc, Kind::HipIpc] {
        let handle = |g: &mut Grant| (g.kind, g.fds, g.handle) = (kind, 0, vec![7; 64]);
        let error = attach_to(
            &packet(|g| {
                handle(g);
                g.uuid = Some([7; 16]);
            }),
            vec![],
        );
        assert!(error.to_string().contains("the one that exported it"), "{error}");
        assert_refused(
            &attach_to(
                &packet(|g| {
                    handle(g);
                    g.handle.pop();
                }),
                vec![],
            ),
            "`handle`",
        );
    }
    assert_eq!((fds_to(name), mappings_of(name)), (0, 0));
}

#[test]
fn nobody_there_is_told() {
    let folder = private();
    let path = socket(&folder);
    let attach = || Attach::to(path.to_str().unwrap()).open::<u32>(&hub(), |w| w).unwrap_err();
    assert!(matches!(attach(), Error::Unavailable { .. }));
    drop(Listener::open(&path).unwrap());
    assert!(attach().to_string().contains("gone"));
}

/// An offer, for peers that the tests drive by hand.
struct Stage {
    folder: TempDir,
    buffer: Buffer<u32>,
}

impl Stage {
    fn new() -> Self {
        let buffer = hub().buffer::<u32>(BYTES as usize / 4).init(vec![5; 2048]).build().unwrap();
        Self { folder: private(), buffer }
    }

    fn path(&self) -> PathBuf {
        socket(&self.folder)
    }

    fn offer(&self) -> Offer<'_, u32> {
        let offer = Offer::open(&self.buffer, self.path().to_str().unwrap()).unwrap();
        offer.greeting_limit(Duration::from_millis(500))
    }
}

fn knock(path: &Path) -> Socket {
    Socket::connect(path, Deadline::after(SOON)).unwrap()
}

fn say(socket: &Socket, message: &Message) {
    socket.send(message, &[], Deadline::after(SOON)).unwrap();
}

fn hear(socket: &Socket) -> Message {
    socket.receive(Deadline::after(SOON), "a word").unwrap().0
}

/// A peer that attaches correctly and then leaves its socket to the test.
fn client(path: &Path) -> Socket {
    let socket = knock(path);
    say(&socket, &Message::Hello { element_bytes: 4 });
    assert!(matches!(hear(&socket), Message::Grant(_)));
    say(&socket, &Message::Ready);
    socket
}

/// What `accept` reports of a peer that sends these packets and then hangs or disconnects.
fn accept(offer: &mut Offer<'_, u32>, packets: &[Vec<u8>], hangs_up: bool) -> Error {
    let path = offer.path().to_owned();
    thread::scope(|scope| {
        let peer = scope.spawn(move || {
            let socket = knock(&path);
            for packet in packets {
                let file = packet.is_empty().then(|| memfd("onebuf-gift", 4096, ALL_SEALS));
                let fds: Vec<BorrowedFd<'_>> = file.iter().map(AsFd::as_fd).collect();
                let hello = Message::Hello { element_bytes: 4 }.encode();
                let packet = if file.is_some() { &hello } else { packet };
                let _ = socket.send_packet(packet, &fds, Deadline::after(SOON));
            }
            (!hangs_up).then_some(socket)
        });
        let error = offer.accept(SOON).map(drop).unwrap_err();
        drop(peer.join().unwrap());
        error
    })
}

#[test]
fn peers_that_lie_are_refused_and_the_next_one_is_served() {
    let stage = Stage::new();
    let mut offer = stage.offer();
    let hello = || Message::Hello { element_bytes: 4 }.encode();
    let mut newer = hello();
    newer[4] = 2;
    assert_refused(&accept(&mut offer, &[b"ssh-2.0".to_vec()], false), "does not speak");
    assert_refused(&accept(&mut offer, &[Message::Ready.encode()], false), "first message");
    assert_refused(&accept(&mut offer, &[hello(), hello()], false), "second message");
    assert_refused(&accept(&mut offer, &[hello()[..10].to_vec()], false), "wrong length");
    // An empty packet stands for a hello with an unexpected fd.
    assert_refused(&accept(&mut offer, &[vec![]], false), "1 fds came with a message that has 0");
    assert_eq!(fds_to("onebuf-gift"), 0);
    assert!(matches!(accept(&mut offer, &[newer], false), Error::Unsupported { .. }));
    assert_refused(&accept(&mut offer, &[], false), "did not say hello within 500 ms");
    assert_refused(&accept(&mut offer, &[hello()], false), "did not map the buffer within 3000 ms");
    assert!(matches!(accept(&mut offer, &[], true), Error::PeerLost { .. }));
    assert!(matches!(accept(&mut offer, &[hello()], true), Error::PeerLost { .. }));
    let eight = Message::Hello { element_bytes: 8 }.encode();
    assert!(matches!(accept(&mut offer, &[eight], false), Error::InvalidArgument(_)));
    assert!(matches!(offer.accept(MOMENT).map(drop), Err(Error::Timeout { .. })));

    let path = stage.path();
    let peer = thread::spawn(move || client(&path));
    let visit = offer.accept(SOON).unwrap();
    assert_eq!(visit.peer().uid, rustix::process::geteuid().as_raw());
    assert_eq!(visit.peer().pid, std::process::id());
    drop((visit, peer.join().unwrap()));
    assert_eq!(stage.buffer.to_vec().unwrap(), [5; 2048]);
}

/// Peers that send nothing, or only half of the handshake, delay no other.
#[test]
fn silent_peers_hold_nobody_up() {
    let stage = Stage::new();
    let mut offer = stage.offer().greeting_limit(Duration::from_secs(3600));
    let silent: Vec<Socket> = (0..8).map(|_| knock(&stage.path())).collect();
    let halves: Vec<Socket> = (0..4).map(|_| knock(&stage.path())).collect();
    halves.iter().for_each(|half| say(half, &Message::Hello { element_bytes: 4 }));
    for session in [13, 14] {
        let path = stage.path();
        let peer = thread::spawn(move || client(&path));
        let visit = offer.accept(SOON).unwrap();
        assert_eq!(visit.session(), session, "in the order of their coming");
        drop((visit, peer.join().unwrap()));
    }
    // One of the others can still complete its handshake.
    assert!(matches!(hear(&halves[2]), Message::Grant(_)));
    say(&halves[2], &Message::Ready);
    assert_eq!(offer.accept(SOON).unwrap().session(), 11);
    // The timeout of `accept` does not end handshakes; the next call continues them.
    assert!(matches!(offer.accept(MOMENT).map(drop), Err(Error::Timeout { .. })));
    say(&silent[7], &Message::Hello { element_bytes: 4 });
    assert!(matches!(offer.accept(MOMENT).map(drop), Err(Error::Timeout { .. })));
    assert!(matches!(hear(&silent[7]), Message::Grant(_)));
    say(&silent[7], &Message::Ready);
    assert_eq!(offer.accept(SOON).unwrap().session(), 8);
}

/// More silent peers than concurrent handshakes: each is refused after its limit, and a good peer behind them is served.
#[test]
fn a_crowd_of_silent_peers_is_sent_away() {
    let stage = Stage::new();
    let mut offer = stage.offer();
    let path = stage.path();
    thread::scope(|scope| {
        let crowd = scope.spawn(|| Vec::from_iter((0..20).map(|_| knock(&path))));
        // The first 16 occupy all handshakes before the last four and the good one.
        let mut refused = vec![offer.accept(SOON).map(drop).unwrap_err()];
        let crowd = crowd.join().unwrap();
        let peer = scope.spawn(|| client(&path));
        let visit = loop {
            match offer.accept(SOON) {
                Ok(visit) => break visit.session(),
                Err(error) => refused.push(error),
            }
        };
        refused.iter().for_each(|error| assert_refused(error, "did not say hello"));
        assert!((5..=20).contains(&refused.len()), "{refused:?}");
        assert_eq!(visit, 21);
        drop((crowd, peer.join().unwrap()));
    });
}

#[test]
fn another_user_is_refused_unless_allowed() {
    let mine = rustix::process::geteuid().as_raw();
    let peer = super::Peer { pid: 1, uid: mine + 1 };
    assert_refused(&peer.check(&[]).unwrap_err(), "not allowed");
    assert_eq!(peer.check(&[mine + 1]), Ok(peer));
    assert!(super::Peer { pid: 1, uid: mine }.check(&[]).is_ok());
}

/// A visit by a peer that is the test's own socket.
fn with_visit(test: impl FnOnce(&Buffer<u32>, &mut Visit<'_, '_, u32>, Socket)) {
    let stage = Stage::new();
    let mut offer = stage.offer();
    let path = stage.path();
    let peer = thread::spawn(move || client(&path));
    let mut visit = offer.accept(SOON).unwrap();
    let socket = peer.join().unwrap();
    test(&stage.buffer, &mut visit, socket);
    drop(visit);
    assert_eq!(stage.buffer.to_vec().unwrap().len(), 2048, "the owner's buffer lives on");
    drop(offer);
    assert_eq!(fs::read_dir(stage.folder.path()).unwrap().count(), 0, "the socket is removed");
}

/// The peer left before it received its turn; its goodbye still counts.
#[test]
fn a_goodbye_is_heard_from_an_end_that_is_closed() {
    with_visit(|_, visit, peer| {
        visit.hand_over().unwrap();
        say(&peer, &Message::Bye);
        drop(peer);
        let left = visit.wait(SOON).unwrap_err();
        assert!(matches!(left, Error::PeerLost { .. }) && visit.has_left(), "{left}");
    });
}

#[test]
fn turns_are_kept() {
    with_visit(|buffer, visit, peer| {
        assert!(visit.is_our_turn() && visit.check().is_ok());
        visit.wait(Duration::ZERO).unwrap();
        buffer.fill(6).unwrap();
        visit.hand_over().unwrap();
        assert_eq!(hear(&peer), Message::Turn { round: 1 });
        assert!(matches!(buffer.fill(7), Err(Error::Busy { .. })));
        assert!(matches!(buffer.to_vec(), Err(Error::Busy { .. })));
        assert!(matches!(visit.hand_over(), Err(Error::Busy { .. })));
        assert!(matches!(visit.wait(MOMENT), Err(Error::Timeout { .. })));
        assert!(matches!(buffer.fill(7), Err(Error::Busy { .. })), "a timeout changes nothing");
        say(&peer, &Message::Turn { round: 2 });
        visit.wait(SOON).unwrap();
        assert_eq!((visit.round(), buffer.to_vec().unwrap()[9]), (2, 6));
        say(&peer, &Message::Bye);
        let left = visit.hand_over().unwrap_err();
        assert!(matches!(left, Error::PeerLost { .. }) && visit.has_left(), "{left}");
        buffer.fill(8).unwrap();
    });
}

#[test]
fn a_guard_that_is_held_keeps_the_turn() {
    with_visit(|buffer, visit, _peer| {
        let queue = buffer.hub().host().queue().unwrap();
        let view = buffer.read_on(&queue).unwrap();
        assert!(matches!(visit.hand_over(), Err(Error::Busy { .. })));
        drop(view);
        visit.hand_over().unwrap();
        assert!(matches!(buffer.read_on(&queue), Err(Error::Busy { .. })));
    });
}

#[test]
fn words_out_of_turn_end_the_visit() {
    for word in [Message::Turn { round: 1 }, Message::Ready, Message::Turn { round: 77 }] {
        with_visit(|buffer, visit, peer| {
            say(&peer, &word);
            assert_refused(&visit.hand_over().unwrap_err(), "out of turn");
            assert_refused(&visit.hand_over().unwrap_err(), "out of turn");
            buffer.fill(1).unwrap();
        });
        with_visit(|buffer, visit, peer| {
            visit.hand_over().unwrap();
            if word == (Message::Turn { round: 1 }) {
                return; // wrong here only by its number
            }
            say(&peer, &word);
            assert_refused(&visit.wait(SOON).unwrap_err(), "out of turn");
            assert!(visit.is_our_turn() && buffer.fill(1).is_ok());
        });
    }
}

/// Whatever the peer sends or does not read, the visit ends by the peer's fault, and the owner continues.
#[test]
fn what_a_peer_does_to_its_connection_is_its_own_fault() {
    let mut newer = Message::Turn { round: 2 }.encode();
    newer[4] = 2;
    for in_our_turn in [true, false] {
        with_visit(|buffer, visit, peer| {
            if !in_our_turn {
                visit.hand_over().unwrap();
            }
            peer.send_packet(&newer, &[], Deadline::after(SOON)).unwrap();
            let ended = if in_our_turn { visit.check() } else { visit.wait(SOON) };
            assert_refused(&ended.unwrap_err(), "version 2");
            assert!(visit.is_our_turn() && buffer.fill(1).is_ok());
        });
    }
    // The peer hands back every turn but reads none of the owner's messages.
    with_visit(|buffer, visit, peer| {
        let ended = (1..10_000).find_map(|round| {
            visit.hand_over().err().or_else(|| {
                say(&peer, &Message::Turn { round: 2 * round });
                visit.wait(SOON).err()
            })
        });
        assert_refused(&ended.unwrap(), "does not read");
        assert!(visit.is_our_turn() && buffer.fill(1).is_ok());
    });
}

/// A peer that was ready but disconnected before `accept` is not returned.
#[test]
fn a_peer_that_left_at_the_door_is_no_visit() {
    let stage = Stage::new();
    let mut offer = stage.offer();
    for goodbye in [true, false] {
        let peer = knock(&stage.path());
        say(&peer, &Message::Hello { element_bytes: 4 });
        assert!(matches!(offer.accept(MOMENT).map(drop), Err(Error::Timeout { .. })));
        assert!(matches!(hear(&peer), Message::Grant(_)));
        say(&peer, &Message::Ready);
        if goodbye {
            say(&peer, &Message::Bye);
        }
        drop(peer);
        let gone = offer.accept(SOON).map(drop);
        assert!(matches!(gone, Err(Error::PeerLost { .. })), "{gone:?}");
    }
}

#[test]
fn gifts_are_closed() {
    with_visit(|_, visit, peer| {
        visit.hand_over().unwrap();
        let file = memfd("onebuf-present", 4096, ALL_SEALS);
        let turn = Message::Turn { round: 2 };
        peer.send(&turn, &[file.as_fd()], Deadline::after(SOON)).unwrap();
        drop(file);
        assert_refused(&visit.wait(SOON).unwrap_err(), "1 fds");
        assert_eq!(fds_to("onebuf-present"), 0);
    });
}

#[test]
fn a_peer_that_is_gone_is_lost_in_either_turn() {
    with_visit(|buffer, visit, peer| {
        let name = object(peer.fd());
        drop(peer);
        assert!(matches!(visit.check(), Err(Error::PeerLost { .. })));
        assert!(!visit.has_left() && fds_to(&name) == 0);
        buffer.fill(1).unwrap();
    });
    with_visit(|buffer, visit, peer| {
        visit.hand_over().unwrap();
        drop(peer);
        assert!(matches!(visit.wait(SOON), Err(Error::PeerLost { .. })));
        assert!(matches!(visit.wait(SOON), Err(Error::PeerLost { .. })), "it stays lost");
        buffer.fill(1).unwrap();
    });
}

/// Both ends in this process, each with its own hub.
pub(super) fn with_both(test: impl FnOnce(&Buffer<u32>, Visit<'_, '_, u32>, Attached<u32>)) {
    with_client_of(&hub(), test);
}

/// Like `with_both`, with a client's hub whose devices all share the buffer.
pub(super) fn with_client_of(
    hub: &Hub,
    test: impl FnOnce(&Buffer<u32>, Visit<'_, '_, u32>, Attached<u32>),
) {
    let stage = Stage::new();
    let mut offer = stage.offer();
    let attach = Attach::to(stage.path().to_str().unwrap());
    let devices = hub.devices();
    thread::scope(|scope| {
        let peer = scope.spawn(|| {
            attach
                .open::<u32>(hub, |builder| builder.shared_with(&devices).trust_declared(true))
                .unwrap()
        });
        let visit = offer.accept(SOON).unwrap();
        test(&stage.buffer, visit, peer.join().unwrap());
    });
}

#[test]
fn both_see_one_memory() {
    with_both(|buffer, mut visit, mut attached| {
        assert_eq!((attached.session(), visit.session()), (1, 1));
        assert!(matches!(attached.buffer().fill(1), Err(Error::Busy { .. })));
        visit.hand_over().unwrap();
        attached.wait(SOON).unwrap();
        assert_eq!(attached.buffer().to_vec().unwrap(), [5; 2048]);
        attached.buffer().write_range(1..4, &[1, 2, 3]).unwrap();
        attached.buffer().copy_from(4, attached.buffer(), 1..4).unwrap();
        attached.hand_over().unwrap();
        visit.wait(SOON).unwrap();
        assert_eq!(buffer.to_vec().unwrap()[..8], [5, 1, 2, 3, 1, 2, 3, 5]);
        assert!(buffer.explain().contains("memfd, sealed"));
        assert!(!attached.is_our_turn());
    });
}

#[test]
fn what_is_left_when_the_owner_leaves() {
    with_both(|_, mut visit, mut attached| {
        visit.hand_over().unwrap();
        attached.wait(SOON).unwrap();
        drop(visit);
        assert!(matches!(attached.check(), Err(Error::PeerLost { .. })) && attached.has_left());
        attached.buffer().fill(3).unwrap();
        assert_eq!(attached.buffer().to_vec().unwrap(), [3; 2048], "it was its turn");
    });
    with_both(|_, visit, mut attached| {
        drop(visit);
        assert!(matches!(attached.wait(SOON), Err(Error::PeerLost { .. })));
        assert!(matches!(attached.buffer().fill(3), Err(Error::PeerLost { .. })));
        assert!(matches!(attached.hand_over(), Err(Error::PeerLost { .. })));
    });
}

/// Launches a native kernel, which gets a slice of its argument.
fn native(buffer: &Buffer<u32>) -> Result<()> {
    let (device, source) = (buffer.hub().host(), Source::opencl_c(""));
    let source = source.with_native("touch", |args| args.slice_mut::<u32>(0).map(|all| all[0] = 1));
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
    // SAFETY: the kernel stays within its slice.
    let kernel = unsafe { device.program(&source)?.kernel("touch", signature)? };
    let queue = device.queue()?;
    queue.launch(&kernel, [1], args![buffer.write_on(&queue)?])
}

#[test]
fn no_slices_of_memory_that_another_process_can_write() {
    let before = Stage::new();
    native(&before.buffer).unwrap();
    drop(before.buffer.map_mut().unwrap());
    let map = before.buffer.map().unwrap();
    let path = before.path();
    let busy = Offer::open(&before.buffer, path.to_str().unwrap()).unwrap_err();
    assert!(matches!(busy, Error::Busy { .. }), "{busy}");
    drop(map);
    drop(before.offer());
    let exposed = |buffer: &Buffer<u32>| {
        for refused in [buffer.map().map(drop), buffer.map_mut().map(drop)] {
            let why = refused.unwrap_err().to_string();
            assert!(why.contains("another process can write"), "{why}");
        }
        let region = buffer.sub_buffer(..1024, Access::ReadWrite).unwrap();
        assert!(matches!(region.map().map(drop), Err(Error::Unsupported { .. })));
        let why = native(buffer).unwrap_err().to_string();
        assert!(why.contains("another process can write"), "{why}");
        // Unsafe code can still get an address.
        let queue = buffer.hub().host().queue().unwrap();
        let (first, second) = (buffer.write_on(&queue), buffer.write_on(&queue));
        assert!(first.unwrap().address().is_ok() && second.is_err());
    };
    exposed(&before.buffer);
    with_both(|buffer, mut visit, mut attached| {
        exposed(buffer);
        visit.hand_over().unwrap();
        attached.wait(SOON).unwrap();
        exposed(attached.buffer());
    });
}

/// A device that runs native kernels late, directly on the host pages.
#[test]
fn work_that_has_slices_is_over_before_the_memory_is_exposed() {
    use onebuf_core::fake::{Delay, FakeConfig, Sharing};
    let late = FakeConfig {
        shares_host_pages: Sharing::Alias,
        delay: Delay::Fixed(Duration::from_millis(200)),
        ..FakeConfig::default()
    };
    let hub = onebuf::builder().only(["host"]).fake(late);
    let hub = hub.verdicts(Default::default()).build().unwrap();
    let fake = hub.device("fake").unwrap();
    let builder = hub.buffer::<u32>(64).shared_with([&fake]).allocate_on(&hub.host());
    let buffer = builder.trust_declared(true).build().unwrap();
    let source = Source::opencl_c("");
    let source = source.with_native("touch", |args| args.slice_mut::<u32>(0).map(|all| all[0] = 9));
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
    // SAFETY: the kernel stays within its slice.
    let kernel = unsafe { fake.program(&source).unwrap().kernel("touch", signature).unwrap() };
    let queue = fake.queue().unwrap();
    queue.launch(&kernel, [1], args![buffer.write_on(&queue).unwrap()]).unwrap();
    let fence = queue.fence();
    let folder = private();
    let offer = Offer::open(&buffer, socket(&folder).to_str().unwrap()).unwrap();
    assert_eq!(fence.is_done(), Ok(true));
    assert_eq!(buffer.to_vec().unwrap()[0], 9);
    let refused = queue.launch(&kernel, [1], args![buffer.write_on(&queue).unwrap()]).unwrap_err();
    assert!(refused.to_string().contains("another process can write"), "{refused}");
    drop(offer);
}

#[test]
fn only_whole_pages_of_its_own_are_offered() {
    let folder = private();
    let path = socket(&folder).to_str().unwrap().to_owned();
    let hub = hub();
    let pool = onebuf_core::Pool::new(&hub);
    let pooled = pool.get(&hub.buffer::<u32>(64)).unwrap();
    #[repr(align(64))]
    struct Own([u32; 64]);
    let mut own = Own([0; 64]);
    let pointer = std::ptr::NonNull::from(&mut own.0).cast::<u32>();
    // SAFETY: the array outlives the buffer and has no other user.
    let adopted =
        unsafe { hub.buffer::<u32>(64).host_memory(pointer, onebuf_hal::locks::Arc::new(())) };
    for buffer in [&pooled, &adopted.build().unwrap()] {
        let error = Offer::open(buffer, &path).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(buffer.map().is_ok(), "and nothing was exposed");
    }
    let buffer = hub.buffer::<u32>(64).build().unwrap();
    let first = Offer::open(&buffer, &path).unwrap();
    let other = hub.buffer::<u32>(64).build().unwrap();
    assert!(matches!(Offer::open(&other, &path), Err(Error::Busy { .. })), "the name is taken");
    drop(first);
    drop(Offer::open(&other, &path).unwrap());
}

#[test]
fn an_attached_buffer_is_not_given_on() {
    with_both(|_, mut visit, mut attached| {
        visit.hand_over().unwrap();
        attached.wait(SOON).unwrap();
        let folder = private();
        let error = Offer::open(attached.buffer(), socket(&folder).to_str().unwrap()).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    });
}

#[test]
fn another_builder_is_refused() {
    let stage = Stage::new();
    let mut offer = stage.offer();
    let path = stage.path().to_str().unwrap().to_owned();
    let peer = thread::spawn(move || {
        let (hub, other) = (hub(), hub());
        let longer = |_| hub.buffer::<u32>(1 << 20);
        let error = Attach::to(&path).open::<u32>(&hub, longer).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        let error = Attach::to(&path).open::<u32>(&hub, |_| other.buffer(2048)).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    });
    for _ in 0..2 {
        let left = offer.accept(SOON).map(drop);
        assert!(matches!(left, Err(Error::PeerLost { .. })), "{left:?}");
    }
    peer.join().unwrap();
}

/// A program that treats buffers as bytes states the other's element size, and both share one memory.
#[test]
fn bytes_are_told_as_the_elements_that_they_hold() {
    let (hub, folder) = (hub(), private());
    let (path, bytes) = (socket(&folder), hub.buffer::<u8>(4096).build().unwrap());
    let name = path.to_str().unwrap();
    let odd = Offer::open(&bytes, name).unwrap().element_bytes(7).map(drop).unwrap_err();
    assert!(odd.to_string().contains("not a multiple of the element size 7"), "{odd}");
    let mut offer = Offer::open(&bytes, name).unwrap().element_bytes(4).unwrap();
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let wrong = Attach::to(name).open::<u8>(&hub, |builder| builder).map(drop);
            let wide = Attach::to(name).open::<u32>(&hub, |builder| builder);
            let told = Attach::to(name).element_bytes(4).open::<u8>(&hub, |builder| builder);
            (wrong, wide, told)
        });
        let refused = offer.accept(SOON).map(drop);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
        let visits = [0; 2].map(|_| offer.accept(SOON).map(|visit| visit.session()));
        let (wrong, wide, told) = client.join().unwrap();
        assert!(matches!(wrong, Err(Error::InvalidArgument(_))), "{wrong:?}");
        assert!(wide.is_ok() && visits.iter().all(Result::is_ok), "{wide:?} {visits:?}");
        assert_eq!(told.unwrap().buffer().len(), 4096);
    });
}

/// A shared handle to an attached buffer is unusable after the connection was closed.
#[test]
fn a_shared_buffer_is_lost_with_its_connection() {
    with_both(|_, mut visit, mut attached| {
        visit.hand_over().unwrap();
        attached.wait(SOON).unwrap();
        let shared = attached.shared_buffer();
        shared.fill(3).unwrap();
        drop(attached);
        let lost = shared.to_vec();
        assert!(matches!(lost, Err(Error::PeerLost { .. })), "{lost:?}");
        let left = visit.wait(SOON);
        assert!(matches!(left, Err(Error::PeerLost { .. })) && visit.has_left(), "{left:?}");
        assert_eq!(visit.buffer().to_vec().unwrap()[5], 3, "what it wrote is the owner's");
    });
}
