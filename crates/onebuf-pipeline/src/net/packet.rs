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
//! | 20 | 4 | 0 |
//! | 24 | 8 | frame; at the end, how many frames there were |
//! | 32 | 8 | a frame's bytes |
//!
//! All fields are little-endian. Everything received is validated here and consistent afterwards.

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
        bytes[24..32].copy_from_slice(&self.frame.to_le_bytes());
        bytes[32..].copy_from_slice(&self.cut.frame_bytes.to_le_bytes());
        bytes
    }

    /// Decodes the header of a packet with `payload` bytes of payload. `None` if any field is inconsistent.
    pub fn decode(bytes: &[u8; HEADER], payload: usize) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let stride = u16::from_le_bytes([bytes[6], bytes[7]]);
        let cut = Cut { frame_bytes: long(32), stride, packets: word(16) };
        let (stream, packet, frame) = (word(8), word(12), long(24));
        let known = bytes[..4] == MAGIC && bytes[4] == VERSION && word(20) == 0;
        if !known || !cut.fits() || frame > MOST_FRAMES {
            return None;
        }
        let (kind, wanted) = match bytes[5] {
            0 if packet < cut.packets() => (Kind::Part(packet), cut.len(packet)),
            1 if packet == 0 => (Kind::End, 0),
            _ => return None,
        };
        (payload == wanted).then_some(Self { kind, stream, frame, cut })
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
        let header = Header { kind: Kind::Part(3), stream: 7, frame: 5, cut };
        let good = header.encode();
        assert_eq!(Header::decode(&good, 100), Some(header));
        assert_eq!((Header::decode(&good, 99), Header::decode(&good, 300)), (None, None));
        // Magic, version, kind, stride, packet, packets, reserved, frame, bytes: one flipped bit each.
        for (at, bit) in
            [(0, 1), (4, 2), (5, 1), (6, 1), (12, 4), (16, 1), (20, 1), (31, 128), (33, 1)]
        {
            let mut bad = good;
            bad[at] ^= bit;
            assert_eq!(Header::decode(&bad, 100), None, "byte {at}");
        }
        let end = Header { kind: Kind::End, ..header };
        assert_eq!(Header::decode(&end.encode(), 0), Some(end));
        assert_eq!(Header::decode(&end.encode(), 1), None);
    }

    /// Decoding a header allocates nothing.
    #[cfg(not(any(onebuf_shuttle, miri)))]
    #[test]
    fn fuzz_packets() {
        use onebuf_hal::testing::fuzz::{Bound, Form, Target};
        let cut = Cut::new(1000, 300).unwrap();
        let part = Header { kind: Kind::Part(3), stream: 7, frame: 5, cut };
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
        fn heads_come_back(stream: u32, frame in 0..=MOST_FRAMES, bytes in 1usize..1 << 40, stride in 1usize..=MOST, part: u32) {
            let Some(cut) = Cut::new(bytes, stride) else { return Ok(()) };
            let part = part % cut.packets();
            let header = Header { kind: Kind::Part(part), stream, frame, cut };
            prop_assert_eq!(Header::decode(&header.encode(), cut.len(part)), Some(header));
            prop_assert!(cut.range(part).end <= bytes && !cut.range(part).is_empty());
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
