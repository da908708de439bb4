//! The packet format: a header of 40 bytes and a part of a frame.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `1BUF` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | kind: 0 part of a frame, 1 end of the stream |
//! | 6 | 2 | stride: the payload's bytes in every packet but a frame's last |
//! | 8 | 4 | stream |
//! | 12 | 4 | packet: which part of the frame, from 0 |
//! | 16 | 4 | packets of a frame |
//! | 20 | 2 | the sender's first port, or 0 |
//! | 22 | 1 | how many consecutive ports it sends from, 2 to 64, or 0 for one port |
//! | 23 | 1 | 0 |
//! | 24 | 8 | frame; at the end, how many frames there were |
//! | 32 | 8 | a frame's bytes |
//!
//! All fields are little-endian. Everything received is validated here and consistent afterwards.

use super::mmsg::Origin;

/// The header's size in bytes.
pub(crate) const HEADER: usize = 40;

/// The longest payload that fits a UDP packet over IPv4.
pub(crate) const MOST: usize = 65_507 - HEADER;

const MAGIC: [u8; 4] = *b"1BUF";
const VERSION: u8 = 1;

/// Frame numbers above this are rejected, so that arithmetic on them cannot overflow.
pub(crate) const MOST_FRAMES: u64 = 1 << 62;

/// How a frame is divided into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    frame_bytes: u64,
    stride: u16,
    packets: u32,
}

impl Cut {
    /// `None` if a frame of this size cannot be divided in this way.
    pub fn new(frame_bytes: usize, stride: usize) -> Option<Self> {
        let packets = u32::try_from(frame_bytes.div_ceil(stride.max(1))).ok()?;
        let (frame_bytes, stride) = (frame_bytes as u64, u16::try_from(stride).ok()?);
        Some(Self { frame_bytes, stride, packets }).filter(|cut| cut.fits())
    }

    /// Whether the fields are consistent. Checked for each packet, so it avoids a division.
    fn fits(self) -> bool {
        let (stride, packets) = (u64::from(self.stride), u64::from(self.packets));
        (1..=MOST as u64).contains(&stride)
            && packets > 0
            && ((packets - 1) * stride..packets * stride)
                .contains(&self.frame_bytes.wrapping_sub(1))
            && usize::try_from(self.frame_bytes).is_ok()
    }

    pub fn frame_bytes(self) -> usize {
        self.frame_bytes as usize
    }

    pub fn stride(self) -> usize {
        usize::from(self.stride)
    }

    /// Packets per frame.
    pub fn packets(self) -> u32 {
        self.packets
    }

    /// The payload size of one packet.
    pub fn len(self, packet: u32) -> usize {
        let offset = u64::from(packet) * u64::from(self.stride);
        self.frame_bytes.saturating_sub(offset).min(u64::from(self.stride)) as usize
    }

    /// The byte range of one packet's payload in its frame.
    pub fn range(self, packet: u32) -> std::ops::Range<usize> {
        let offset = packet as usize * self.stride();
        offset..offset + self.len(packet)
    }
}

/// The most ports that one stream may be sent from.
pub(crate) const MOST_PORTS: usize = 64;

/// The consecutive ports that a stream is sent from, as its packets declare them. All zero: the one port of the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ports {
    first: u16,
    many: u8,
}

impl Ports {
    /// `many` ports from `first` on, at least two. `None` if there are no such ports.
    pub fn new(first: u16, many: usize) -> Option<Self> {
        let many = u8::try_from(many).ok().filter(|&many| many > 1)?;
        Some(Self { first, many }).filter(|ports| ports.fit())
    }

    fn fit(self) -> bool {
        let several = (2..=MOST_PORTS as u8).contains(&self.many)
            && self.first > 0
            && self.first.checked_add(u16::from(self.many) - 1).is_some();
        several || self == Self::default()
    }

    /// The port that stands for the stream, if a packet from `port` may be one of it.
    pub fn owner_of(self, port: u16) -> Option<u16> {
        match self.many {
            0 => Some(port),
            many => {
                let distance = port.checked_sub(self.first)?;
                (distance < u16::from(many)).then_some(self.first)
            }
        }
    }
}

/// What makes a stream: its number, and its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamId {
    pub number: u32,
    /// The sender's address, and its first port if it has several.
    origin: Origin,
    ports: Ports,
}

impl StreamId {
    /// The stream of a packet. `None` if the packet declares ports that it was not sent from.
    pub fn of(header: &Header, from: Origin) -> Option<Self> {
        let origin = from.with_port(header.ports.owner_of(from.port())?);
        Some(Self { number: header.stream, origin, ports: header.ports })
    }
}

/// Which of `shares` parts of a frame a packet belongs to. Each part is one range of packets; their sizes differ by one at
/// most.
pub(crate) fn share_of(packet: u32, packets: u32, shares: usize) -> usize {
    (u64::from(packet) * shares as u64 / u64::from(packets.max(1))) as usize
}

/// The packets of one of `shares` parts of a frame.
pub(crate) fn share(number: usize, packets: u32, shares: usize) -> std::ops::Range<u32> {
    let edge = |number: usize| (number as u64 * u64::from(packets)).div_ceil(shares as u64) as u32;
    edge(number)..edge(number + 1)
}

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The part of a frame with this number.
    Part(u32),
    /// The end of the stream. The header's frame number is the number of frames sent.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub stream: u32,
    pub frame: u64,
    pub cut: Cut,
    pub ports: Ports,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER] {
        let (kind, packet) = match self.kind {
            Kind::Part(packet) => (0, packet),
            Kind::End => (1, 0),
        };
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&[VERSION, kind]);
        bytes[6..8].copy_from_slice(&self.cut.stride.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.stream.to_le_bytes());
        bytes[12..16].copy_from_slice(&packet.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.cut.packets().to_le_bytes());
        bytes[20..22].copy_from_slice(&self.ports.first.to_le_bytes());
        bytes[22] = self.ports.many;
        bytes[24..32].copy_from_slice(&self.frame.to_le_bytes());
        bytes[32..].copy_from_slice(&self.cut.frame_bytes.to_le_bytes());
        bytes
    }

    /// Decodes the header of a packet with `payload` bytes of payload. `None` if any field is inconsistent.
    pub fn decode(bytes: &[u8; HEADER], payload: usize) -> Option<Self> {
        Self::read(bytes).filter(|(_, wanted)| *wanted == payload).map(|(header, _)| header)
    }

    /// Decodes a header, and returns how many bytes of payload must follow it.
    pub fn read(bytes: &[u8; HEADER]) -> Option<(Self, usize)> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let stride = u16::from_le_bytes([bytes[6], bytes[7]]);
        let cut = Cut { frame_bytes: long(32), stride, packets: word(16) };
        let (stream, packet, frame) = (word(8), word(12), long(24));
        let ports = Ports { first: u16::from_le_bytes([bytes[20], bytes[21]]), many: bytes[22] };
        let known = bytes[..4] == MAGIC && bytes[4] == VERSION && bytes[23] == 0;
        if !known || !cut.fits() || !ports.fit() || frame > MOST_FRAMES {
            return None;
        }
        let (kind, wanted) = match bytes[5] {
            0 if packet < cut.packets() => (Kind::Part(packet), cut.len(packet)),
            1 if packet == 0 => (Kind::End, 0),
            _ => return None,
        };
        Some((Self { kind, stream, frame, cut, ports }, wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_is_cut_without_a_rest() {
        let cut = Cut::new(1000, 300).unwrap();
        let ranges: Vec<_> = (0..cut.packets()).map(|packet| cut.range(packet)).collect();
        assert_eq!(ranges, [0..300, 300..600, 600..900, 900..1000]);
        assert_eq!(
            (Cut::new(900, 300).unwrap().packets(), Cut::new(1, 300).unwrap().packets()),
            (3, 1)
        );
        assert_eq!((Cut::new(0, 300), Cut::new(10, 0), Cut::new(10, MOST + 1)), (None, None, None));
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let cut = Cut::new(1000, 300).unwrap();
        let header =
            Header { kind: Kind::Part(3), stream: 7, frame: 5, cut, ports: Ports::default() };
        let good = header.encode();
        assert_eq!(Header::decode(&good, 100), Some(header));
        assert_eq!((Header::decode(&good, 99), Header::decode(&good, 300)), (None, None));
        // Magic, version, kind, stride, packet, packets, reserved, frame, bytes: one flipped bit each.
        for (at, bit) in [
            (0, 1),
            (4, 2),
            (5, 1),
            (6, 1),
            (12, 4),
            (16, 1),
            (20, 1),
            (22, 1),
            (23, 1),
            (31, 128),
            (33, 1),
        ] {
            let mut bad = good;
            bad[at] ^= bit;
            assert_eq!(Header::decode(&bad, 100), None, "byte {at}");
        }
        let end = Header { kind: Kind::End, ..header };
        assert_eq!(Header::decode(&end.encode(), 0), Some(end));
        assert_eq!(Header::decode(&end.encode(), 1), None);
    }

    #[test]
    fn ports_are_a_range_that_exists() {
        let four = Ports::new(5000, 4).unwrap();
        let owners = [4999, 5000, 5003, 5004].map(|port| four.owner_of(port));
        assert_eq!(owners, [None, Some(5000), Some(5000), None]);
        assert_eq!(Ports::default().owner_of(7), Some(7));
        for (first, many) in [(5000, 0), (5000, 1), (0, 4), (65_533, 4), (5000, MOST_PORTS + 1)] {
            assert_eq!(Ports::new(first, many), None, "{many} from {first}");
        }
        assert!(Ports::new(65_532, 4).is_some());
    }

    /// Decoding a header allocates nothing.
    #[cfg(not(any(onebuf_shuttle, miri)))]
    #[test]
    fn fuzz_packets() {
        use onebuf_hal::testing::fuzz::{Bound, Form, Target};
        let cut = Cut::new(1000, 300).unwrap();
        let part =
            Header { kind: Kind::Part(3), stream: 7, frame: 5, cut, ports: Ports::default() };
        let end = Header { kind: Kind::End, ..part };
        let seeds = [[&part.encode()[..], &[0; 100]].concat(), end.encode().to_vec()];
        Target {
            name: "packets",
            bound: Bound { per_byte: 0, fixed: 0 },
            input: &|random, most| Form::Bytes.changed(random, &seeds, most),
            parse: &|packet| {
                let head = packet.split_first_chunk();
                head.is_some_and(|(head, payload)| Header::decode(head, payload.len()).is_some())
            },
        }
        .run();
    }

    proptest! {
        #[test]
        fn heads_come_back(stream: u32, frame in 0..=MOST_FRAMES, bytes in 1usize..1 << 40, stride in 1usize..=MOST, part: u32, first in 1u16..65_000, many in 1usize..=MOST_PORTS) {
            let ports = Ports::new(first, many).unwrap_or_default();
            let Some(cut) = Cut::new(bytes, stride) else { return Ok(()) };
            let part = part % cut.packets();
            let header = Header { kind: Kind::Part(part), stream, frame, cut, ports };
            prop_assert_eq!(Header::decode(&header.encode(), cut.len(part)), Some(header));
            prop_assert!(cut.range(part).end <= bytes && !cut.range(part).is_empty());
        }

        #[test]
        fn shares_are_ranges_that_cover_a_frame(packets in 1u32..10_000, shares in 1usize..=MOST_PORTS) {
            let all: Vec<u32> = (0..shares).flat_map(|number| share(number, packets, shares)).collect();
            prop_assert!(all.iter().copied().eq(0..packets));
            for number in 0..shares {
                prop_assert!(share(number, packets, shares).all(|packet| share_of(packet, packets, shares) == number));
            }
        }

        #[test]
        fn anything_is_read_or_refused(bytes: [u8; 32], payload in 0usize..70_000, known: bool) {
            let mut head = [0; HEADER];
            head[8..].copy_from_slice(&bytes);
            if known {
                head[..8].copy_from_slice(b"1BUF\x01\0\0\x04");
            }
            if let Some(Header { kind: Kind::Part(part), cut, .. }) = Header::decode(&head, payload) {
                prop_assert!(cut.range(part).end <= cut.frame_bytes() && cut.len(part) == payload);
            }
        }
    }
}
