//! The records that go before messages and frames: 64 bytes, every field checked.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `1bMP` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | kind |
//! | 6 | 2 | flags |
//! | 8 | 4 | channel: the tag of a message, the number of a stream or corner turn |
//! | 12 | 4 | extra |
//! | 16 | 8 | number: of a frame or of a collective call |
//! | 24 | 8 | bytes of the message that belongs to the record |
//! | 32 | 24 | three words, by kind |
//! | 56 | 8 | checksum of the other fields |
//!
//! All fields are little-endian.

use crate::checksum::checksum;
use onebuf_hal::{Error, Result};

/// The size of a record.
pub(crate) const RECORD: usize = 64;

const MAGIC: [u8; 4] = *b"1bMP";
const VERSION: u8 = 1;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A message between two ranks.
    Message = 1,
    /// A call that all ranks make.
    Collective = 2,
    /// One end of a stream or corner turn describes itself.
    Open = 3,
    /// A frame.
    Frame = 4,
    /// There are no more frames.
    End = 5,
    /// The receiver of a stream has room for more frames.
    Credit = 6,
    /// The other end stops before the end of the stream.
    Stop = 7,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Message,
        Kind::Collective,
        Kind::Open,
        Kind::Frame,
        Kind::End,
        Kind::Credit,
        Kind::Stop,
    ];
}

/// The contents of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub kind: Kind,
    pub flags: u16,
    pub channel: u32,
    pub extra: u32,
    pub number: u64,
    pub bytes: u64,
    pub words: [u64; 3],
}

impl Record {
    pub fn new(kind: Kind, channel: u32) -> Self {
        Self { kind, flags: 0, channel, extra: 0, number: 0, bytes: 0, words: [0; 3] }
    }

    pub fn encode(&self) -> [u8; RECORD] {
        let mut out = [0; RECORD];
        out[..4].copy_from_slice(&MAGIC);
        [out[4], out[5]] = [VERSION, self.kind as u8];
        out[6..8].copy_from_slice(&self.flags.to_le_bytes());
        out[8..12].copy_from_slice(&self.channel.to_le_bytes());
        out[12..16].copy_from_slice(&self.extra.to_le_bytes());
        let [a, b, c] = self.words;
        for (at, word) in (16..).step_by(8).zip([self.number, self.bytes, a, b, c]) {
            out[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let check = checksum(&out[..RECORD - 8]);
        out[RECORD - 8..].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// Decodes a record of `rank`.
    ///
    /// # Errors
    /// [`Error::PeerRefused`] for bytes that are no record; [`Error::Unsupported`] for another version.
    pub fn decode(from: &[u8], rank: usize) -> Result<Self> {
        let refused = |what: &str| Error::refused(format!("rank {rank} sent {what}"));
        let Ok(from) = <&[u8; RECORD]>::try_from(from) else {
            return Err(refused("a record of a wrong length"));
        };
        if from[..4] != MAGIC {
            return Err(refused("something that is no record of onebuf's"));
        }
        if from[4] != VERSION {
            let what = format!("version {} of the records between ranks (rank {rank})", from[4]);
            return Err(Error::unsupported(what, format!("version {VERSION}")));
        }
        if word(from, RECORD - 8) != checksum(&from[..RECORD - 8]) {
            return Err(refused("a record with a wrong checksum"));
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == from[5]);
        let kind = kind.ok_or_else(|| refused("a record of an unknown kind"))?;
        let half =
            |at: usize| u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]]);
        Ok(Self {
            kind,
            flags: u16::from_le_bytes([from[6], from[7]]),
            channel: half(8),
            extra: half(12),
            number: word(from, 16),
            bytes: word(from, 24),
            words: [word(from, 32), word(from, 40), word(from, 48)],
        })
    }
}

fn word(from: &[u8; RECORD], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&from[at..at + 8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebuf_hal::testing::fuzz::{Bound, Form, Target};

    fn some() -> Record {
        let words = [3, u64::MAX, 5];
        Record {
            flags: 1,
            extra: 9,
            number: 77,
            bytes: 1 << 40,
            words,
            ..Record::new(Kind::Frame, 4)
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        for kind in Kind::ALL {
            let record = Record { kind, ..some() };
            assert_eq!(Record::decode(&record.encode(), 2), Ok(record));
        }
    }

    #[test]
    fn every_changed_bit_is_noticed_and_the_rank_is_named() {
        let whole = some().encode();
        for bit in 0..8 * RECORD {
            let mut forged = whole;
            forged[bit / 8] ^= 1 << (bit % 8);
            let refused = Record::decode(&forged, 3).unwrap_err().to_string();
            assert!(refused.contains("rank 3"), "{refused}");
        }
        assert!(Record::decode(&whole[..63], 3).is_err());
    }

    #[test]
    fn fuzz_records() {
        let seeds = [some().encode().to_vec(), Record::new(Kind::Message, 0).encode().to_vec()];
        Target {
            name: "mpi records",
            bound: Bound { per_byte: 2, fixed: 4 << 10 },
            input: &|random, most| Form::Bytes.changed(random, &seeds, most),
            parse: &|bytes| Record::decode(bytes, 0).is_ok(),
        }
        .run();
    }
}
