//! Receiving over a bad network: checks every frame's contents and every counter.

use super::*;
use crate::{
    net::{
        mmsg,
        packet::{Cut, HEADER, Header, Kind, Ports},
    },
    sink::{self, Faults, Sink},
};
use proptest::prelude::*;
use std::{collections::BTreeMap, io::IoSliceMut};

pub(super) const GARBAGE: u8 = 0xee;

/// A frame's contents: never zero, never `GARBAGE`, and different in every packet.
pub(super) fn content(frame: u64, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| 1 + ((frame % 97 * 31 + at as u64 / 7 + at as u64 * 3) % 200) as u8)
        .collect()
}

/// A receiver, and a socket that sends arbitrary packets to it.
struct Wire {
    udp: Udp,
    socket: UdpSocket,
    cut: Cut,
}

impl Wire {
    fn new(bytes: usize, stride: usize) -> Self {
        let udp = Udp::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(udp.address().unwrap()).unwrap();
        Self { udp, socket, cut: Cut::new(bytes, stride).unwrap() }
    }

    fn packet(&self, kind: Kind, frame: u64) -> Vec<u8> {
        let head = Header { kind, stream: 9, frame, cut: self.cut, ports: Ports::default() }
            .encode()
            .to_vec();
        let all = content(frame, self.cut.frame_bytes());
        match kind {
            Kind::Part(packet) => [&head, &all[self.cut.range(packet)]].concat(),
            Kind::End => head,
        }
    }

    fn send(&self, frame: u64, packets: impl IntoIterator<Item = u32>) {
        for packet in packets {
            self.socket.send(&self.packet(Kind::Part(packet), frame)).unwrap();
        }
    }

    fn end(&self, frames: u64) {
        self.socket.send(&self.packet(Kind::End, frames)).unwrap();
    }

    /// One receive call into memory filled with garbage; the contents are checked.
    fn receive(&mut self) -> Arrival {
        let bytes = self.cut.frame_bytes();
        let mut memory = vec![GARBAGE; bytes + 16];
        let arrival = self.udp.receive(&mut memory[8..8 + bytes]).unwrap();
        assert!(memory[..8].iter().chain(&memory[8 + bytes..]).all(|&byte| byte == GARBAGE));
        let memory = &memory[8..8 + bytes];
        match arrival {
            Arrival::Whole { frame } => assert_eq!(memory, content(frame, bytes), "frame {frame}"),
            Arrival::Holes { frame, missing } => {
                let wanted = content(frame, bytes);
                let parts = (0..self.cut.packets()).map(|packet| self.cut.range(packet));
                let (holes, right): (Vec<_>, Vec<_>) =
                    parts.partition(|part| memory[part.clone()].iter().all(|&byte| byte == 0));
                assert_eq!(holes.len(), missing as usize, "frame {frame}");
                right.into_iter().for_each(|part| assert_eq!(memory[part.clone()], wanted[part]));
            }
            Arrival::Silence | Arrival::End => {}
        }
        arrival
    }

    /// All arrivals up to the end, without silences.
    fn all(&mut self) -> Vec<Arrival> {
        let each = std::iter::from_fn(|| Some(self.receive()).filter(|&last| last != Arrival::End));
        // The limit turns a missing end into a failure.
        each.take(10_000).filter(|arrival| *arrival != Arrival::Silence).collect()
    }

    /// Turns joining of packets on or off.
    fn join(&mut self, joined: bool) {
        let line = &mut self.udp.lines[0];
        line.joining = Joining::ask(&line.socket, joined);
    }

    fn counts(&self) -> UdpCounts {
        self.udp.meter().counts()
    }
}

pub(super) fn whole(frame: u64) -> Arrival {
    Arrival::Whole { frame }
}

#[test]
fn in_order_nothing_is_moved() {
    for joined in [false, true] {
        // Many packets with a short last one, many of equal size, one per frame.
        for (bytes, stride, packets) in [(9001, 100, 91), (6400, 100, 64), (50, 100, 1)] {
            let mut wire = Wire::new(bytes, stride.min(bytes));
            wire.join(joined);
            let all = 0..wire.cut.packets();
            for frame in 0..20 {
                wire.send(frame, all.clone());
                assert_eq!(wire.receive(), whole(frame));
            }
            wire.end(20);
            assert_eq!(wire.all(), []);
            let counts = wire.counts();
            assert_eq!((counts.frames, counts.packets), (20, 20 * packets));
            assert_eq!(
                (counts.lost_packets, counts.malformed_packets, counts.late_packets),
                (0, 0, 0)
            );
            assert_eq!(counts.moved_packets, 1, "the one that told how large packets are");
        }
    }
}

#[test]
fn frames_of_few_packets_come_many_at_a_time() {
    for joined in [false, true] {
        let mut wire = Wire::new(200, 100);
        wire.join(joined);
        (0..100).for_each(|frame| wire.send(frame, [0, 1]));
        wire.end(100);
        assert_eq!(wire.all(), Vec::from_iter((0..100).map(whole)));
        let counts = wire.counts();
        assert_eq!((counts.frames, counts.packets, counts.kernel_drops), (100, 200, 0));
        let moved = counts.moved_packets > 100;
        assert_eq!(moved, !joined, "those behind the first had no slot yet: {counts:?}");
    }
}

#[test]
fn any_order_inside_the_window_is_put_right() {
    for joined in [false, true] {
        let mut wire = Wire::new(1003, 100);
        wire.join(joined);
        wire.send(0, (0..11).rev());
        wire.send(1, [10, 0, 9, 1]);
        wire.send(2, [3, 4, 5, 10]);
        wire.send(1, [2, 3, 4, 5, 6, 7, 8]);
        wire.send(2, [0, 1, 2, 6, 7, 8, 9]);
        wire.end(3);
        assert_eq!(wire.all(), [whole(0), whole(1), whole(2)]);
        let counts = wire.counts();
        assert_eq!((counts.packets, counts.lost_packets, counts.late_packets), (33, 0, 0));
        assert!(counts.moved_packets > 10, "{counts:?}");
    }
}

#[test]
fn a_frame_is_given_up_when_one_behind_the_window_comes() {
    for joined in [false, true] {
        let mut wire = Wire::new(400, 100);
        wire.join(joined);
        wire.send(0, [0, 1, 3]);
        wire.send(1, 0..4);
        assert_eq!(wire.receive(), Arrival::Holes { frame: 0, missing: 1 }, "in silence");
        wire.send(2, [0, 1, 2]);
        wire.send(3, 0..4);
        wire.send(4, 0..4);
        wire.send(2, [3]);
        assert_eq!(
            [wire.receive(), wire.receive()],
            [whole(1), Arrival::Holes { frame: 2, missing: 1 }]
        );
        assert_eq!([wire.receive(), wire.receive()], [whole(3), whole(4)]);
        wire.end(5);
        assert_eq!(wire.all(), []);
        let counts = wire.counts();
        assert_eq!((counts.frames, counts.incomplete_frames), (3, 2));
        assert_eq!((counts.lost_packets, counts.late_packets, counts.packets), (2, 1, 18));
    }
}

#[test]
fn a_wider_window_waits_for_longer() {
    let mut wire = Wire::new(400, 100);
    wire.udp = wire.udp.window(4);
    wire.send(0, [0, 1, 3]);
    (1..4).for_each(|frame| wire.send(frame, 0..4));
    wire.send(0, [2]);
    wire.end(4);
    assert_eq!(wire.all(), [whole(0), whole(1), whole(2), whole(3)]);
}

#[test]
fn frames_that_are_missing_altogether_are_told_too() {
    for joined in [false, true] {
        let mut wire = Wire::new(400, 100);
        wire.join(joined);
        wire.send(0, 0..4);
        wire.send(5, 0..4);
        wire.end(8);
        let hole = |frame| Arrival::Holes { frame, missing: 4 };
        let first = [whole(0), hole(1), hole(2), hole(3), hole(4), whole(5)];
        assert_eq!(wire.all(), [&first[..], &[hole(6), hole(7)]].concat());
        let counts = wire.counts();
        assert_eq!((counts.incomplete_frames, counts.lost_packets), (6, 24));
    }
}

#[test]
fn a_gap_without_an_end_is_counted_at_once() {
    let mut wire = Wire::new(400, 100);
    wire.send(0, [0]);
    wire.send(1 << 61, 0..4);
    assert_eq!(wire.receive(), Arrival::Holes { frame: 0, missing: 3 });
    assert_eq!(wire.receive(), whole(1 << 61));
    assert_eq!(wire.counts().incomplete_frames, 1 << 61);
    wire.end(1 << 62);
    assert_eq!(wire.all(), []);
    assert_eq!(wire.counts().incomplete_frames, (1 << 62) - 1);
}

#[test]
fn what_does_not_belong_is_counted_and_harms_nothing() {
    for joined in [false, true] {
        let mut wire = Wire::new(400, 100);
        wire.join(joined);
        wire.socket.send(b"hello").unwrap();
        wire.send(0, [0, 0, 1]);
        let mut stray = wire.packet(Kind::Part(2), 0);
        stray[8] ^= 1;
        stray[HEADER..].fill(GARBAGE);
        wire.socket.send(&stray).unwrap();
        let other = Header {
            kind: Kind::Part(2),
            stream: 9,
            frame: 0,
            cut: Cut::new(400, 99).unwrap(),
            ports: Ports::default(),
        };
        wire.socket.send(&[&other.encode()[..], &[GARBAGE; 99]].concat()).unwrap();
        let longer = [wire.packet(Kind::Part(2), 0), vec![1]].concat();
        wire.socket.send(&longer).unwrap();
        wire.socket.send(&[]).unwrap();
        wire.send(0, [2, 3]);
        wire.send(1, 0..4);
        wire.send(0, [3]);
        wire.end(2);
        assert_eq!(wire.all(), [whole(0), whole(1)]);
        let counts = wire.counts();
        assert_eq!((counts.stray_packets, counts.malformed_packets), (1, 4), "{counts:?}");
        assert_eq!((counts.duplicate_packets + counts.late_packets, counts.packets), (2, 8));
    }
}

#[test]
fn one_stream_follows_another() {
    let mut wire = Wire::new(300, 100);
    wire.udp = wire.udp.stream(7);
    let mut sender = sink::Udp::connect(wire.udp.address().unwrap()).unwrap();
    sender = sender.payload(100).unwrap().stream(7);
    wire.send(0, 0..3);
    sender.take(&content(0, 300), 0).unwrap();
    sender.finish().unwrap();
    assert_eq!(wire.all(), [whole(0)]);
    assert_eq!(wire.counts().stray_packets, 3);
    wire.udp.wanted = None;
    sender.take(&content(1, 300), 1).unwrap();
    sender.finish().unwrap();
    assert_eq!((wire.all(), sender.sent().frames), (vec![whole(1)], 2));
}

#[test]
fn a_dead_sender_is_a_timeout_that_says_what_came_instead() {
    let mut wire = Wire::new(300, 100);
    wire.udp = wire.udp.timeout(Duration::from_millis(120));
    let refused = |wire: &mut Wire, bytes: usize| loop {
        match wire.udp.receive(&mut vec![0u8; bytes]) {
            Ok(silence) => assert_eq!(silence, Arrival::Silence),
            Err(error) => break error.to_string(),
        }
    };
    let why = refused(&mut wire, 300);
    assert!(why.contains("timed out") && why.contains("a stream"), "{why}");
    wire.send(0, [0]);
    let why = refused(&mut wire, 301);
    assert!(why.contains("frames of 300 bytes") && why.contains("1 malformed"), "{why}");
    wire.send(0, [0]);
    let why = refused(&mut wire, 300);
    assert!(why.contains("packet of stream 9"), "{why}");
    let other = wire.udp.receive(&mut [0u8; 301]).unwrap_err();
    assert!(matches!(other, Error::InvalidArgument(_)), "{other}");
    // A timeout does not end the stream: received packets are kept.
    wire.send(0, [1, 2]);
    assert_eq!(wire.receive(), whole(0));
}

/// A stop request is noticed even if useless packets arrive without pause.
#[test]
fn useless_packets_are_silence() {
    let mut wire = Wire::new(300, 100);
    wire.send(4, 0..3);
    assert_eq!(wire.receive(), whole(4));
    let done = std::sync::atomic::AtomicBool::new(false);
    let (socket, late) = (wire.socket.try_clone().unwrap(), wire.packet(Kind::Part(0), 3));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                socket.send(&late).unwrap();
            }
        });
        assert_eq!(wire.receive(), Arrival::Silence);
        done.store(true, Ordering::Relaxed);
    });
    assert!(wire.counts().late_packets > 0);
}

#[test]
fn what_a_sender_lost_on_purpose_is_what_is_missing() {
    for joined in [false, true] {
        let mut wire = Wire::new(1000, 64);
        wire.join(joined);
        let faults = Faults { lose: 0.05, duplicate: 0.05, reorder: 5, seed: 42 };
        let mut sender = sink::Udp::connect(wire.udp.address().unwrap()).unwrap();
        sender = sender.payload(64).unwrap().faults(faults);
        (0..30).for_each(|frame| sender.take(&content(frame, 1000), frame).unwrap());
        sender.finish().unwrap();
        let (arrivals, counts, sent) = (wire.all(), wire.counts(), sender.sent());
        let mut by_frame = BTreeMap::new();
        for arrival in arrivals {
            let (Arrival::Whole { frame } | Arrival::Holes { frame, .. }) = arrival else {
                continue;
            };
            assert_eq!(by_frame.insert(frame, arrival), None, "frame {frame} came twice");
        }
        assert_eq!(by_frame.into_keys().collect::<Vec<_>>(), Vec::from_iter(0..30));
        assert!(sent.lost_packets > 10 && sent.duplicate_packets > 10, "{sent:?}");
        assert_eq!((counts.lost_packets, counts.kernel_drops), (sent.lost_packets, 0));
        assert_eq!(counts.duplicate_packets + counts.late_packets, sent.duplicate_packets);
        assert_eq!((counts.frames + counts.incomplete_frames, counts.malformed_packets), (30, 0));
        assert_eq!(counts.packets, sent.packets - sent.duplicate_packets);
    }
}

/// One sender's streams may use different packet sizes.
#[test]
fn a_stream_of_large_packets_follows_one_of_small() {
    let mut wire = Wire::new(50, 50);
    let mut sender = sink::Udp::connect(wire.udp.address().unwrap()).unwrap();
    sender = sender.payload(40_000).unwrap();
    for (frame, bytes) in [(0, 50), (1, 100_000), (2, 50)] {
        wire.cut = Cut::new(bytes, bytes.min(40_000)).unwrap();
        sender.take(&content(frame, bytes), frame).unwrap();
        sender.finish().unwrap();
        assert_eq!(wire.all(), [whole(frame)], "{bytes} bytes");
    }
    assert_eq!(sender.sent().packets, 5);
}

/// Whether the kernel supports joined packets.
fn can_join(wire: &Wire) -> bool {
    let can = socket::set_joined(&wire.udp.lines[0].socket, true);
    if !can {
        eprintln!("skip: packets that come together: the kernel has no UDP_GRO");
    }
    can
}

/// Joined packets are received by one call, each at its position.
#[test]
fn packets_that_come_together_are_received_together() {
    let mut wire = Wire::new(1050, 100);
    if !can_join(&wire) {
        return;
    }
    let mut sender = sink::Udp::connect(wire.udp.address().unwrap()).unwrap();
    sender = sender.payload(100).unwrap();
    sender.take(&content(0, 1050), 0).unwrap();
    let (mut memory, mut got) = ([[0; 140]; 16], [mmsg::Got::default(); mmsg::BATCH]);
    let mut places = memory.each_mut().map(|place| IoSliceMut::new(place));
    let fd = wire.udp.lines[0].socket.as_fd();
    let receive_joined = |places: &mut [IoSliceMut<'_>; 16], packet, got: &mut _| {
        let joined = mmsg::Joined { packet, is_marked: true };
        mmsg::receive_joined(fd, places, joined, got, mmsg::Wait::Timeout).unwrap()
    };
    assert_eq!(receive_joined(&mut places, 140, &mut got), 11);
    let bytes: Vec<usize> = got[..11].iter().map(|got| got.bytes).collect();
    assert_eq!(bytes, [[140; 10].as_slice(), &[90]].concat());
    for (packet, place) in memory[..11].iter().enumerate() {
        let range = wire.cut.range(packet as u32);
        assert_eq!(place[HEADER..][..range.len()], content(0, 1050)[range], "packet {packet}");
    }
    // Joined packets of another size do not fit the positions and are rejected.
    sender.take(&content(1, 1050), 1).unwrap();
    let mut places = memory.each_mut().map(|place| IoSliceMut::new(place));
    assert_eq!(receive_joined(&mut places, 139, &mut got), 1);
    assert!(got[0].cut_off);
    drop(sender);
    let mut sender = sink::Udp::connect(wire.udp.address().unwrap()).unwrap();
    sender = sender.payload(100).unwrap();
    for frame in 0..20 {
        sender.take(&content(frame, 1050), frame).unwrap();
        assert_eq!(wire.receive(), whole(frame));
    }
    assert_eq!(wire.counts().moved_packets, 11, "the message that told how large packets are");
}

/// Packets that waited before joining was turned on arrive one by one. They do not count for the sender's mode, and none is
/// lost.
#[test]
fn what_waited_comes_as_it_was() {
    let (frames, packets) = (3, 150);
    for (before, after) in [(false, true), (true, false)] {
        let mut wire = Wire::new(packets * 100, 100);
        let mut sender = sink::Udp::connect(wire.udp.address().unwrap()).unwrap();
        sender = sender.payload(100).unwrap();
        if !can_join(&wire) {
            return;
        }
        wire.join(before);
        (0..frames).for_each(|frame| sender.take(&content(frame, packets * 100), frame).unwrap());
        assert_eq!(wire.receive(), whole(0));
        let stream = wire.udp.stream.as_mut().unwrap();
        stream.ask_joined(&wire.udp.lines, after);
        for frame in 1..6 * frames {
            if frame >= frames {
                sender.take(&content(frame, packets * 100), frame).unwrap();
            }
            assert_eq!(wire.receive(), whole(frame));
        }
        let counts = wire.counts();
        assert_eq!((counts.malformed_packets, counts.lost_packets), (0, 0), "{counts:?}");
        let joining = wire.udp.stream.as_ref().unwrap().joining(0).unwrap();
        assert_eq!((joining.is_on(), joining.is_over()), (after, !after), "{joining:?}");
    }
}

/// The next stream may begin before the end of the last one was received.
#[test]
fn streams_that_wait_one_behind_the_other_come_whole() {
    let mut wire = Wire::new(1050, 100);
    let mut sender = sink::Udp::connect(wire.udp.address().unwrap()).unwrap();
    sender = sender.payload(100).unwrap();
    for frame in 0..3 {
        sender.take(&content(frame, 1050), frame).unwrap();
        sender.finish().unwrap();
    }
    for frame in 0..3 {
        assert_eq!(wire.all(), [whole(frame)]);
    }
    let counts = wire.counts();
    assert_eq!((counts.packets, counts.malformed_packets, counts.stray_packets), (33, 0, 0));
}

/// A sender whose packets arrive one by one is noticed in the middle of a frame.
#[test]
fn packets_that_come_alone_are_received_many_at_a_time() {
    let mut wire = Wire::new(40_000, 100);
    for frame in 0..3 {
        wire.send(frame, 0..400);
        assert_eq!(wire.receive(), whole(frame));
    }
    assert_eq!((wire.counts().packets, wire.counts().lost_packets), (1200, 0));
}

#[test]
fn packets_that_the_kernel_had_no_room_for_are_counted() {
    let mut wire = Wire::new(4000, 100);
    wire.udp = wire.udp.receive_buffer(4096);
    let room = wire.counts().receive_buffer_bytes;
    assert!((1..100_000).contains(&room), "{room}");
    (0..20).for_each(|frame| wire.send(frame, 0..40));
    while wire.receive() != Arrival::Silence {}
    wire.end(20);
    wire.all();
    let counts = wire.counts();
    assert!(counts.kernel_drops > 0, "{counts:?}");
    assert_eq!(counts.lost_packets, counts.kernel_drops, "and nothing else was lost");
    assert_eq!(counts.frames + counts.incomplete_frames, 20);
}

/// What a bad network may do to a packet.
#[derive(Clone, Debug)]
enum Deed {
    Send,
    Lose,
    Twice,
    Shorten(usize),
    Noise(Vec<u8>),
}

fn deeds() -> impl Strategy<Value = Deed> {
    prop_oneof![
        8 => Just(Deed::Send),
        1 => Just(Deed::Lose),
        1 => Just(Deed::Twice),
        1 => (0usize..40).prop_map(Deed::Shorten),
        1 => proptest::collection::vec(any::<u8>(), 0..200).prop_map(Deed::Noise),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// Frames arrive complete and correct, or with reported holes; each once, in order.
    #[test]
    fn nothing_wrong_is_taken_for_a_frame(
        deeds in proptest::collection::vec((deeds(), 0usize..12), 40),
        stride in 40usize..100,
        joined: bool,
    ) {
        let mut wire = Wire::new(200, stride);
        wire.join(joined);
        let (packets, mut script) = (wire.cut.packets() as usize, Vec::new());
        for (number, (deed, delay)) in deeds.into_iter().enumerate() {
            let bytes = wire.packet(Kind::Part((number % packets) as u32), (number / packets) as u64);
            match deed {
                Deed::Send => script.push((number + delay, bytes)),
                Deed::Lose => {}
                Deed::Twice => script.extend([(number, bytes.clone()), (number + delay, bytes)]),
                Deed::Shorten(by) => script.push((number, bytes[..bytes.len() - 1 - by].into())),
                Deed::Noise(noise) => script.extend([(number, bytes), (number, noise)]),
            }
        }
        script.sort_by_key(|(at, _)| *at);
        for (_, bytes) in &script {
            wire.socket.send(bytes).unwrap();
        }
        let frames = 40 / packets as u64;
        wire.end(frames.max(1));
        let mut told = Vec::new();
        // If no packet before the end arrived, the end does not arrive either.
        while wire.counts().packets == 0 || told.len() < 100 {
            match wire.receive() {
                Arrival::End => break,
                Arrival::Silence if wire.counts().packets == 0 => break,
                Arrival::Silence => {}
                Arrival::Whole { frame } | Arrival::Holes { frame, .. } => told.push(frame),
            }
        }
        prop_assert!(told.windows(2).all(|two| two[0] + 1 == two[1]), "{:?}", told);
        let counts = wire.counts();
        prop_assert_eq!(counts.frames + counts.incomplete_frames, told.len() as u64);
    }

    /// Consistent but false headers: no write out of bounds, no panic, and the receiver returns.
    #[test]
    fn liars_do_no_harm(
        lies in proptest::collection::vec((0u32..5, 0u64..6, 0..HEADER, any::<u8>(), any::<bool>()), 60),
        joined: bool,
    ) {
        let mut wire = Wire::new(470, 100);
        wire.join(joined);
        for (packet, frame, at, by, far) in lies {
            let mut bytes = wire.packet(Kind::Part(packet), frame);
            bytes[if far { 24 + at % 8 } else { at }] ^= by;
            wire.socket.send(&bytes).unwrap();
        }
        let mut memory = vec![GARBAGE; 470 + 16];
        for call in 0.. {
            prop_assert!(call < 100_000);
            match wire.udp.receive(&mut memory[8..478]).unwrap() {
                Arrival::Silence | Arrival::End => break,
                Arrival::Whole { .. } | Arrival::Holes { .. } => {}
            }
        }
        prop_assert!(memory[..8].iter().chain(&memory[478..]).all(|&byte| byte == GARBAGE));
        let counts = wire.counts();
        let UdpCounts { packets, late_packets, duplicate_packets, .. } = counts;
        let others = counts.stray_packets + counts.malformed_packets;
        let seen = packets + late_packets + duplicate_packets + others;
        prop_assert!(seen <= 60 && packets > 0, "{:?}", counts);
    }
}
