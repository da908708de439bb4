//! Several sockets: frames are the same as with one, whatever reaches which socket.

use super::{
    tests::{GARBAGE, content},
    *,
};
use crate::{
    net::packet::{Cut, Header, Kind, Ports},
    sink::{self, Faults, Sink},
};
use std::thread;

const STRIDE: usize = 100;
/// 130 packets: enough for four sockets, and not a multiple.
const BYTES: usize = 129 * STRIDE + 7;

fn receiver(sockets: usize) -> Udp {
    let udp = Udp::bind("127.0.0.1:0").unwrap().sockets(sockets).unwrap();
    udp.timeout(Duration::from_secs(60))
}

/// The next arrival that is no silence.
fn next(udp: &mut Udp, frame: &mut [u8]) -> Arrival {
    loop {
        frame.fill(GARBAGE);
        match udp.receive(frame).unwrap() {
            Arrival::Silence => {}
            arrival => return arrival,
        }
    }
}

/// Sends packets one by one, from one port.
struct Hand {
    socket: UdpSocket,
    cut: Cut,
}

impl Hand {
    fn new(udp: &Udp) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(udp.address().unwrap()).unwrap();
        Self { socket, cut: Cut::new(BYTES, STRIDE).unwrap() }
    }

    fn packet(&self, kind: Kind, frame: u64, stream: u32) -> Vec<u8> {
        let header = Header { kind, stream, frame, cut: self.cut, ports: Ports::default() };
        let mut bytes = header.encode().to_vec();
        if let Kind::Part(packet) = kind {
            bytes.extend_from_slice(&content(frame, BYTES)[self.cut.range(packet)]);
        }
        bytes
    }

    fn send(&self, frame: u64, packets: impl IntoIterator<Item = u32>) {
        for packet in packets {
            self.socket.send(&self.packet(Kind::Part(packet), frame, 1)).unwrap();
        }
    }
}

#[test]
fn frames_come_whole_from_any_number_of_threads() {
    for (sockets, threads) in [(1, 3), (2, 1), (4, 4), (4, 3), (3, 5)] {
        let mut udp = receiver(sockets);
        let meter = udp.meter();
        let to = udp.address().unwrap();
        let sending = thread::spawn(move || {
            let sender = sink::Udp::connect(to).unwrap().threads(threads).unwrap();
            let mut sender = sender.payload(STRIDE).unwrap().rate(20e6).unwrap();
            (0..20).for_each(|frame| sender.take(&content(frame, BYTES), frame).unwrap());
            sender.finish().unwrap();
        });
        let mut frame = vec![0; BYTES];
        for number in 0..20 {
            let arrival = next(&mut udp, &mut frame);
            assert_eq!(arrival, Arrival::Whole { frame: number }, "{sockets} {:?}", meter.counts());
            assert!(frame == content(number, BYTES), "{sockets} sockets, {threads} threads");
        }
        assert_eq!(next(&mut udp, &mut frame), Arrival::End);
        sending.join().unwrap();
        let (counts, each) = (meter.counts(), meter.sockets());
        assert_eq!((counts.frames, counts.packets, counts.lost_packets), (20, 2600, 0));
        assert_eq!(each.len(), sockets);
        assert!(each.iter().all(|one| one.packets >= 2600 / 2 / sockets as u64), "{each:?}");
        assert!(each.iter().all(|one| one.batches > 0 && one.bytes > 0), "{each:?}");
        assert_eq!(each.iter().map(|one| one.packets).sum::<u64>(), counts.packets);
    }
}

#[test]
fn losses_duplicates_and_disorder_are_counted_as_with_one_socket() {
    for seed in 1..5 {
        let mut udp = receiver(4);
        let to = udp.address().unwrap();
        let faults = Faults { lose: 0.01, duplicate: 0.02, reorder: 9, seed };
        let sending = thread::spawn(move || {
            let sender = sink::Udp::connect(to).unwrap().threads(4).unwrap().faults(faults);
            let mut sender = sender.payload(STRIDE).unwrap().rate(10e6).unwrap();
            (0..30).for_each(|frame| sender.take(&content(frame, BYTES), frame).unwrap());
            sender.finish().unwrap();
            sender.sent()
        });
        let (mut frame, mut number, mut missing) = (vec![0; BYTES], 0, 0);
        loop {
            let whole = content(number, BYTES);
            match next(&mut udp, &mut frame) {
                Arrival::Whole { frame: at } => assert!(at == number && frame == whole, "{number}"),
                Arrival::Holes { frame: at, missing: some } => {
                    assert_eq!(at, number);
                    missing += u64::from(some);
                    let cut = Cut::new(BYTES, STRIDE).unwrap();
                    let is_hole = |&packet: &u32| {
                        let range = cut.range(packet);
                        let zero = frame[range.clone()].iter().all(|&byte| byte == 0);
                        assert!(
                            zero || frame[range.clone()] == whole[range],
                            "{packet} of {number}"
                        );
                        zero
                    };
                    assert_eq!((0..cut.packets()).filter(is_hole).count() as u32, some);
                }
                Arrival::End => break,
                Arrival::Silence => unreachable!(),
            }
            number += 1;
        }
        let (sent, counts) = (sending.join().unwrap(), udp.meter().counts());
        assert_eq!((number, missing), (30, sent.lost_packets), "{counts:?}");
        assert_eq!(counts.lost_packets, sent.lost_packets);
        let twice = counts.duplicate_packets + counts.late_packets;
        assert!(twice <= sent.duplicate_packets && counts.packets + counts.lost_packets == 3900);
    }
}

/// A message of joined packets goes to the socket of its first packet, whose thread hands the others over.
#[test]
fn packets_that_reach_another_socket_are_handed_over() {
    let mut udp = receiver(4);
    let mut sender = sink::Udp::connect(udp.address().unwrap()).unwrap().payload(STRIDE).unwrap();
    let mut frame = vec![0; BYTES];
    for number in 0..3 {
        sender.take(&content(number, BYTES), number).unwrap();
        assert_eq!(next(&mut udp, &mut frame), Arrival::Whole { frame: number });
        assert!(frame == content(number, BYTES), "{number}");
    }
    let counts = udp.meter().counts();
    assert_eq!((counts.packets, counts.lost_packets, counts.malformed_packets), (390, 0, 0));
}

#[test]
fn a_frame_without_one_part_is_given_up_like_any() {
    let mut udp = receiver(4);
    let hand = Hand::new(&udp);
    let mut frame = vec![0; BYTES];
    // Nothing of the third range of frame 0; frames 1 and 2 are complete.
    hand.send(0, (0..130).filter(|packet| packet / 33 != 2));
    hand.send(1, 0..130);
    hand.send(2, 0..130);
    let missing = (0..130).filter(|packet| packet / 33 == 2).count() as u32;
    assert_eq!(next(&mut udp, &mut frame), Arrival::Holes { frame: 0, missing });
    for number in 1..3 {
        assert_eq!(next(&mut udp, &mut frame), Arrival::Whole { frame: number });
        assert!(frame == content(number, BYTES));
    }
}

#[test]
fn a_long_gap_is_counted_at_once_and_strangers_do_no_harm() {
    let mut udp = receiver(2);
    let (hand, other) = (Hand::new(&udp), Hand::new(&udp));
    let mut frame = vec![0; BYTES];
    hand.send(5, 0..130);
    assert_eq!(next(&mut udp, &mut frame), Arrival::Whole { frame: 5 });
    for packet in 0..130 {
        other.socket.send(&other.packet(Kind::Part(packet), 9, 1)).unwrap();
        other.socket.send(&[packet as u8; 77]).unwrap();
    }
    hand.send(1_000_006, 0..130);
    assert_eq!(next(&mut udp, &mut frame), Arrival::Whole { frame: 1_000_006 });
    assert!(frame == content(1_000_006, BYTES));
    let counts = udp.meter().counts();
    assert_eq!((counts.incomplete_frames, counts.stray_packets), (1_000_000, 130), "{counts:?}");
    assert_eq!(counts.malformed_packets, 130);
}

/// The owner crashes; the stream of another sender takes over. Both use all sockets.
#[test]
fn another_stream_takes_over() {
    let mut udp = receiver(4).takeover_after(Duration::from_millis(100));
    let (first, second) = (Hand::new(&udp), Hand::new(&udp));
    let mut frame = vec![0; BYTES];
    first.send(0, 0..130);
    assert_eq!(next(&mut udp, &mut frame), Arrival::Whole { frame: 0 });
    first.send(1, 0..64);
    while udp.idle < Duration::from_millis(100) {
        assert_eq!(udp.receive(&mut frame).unwrap(), Arrival::Silence);
    }
    second.send(40, 0..130);
    assert_eq!(next(&mut udp, &mut frame), Arrival::Holes { frame: 1, missing: 66 });
    assert!(frame[..6400] == content(1, BYTES)[..6400] && frame[6400..].iter().all(|&b| b == 0));
    assert_eq!(next(&mut udp, &mut frame), Arrival::Whole { frame: 40 });
    assert!(frame == content(40, BYTES));
    assert_eq!(udp.meter().counts().takeovers, 1);
}

#[test]
fn small_frames_are_received_on_the_first_socket() {
    let mut udp = receiver(4);
    let mut sender = sink::Udp::connect(udp.address().unwrap()).unwrap().payload(100).unwrap();
    let mut frame = vec![0; 1000];
    for number in 0..50 {
        sender.take(&content(number, 1000), number).unwrap();
        assert_eq!(next(&mut udp, &mut frame), Arrival::Whole { frame: number });
        assert!(frame == content(number, 1000));
    }
    let each = udp.meter().sockets();
    assert!(each[1..].iter().all(|one| one.packets == 0), "{each:?}");
}

#[test]
fn options_are_checked() {
    for wrong in [0, MOST_PORTS + 1] {
        assert!(Udp::bind("127.0.0.1:0").unwrap().sockets(wrong).is_err());
    }
    let given = Udp::over(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    assert!(given.sockets(2).unwrap_err().to_string().contains("address"));
    let udp = Udp::bind("127.0.0.1:0").unwrap().receive_buffer(1 << 16);
    let (port, one) = (udp.address().unwrap(), udp.meter().counts().receive_buffer_bytes);
    let udp = udp.sockets(3).unwrap().busy_poll(Duration::ZERO).cpus([0]);
    assert_eq!(udp.address().unwrap(), port);
    assert_eq!(udp.meter().counts().receive_buffer_bytes, 3 * one);
    let udp = udp.sockets(1).unwrap();
    assert_eq!((udp.address().unwrap(), udp.meter().sockets().len()), (port, 1));
    // Sockets of several processes are not bound to one address by accident.
    assert!(Udp::bind(port).is_err());
    drop(udp);
    let _several = Udp::bind(port).unwrap().sockets(2).unwrap();
    assert!(Udp::bind(port).is_err());
}

#[test]
fn threads_are_pinned() {
    let pinned = thread::spawn(|| {
        let mut udp = receiver(2).cpus([0]);
        let mut frame = vec![0; BYTES];
        assert_eq!(udp.receive(&mut frame).unwrap(), Arrival::Silence);
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(status.lines().any(|line| line.trim_end() == "Cpus_allowed_list:\t0"), "{status}");
    });
    pinned.join().unwrap();
    let wrong = receiver(2).cpus([1 << 20]).receive(&mut [0u8; 100]);
    assert!(wrong.unwrap_err().to_string().contains("sched_setaffinity"));
}
