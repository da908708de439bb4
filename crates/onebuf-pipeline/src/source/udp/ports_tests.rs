//! Streams that are sent from several ports: one sender, and no port more than its packets declare.

use super::{tests::content, *};
use crate::{
    net::packet::{Cut, Header, Kind, Ports, StreamId},
    sink::{self, Faults, Sink},
};

const BYTES: usize = 400;

/// Sockets with consecutive ports, and one with another port, all connected to the receiver.
struct Crowd {
    udp: Udp,
    owners: Vec<UdpSocket>,
    other: UdpSocket,
    ports: Ports,
    cut: Cut,
}

impl Crowd {
    fn new(many: usize) -> Self {
        let udp = Udp::bind("127.0.0.1:0").unwrap();
        let to = udp.address().unwrap();
        let owners = (0..100).find_map(|_| {
            let first = UdpSocket::bind("127.0.0.1:0").unwrap();
            let port = first.local_addr().unwrap().port();
            let bind = |more| UdpSocket::bind(("127.0.0.1", port.checked_add(more)?)).ok();
            let mut owners = vec![first];
            owners.extend((1..many as u16).map(bind).collect::<Option<Vec<_>>>()?);
            Some(owners)
        });
        let owners = owners.unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        owners.iter().chain([&other]).for_each(|socket| socket.connect(to).unwrap());
        let ports = Ports::new(owners[0].local_addr().unwrap().port(), many).unwrap();
        Self { udp, owners, other, ports, cut: Cut::new(BYTES, 100).unwrap() }
    }

    fn part(&self, socket: &UdpSocket, ports: Ports, packet: u32, salt: u64) {
        let header = Header { kind: Kind::Part(packet), stream: 3, frame: 0, cut: self.cut, ports };
        let all = content(salt, BYTES);
        socket.send(&[&header.encode(), &all[self.cut.range(packet)]].concat()).unwrap();
    }
}

fn next(udp: &mut Udp, frame: &mut [u8]) -> Arrival {
    loop {
        match udp.receive(frame).unwrap() {
            Arrival::Silence => {}
            arrival => return arrival,
        }
    }
}

#[test]
fn a_port_that_was_not_declared_cannot_send_for_the_stream() {
    let mut all = Crowd::new(2);
    all.part(&all.owners[0], all.ports, 0, 0);
    for packet in 0..4 {
        // The other port claims the owner's ports, its own range, and no range at all.
        all.part(&all.other, all.ports, packet, 7);
        let own = Ports::new(all.other.local_addr().unwrap().port(), 2).unwrap_or_default();
        all.part(&all.other, own, packet, 7);
        all.part(&all.other, Ports::default(), packet, 7);
    }
    // A part of the sender's own ports is another sender, too.
    all.part(&all.owners[1], Ports::default(), 1, 7);
    for packet in 1..4 {
        all.part(&all.owners[packet as usize % 2], all.ports, packet, 0);
    }
    let mut frame = vec![0; BYTES];
    assert_eq!(next(&mut all.udp, &mut frame), Arrival::Whole { frame: 0 });
    assert_eq!(frame, content(0, BYTES));
    let counts = all.udp.meter().counts();
    assert_eq!((counts.packets, counts.malformed_packets, counts.stray_packets), (4, 4, 9));
}

#[test]
fn threads_send_one_stream() {
    for threads in [1, 2, 5, 64] {
        let mut udp = Udp::bind("127.0.0.1:0").unwrap();
        let sender = sink::Udp::connect(udp.address().unwrap()).unwrap().threads(threads).unwrap();
        let mut sender = sender.payload(300).unwrap();
        let mut came = vec![0; 10_001];
        for number in 0..3 {
            let frame = content(number, 10_001);
            sender.take(&frame, number).unwrap();
            assert_eq!(next(&mut udp, &mut came), Arrival::Whole { frame: number });
            assert!(came == frame, "frame {number} of {threads} threads");
        }
        sender.finish().unwrap();
        assert_eq!(next(&mut udp, &mut came), Arrival::End);
        let (sent, counts) = (sender.sent(), udp.meter().counts());
        assert_eq!((sent.packets, sent.bytes, counts.packets), (3 * 34, 3 * 10_001, 3 * 34));
        assert_eq!((counts.stray_packets, counts.malformed_packets), (0, 0));
    }
}

#[test]
fn faults_and_rates_are_those_of_all_threads_together() {
    let mut udp = Udp::bind("127.0.0.1:0").unwrap();
    let faults = Faults { lose: 0.1, duplicate: 0.1, reorder: 3, seed: 5 };
    let sender = sink::Udp::connect(udp.address().unwrap()).unwrap().faults(faults).payload(100);
    let mut sender = sender.unwrap().rate(1e6).unwrap().threads(4).unwrap();
    let (clock, frame) = (Instant::now(), content(1, 20_000));
    sender.take(&frame, 0).unwrap();
    // Each lane's last burst leaves without a wait after it.
    assert!(clock.elapsed() >= Duration::from_millis(14), "20 kB at 1 MB/s, less a tenth");
    sender.finish().unwrap();
    let mut came = vec![0; 20_000];
    let Arrival::Holes { missing, .. } = next(&mut udp, &mut came) else { panic!("no holes") };
    let sent = sender.sent();
    assert_eq!(u64::from(missing), sent.lost_packets);
    assert!(sent.duplicate_packets > 0 && sent.lost_packets > 0, "{sent:?}");
}

#[test]
fn streams_differ_by_number_sender_and_ports() {
    let header = |stream, ports| {
        let cut = Cut::new(BYTES, 100).unwrap();
        Header { kind: Kind::Part(0), stream, frame: 0, cut, ports }
    };
    let from = |port| crate::net::mmsg::Origin::default().with_port(port);
    let (two, four) = (Ports::new(5000, 2).unwrap(), Ports::new(5000, 4).unwrap());
    let id = |stream, ports, port| StreamId::of(&header(stream, ports), from(port));
    assert_eq!(id(1, two, 5000), id(1, two, 5001));
    for (ports, port) in [(four, 5000), (Ports::default(), 5000)] {
        assert_ne!(id(1, two, 5000), id(1, ports, port));
    }
    assert_ne!(id(1, two, 5000), id(2, two, 5000));
    assert_eq!(id(1, two, 5002), None);
}
