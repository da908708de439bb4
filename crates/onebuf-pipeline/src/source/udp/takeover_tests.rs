//! Which stream is received when senders crash, restart, or send at the same time. Checks every frame's contents and every
//! counter.

use super::{
    tests::{GARBAGE, content, whole},
    *,
};
use crate::net::packet::{Cut, Header, Kind, Ports};
use std::sync::atomic::AtomicBool;

const BYTES: usize = 400;
const STRIDE: usize = 100;
const PACKETS: u32 = 4;

/// Short enough for a test, and longer than the pauses within a test.
const SOON: Duration = Duration::from_millis(100);
const NEVER: Duration = Duration::MAX;

fn receiver(takeover_after: Duration) -> Udp {
    let udp = Udp::bind("127.0.0.1:0").unwrap();
    udp.takeover_after(takeover_after).timeout(Duration::from_secs(60))
}

/// A sender whose frames differ from those of all others.
struct Sender {
    socket: UdpSocket,
    stream: u32,
    salt: u64,
    cut: Cut,
}

impl Sender {
    fn new(udp: &Udp, stream: u32, salt: u64) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(udp.address().unwrap()).unwrap();
        Self { socket, stream, salt, cut: Cut::new(BYTES, STRIDE).unwrap() }
    }

    /// The sender restarts with the same port and stream number.
    fn again(&self, salt: u64) -> Self {
        Self { socket: self.socket.try_clone().unwrap(), salt, ..*self }
    }

    fn content(&self, frame: u64) -> Vec<u8> {
        content(frame + 40 * self.salt, BYTES)
    }

    fn packet(&self, kind: Kind, frame: u64) -> Vec<u8> {
        let mut bytes =
            Header { kind, stream: self.stream, frame, cut: self.cut, ports: Ports::default() }
                .encode()
                .to_vec();
        if let Kind::Part(packet) = kind {
            bytes.extend_from_slice(&self.content(frame)[self.cut.range(packet)]);
        }
        bytes
    }

    fn part(&self, frame: u64, packet: u32) {
        self.socket.send(&self.packet(Kind::Part(packet), frame)).unwrap();
    }

    fn frame(&self, frame: u64) {
        (0..self.cut.packets()).for_each(|packet| self.part(frame, packet));
    }

    fn end(&self, frames: u64) {
        self.socket.send(&self.packet(Kind::End, frames)).unwrap();
    }
}

/// Receives once, and returns which sender the frame is from. A frame is always from one sender alone.
fn receive(udp: &mut Udp, senders: &[&Sender]) -> (Arrival, Option<u64>) {
    let mut memory = vec![GARBAGE; BYTES];
    let arrival = udp.receive(&mut memory).unwrap();
    let (Arrival::Whole { frame } | Arrival::Holes { frame, .. }) = arrival else {
        return (arrival, None);
    };
    let is_of = |sender: &&&Sender| {
        let wanted = sender.content(frame);
        let mut parts = (0..sender.cut.packets()).map(|packet| sender.cut.range(packet));
        let holes = matches!(arrival, Arrival::Holes { .. });
        parts.all(|part| {
            let hole = holes && memory[part.clone()].iter().all(|&byte| byte == 0);
            hole || memory[part.clone()] == wanted[part]
        })
    };
    let found: Vec<u64> = senders.iter().filter(is_of).map(|sender| sender.salt).collect();
    assert_eq!(found.len(), 1, "{arrival:?} is of one sender: {found:?}");
    (arrival, Some(found[0]))
}

/// The next arrival that is not `Silence`, which a busy machine may cause.
fn next(udp: &mut Udp, senders: &[&Sender]) -> (Arrival, Option<u64>) {
    let mut calls = (0..100).map(|_| receive(udp, senders));
    calls.find(|(arrival, _)| *arrival != Arrival::Silence).expect("something comes")
}

/// Listens until the stream has been idle for this long.
fn be_quiet(udp: &mut Udp, time: Duration) {
    while udp.idle < time {
        assert_eq!(receive(udp, &[]).0, Arrival::Silence);
    }
}

/// Sends frames until this many have arrived complete. Returns all other arrivals, and how many frames were sent.
fn send_until_heard(
    udp: &mut Udp,
    sender: &Sender,
    others: &[&Sender],
    many: usize,
) -> (Vec<(Arrival, Option<u64>)>, u64) {
    let all: Vec<&Sender> = others.iter().copied().chain([sender]).collect();
    let (mut heard, mut before) = (Vec::new(), Vec::new());
    for frame in 0..1000 {
        sender.frame(frame);
        match receive(udp, &all) {
            (Arrival::Silence, _) => {}
            (Arrival::Whole { frame }, Some(salt)) if salt == sender.salt => heard.push(frame),
            other => before.push(other),
        }
        if heard.len() == many {
            assert!(heard.windows(2).all(|two| two[0] + 1 == two[1]), "{heard:?}");
            return (before, frame + 1);
        }
    }
    panic!("deaf: {:?}", udp.meter().counts());
}

/// Checks that every packet sent appears in exactly one counter.
#[track_caller]
fn assert_all_counted(udp: &mut Udp, senders: &[&Sender], packets: u64) {
    let counted = |udp: &Udp| {
        let UdpCounts { packets, stray_packets, late_packets, duplicate_packets, .. } =
            udp.meter().counts();
        packets + stray_packets + late_packets + duplicate_packets
    };
    for _ in 0..100 {
        if counted(udp) == packets && receive(udp, senders).0 == Arrival::Silence {
            break;
        }
        receive(udp, senders);
    }
    assert_eq!(counted(udp), packets, "{:?}", udp.meter().counts());
}

/// The old sender died in the middle of a frame. The new one has another port, and another stream number or the same.
#[test]
fn a_sender_that_crashed_and_began_again_is_heard() {
    for stream in [9, 10] {
        let mut udp = receiver(SOON);
        let old = Sender::new(&udp, 9, 0);
        (0..5).for_each(|frame| old.frame(frame));
        (0..2).for_each(|packet| old.part(5, packet));
        for frame in 0..5 {
            assert_eq!(next(&mut udp, &[&old]), (whole(frame), Some(0)));
        }
        let new = Sender::new(&udp, stream, 1);
        let (before, sent) = send_until_heard(&mut udp, &new, &[&old], 5);
        let half = Arrival::Holes { frame: 5, missing: 2 };
        assert_eq!(before, [(half, Some(0))], "the old stream's last frame is told, once");
        let counts = udp.meter().counts();
        assert_eq!((counts.takeovers, counts.frames, counts.incomplete_frames), (1, 10, 1));
        assert_eq!((counts.lost_packets, counts.malformed_packets), (2, 0), "{counts:?}");
        assert_all_counted(&mut udp, &[&old, &new], 22 + 4 * sent);
        let end = sent;
        new.end(end);
        while receive(&mut udp, &[&new]).0 != Arrival::End {}
    }
}

#[test]
fn a_sender_that_begins_again_at_the_same_port_and_number_is_heard() {
    let mut udp = receiver(SOON);
    let old = Sender::new(&udp, 9, 0);
    (1000..1003).for_each(|frame| old.frame(frame));
    (1000..1003).for_each(|frame| assert_eq!(next(&mut udp, &[&old]).0, whole(frame)));
    let new = old.again(1);
    let (before, sent) = send_until_heard(&mut udp, &new, &[&old], 5);
    assert_eq!(before, []);
    let counts = udp.meter().counts();
    assert_eq!((counts.takeovers, counts.frames, counts.incomplete_frames), (1, 8, 0));
    assert!(counts.late_packets > 0 && counts.stray_packets == 0, "{counts:?}");
    assert_all_counted(&mut udp, &[&old, &new], 12 + 4 * sent);
}

/// A new sender may use another packet size. Its packets do not fit the old positions.
#[test]
fn a_stream_of_larger_packets_takes_over() {
    let mut udp = receiver(SOON);
    let old = Sender::new(&udp, 9, 0);
    old.frame(0);
    assert_eq!(next(&mut udp, &[&old]).0, whole(0));
    let cut = Cut::new(BYTES, 250).unwrap();
    let new = Sender { cut, ..Sender::new(&udp, 10, 1) };
    assert_eq!(udp.current_stream(), Some(9));
    send_until_heard(&mut udp, &new, &[&old], 3);
    assert_eq!((udp.meter().counts().takeovers, udp.current_stream()), (1, Some(10)));
}

/// A stray packet before a stream does not cost the stream any frame.
#[test]
fn one_stray_packet_before_the_first_stream_is_not_waited_for() {
    let mut udp = receiver(NEVER);
    let (stray, sender) = (Sender::new(&udp, 77, 1), Sender::new(&udp, 9, 0));
    stray.part(3, 1);
    assert_eq!(receive(&mut udp, &[&stray]).0, Arrival::Silence);
    be_quiet(&mut udp, SLICE);
    (0..142).for_each(|frame| sender.frame(frame));
    let hole = Arrival::Holes { frame: 3, missing: 3 };
    assert_eq!(next(&mut udp, &[&stray]), (hole, Some(1)));
    for frame in 0..142 {
        assert_eq!(next(&mut udp, &[&stray, &sender]), (whole(frame), Some(0)));
    }
    let counts = udp.meter().counts();
    assert_eq!((counts.frames, counts.incomplete_frames, counts.takeovers), (142, 1, 1));
    assert_all_counted(&mut udp, &[&sender], 1 + 142 * 4);
    // A stream that follows the stray at once is received as well.
    let mut udp = receiver(NEVER);
    let (stray, sender) = (Sender::new(&udp, 77, 1), Sender::new(&udp, 9, 0));
    stray.part(3, 1);
    let (_, sent) = send_until_heard(&mut udp, &sender, &[&stray], 10);
    assert_all_counted(&mut udp, &[&stray, &sender], 1 + 4 * sent);
}

/// After a pause a stray takes over, and the original stream takes over from it.
#[test]
fn one_stray_packet_in_a_pause_costs_little() {
    let mut udp = receiver(SOON);
    let (stray, sender) = (Sender::new(&udp, 77, 1), Sender::new(&udp, 9, 0));
    sender.frame(0);
    assert_eq!(next(&mut udp, &[&sender]).0, whole(0));
    be_quiet(&mut udp, SOON);
    stray.part(0, 0);
    let (_, sent) = send_until_heard(&mut udp, &sender, &[&stray], 10);
    assert_eq!(udp.current_stream(), Some(9), "the last frame's, although another was heard");
    let counts = udp.meter().counts();
    assert_eq!((counts.takeovers, counts.frames, counts.incomplete_frames), (2, 11, 1));
    assert_all_counted(&mut udp, &[&stray, &sender], 5 + 4 * sent);
}

#[test]
fn strays_do_not_disturb_a_live_stream() {
    let mut udp = receiver(SOON);
    let sender = Sender::new(&udp, 9, 0);
    for frame in 0..50 {
        (0..2).for_each(|packet| sender.part(frame, packet));
        // Another number, and the same number from another port.
        for stream in [100 + frame as u32, 9] {
            let stray = Sender::new(&udp, stream, 1);
            stray.part(frame, 2);
            stray.end(frame);
        }
        (2..PACKETS).for_each(|packet| sender.part(frame, packet));
        assert_eq!(next(&mut udp, &[&sender]), (whole(frame), Some(0)));
    }
    let counts = udp.meter().counts();
    assert_eq!((counts.takeovers, counts.stray_packets, counts.packets), (0, 200, 200));
}

/// One of two senders wins, whatever their stream numbers. All packets of the other are counted.
#[test]
fn of_two_senders_that_are_live_one_is_received() {
    for streams in [[9, 10], [9, 9]] {
        let mut udp = receiver(NEVER);
        let [first, second] = streams.map(|stream| Sender::new(&udp, stream, stream.into()));
        let second = Sender { salt: 1, ..second };
        for frame in 0..50 {
            for packet in 0..PACKETS {
                first.part(frame, packet);
                second.part(frame, packet);
            }
            assert_eq!(next(&mut udp, &[&first, &second]), (whole(frame), Some(9)));
        }
        assert_all_counted(&mut udp, &[&first, &second], 400);
        let counts = udp.meter().counts();
        assert_eq!((counts.frames, counts.stray_packets, counts.takeovers), (50, 200, 0));
    }
}

/// Two senders at once, with pauses of any length: no frame mixes both, and every packet is counted.
#[test]
fn senders_beside_each_other_never_share_a_frame() {
    let mut udp = receiver(SLICE);
    let senders = [0, 1].map(|salt| Sender::new(&udp, 9, salt));
    let [first, second] = &senders;
    let done = AtomicBool::new(false);
    let sent = std::thread::scope(|threads| {
        let playing = senders.each_ref().map(|sender| {
            let done = &done;
            threads.spawn(move || {
                let mut frames = 0;
                while !done.load(Ordering::Relaxed) {
                    sender.frame(frames);
                    frames += 1;
                    // Occasionally longer than a stream may be quiet.
                    let pause = if frames % 20 == 7 + sender.salt { 120 } else { 1 };
                    std::thread::sleep(Duration::from_millis(pause));
                }
                frames
            })
        });
        let mut last = [None; 2];
        for _ in 0..200 {
            if let (Arrival::Whole { frame }, Some(salt)) = receive(&mut udp, &[first, second]) {
                let before = last[salt as usize].replace(frame);
                assert!(before.is_none_or(|before| before < frame), "{before:?} before {frame}");
            }
        }
        done.store(true, Ordering::Relaxed);
        playing.map(|playing| playing.join().unwrap()).iter().sum::<u64>()
    });
    assert_all_counted(&mut udp, &[first, second], 4 * sent);
    let counts = udp.meter().counts();
    assert_eq!((counts.kernel_drops, counts.malformed_packets), (0, 0), "{counts:?}");
}

/// A pause is no end: received packets are kept, and the stream continues where it was.
#[test]
fn a_sender_that_paused_goes_on() {
    let mut udp = receiver(SOON);
    let sender = Sender::new(&udp, 9, 0);
    (0..3).for_each(|packet| sender.part(0, packet));
    assert_eq!(receive(&mut udp, &[&sender]).0, Arrival::Silence);
    be_quiet(&mut udp, 2 * SOON);
    sender.part(0, 3);
    sender.frame(1);
    for frame in 0..2 {
        assert_eq!(next(&mut udp, &[&sender]), (whole(frame), Some(0)));
    }
    let counts = udp.meter().counts();
    assert_eq!((counts.takeovers, counts.packets, counts.lost_packets), (0, 8, 0));
}

/// Time in which the program does not listen is no silence: the stream's packets wait behind another's.
#[test]
fn a_receiver_that_was_busy_keeps_its_stream() {
    let mut udp = receiver(SOON);
    let (sender, other) = (Sender::new(&udp, 9, 0), Sender::new(&udp, 10, 1));
    sender.frame(0);
    assert_eq!(next(&mut udp, &[&sender]).0, whole(0));
    std::thread::sleep(2 * SOON);
    other.frame(0);
    sender.frame(1);
    assert_eq!(next(&mut udp, &[&sender, &other]), (whole(1), Some(0)));
    assert_eq!(udp.meter().counts().stray_packets, 4);
}

/// A stream number can be reused some time after its end. Before that, packets with it count as late.
#[test]
fn a_stream_may_have_the_number_of_one_that_ended() {
    let mut udp = receiver(SOON);
    let old = Sender::new(&udp, 9, 0);
    old.frame(0);
    old.end(1);
    assert_eq!(next(&mut udp, &[&old]).0, whole(0));
    assert_eq!(next(&mut udp, &[&old]).0, Arrival::End);
    let new = old.again(1);
    let (before, sent) = send_until_heard(&mut udp, &new, &[&old], 3);
    assert_eq!(before, []);
    let counts = udp.meter().counts();
    assert_eq!((counts.takeovers, counts.stray_packets), (0, 0), "{counts:?}");
    assert!(counts.late_packets > 0, "{counts:?}");
    assert_all_counted(&mut udp, &[&new], 4 + 4 * sent);
}

/// When another stream takes over, every open frame of a wide window is returned.
#[test]
fn every_frame_that_had_begun_is_told() {
    let mut udp = receiver(SOON).window(64);
    let old = Sender::new(&udp, 9, 0);
    (0..10).for_each(|frame| old.part(frame, 0));
    let new = Sender::new(&udp, 10, 1);
    let (before, sent) = send_until_heard(&mut udp, &new, &[&old], 2);
    let half = |frame| (Arrival::Holes { frame, missing: 3 }, Some(0));
    assert_eq!(before, Vec::from_iter((0..10).map(half)));
    let counts = udp.meter().counts();
    assert_eq!((counts.incomplete_frames, counts.lost_packets), (10, 30));
    assert_all_counted(&mut udp, &[&new], 10 + 4 * sent);
}
