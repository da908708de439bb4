//! The protocol between two processes: one message per packet, every field checked.
//!
//! ```text
//!   "1buf"  version u16  message u16  length u32 | body of that length          little-endian
//! ```
//!
//! Decoding is a pure function of the bytes. It never panics, and allocates no more than the message's size.

use onebuf_hal::Error;

/// The only supported version. Others are refused.
pub(super) const VERSION: u16 = 1;

/// The longest message.
pub(super) const MAX_BYTES: usize = 512;

const MAGIC: [u8; 4] = *b"1buf";
const HEAD_BYTES: usize = 12;
/// The size of an IPC handle in CUDA and HIP.
const HANDLE_BYTES: usize = 64;
/// The longest variable field: an IPC handle, or the longest device id.
const MAX_TAIL: usize = 64;

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The peer requests the buffer, with elements of this size.
    Hello { element_bytes: u32 },
    /// The owner grants the buffer. Its fds come in the same packet.
    Grant(Box<Grant>),
    /// The owner refuses, because its elements have this size.
    WrongElement { element_bytes: u32 },
    /// The peer has mapped the buffer.
    Ready,
    /// The buffer is handed over. `round` counts the hand-overs of this connection.
    Turn { round: u64 },
    /// The sender leaves normally.
    Bye,
}

/// What a peer needs to know to import a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub kind: Kind,
    /// How many fds come with the grant.
    pub fds: u8,
    pub element_bytes: u32,
    /// The size of the whole allocation.
    pub allocation_bytes: u64,
    /// The offset and size of the buffer in the allocation.
    pub offset: u64,
    pub bytes: u64,
    /// The allocation's address for IPC handles; zero otherwise.
    pub base: u64,
    /// The number of this visit, unique for this owner.
    pub session: u64,
    /// The UUID of the chip, for device memory.
    pub uuid: Option<[u8; 16]>,
    /// The owner's id of the device.
    pub device: String,
    /// The IPC handle; empty for fds.
    pub handle: Vec<u8>,
}

/// How a peer accesses the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A sealed memfd.
    HostPages = 1,
    /// An fd that only the same driver on the same chip can import.
    OpaqueFd = 2,
    /// A dma-buf fd.
    DmaBuf = 3,
    CudaIpc = 4,
    HipIpc = 5,
}

impl Kind {
    const ALL: [Kind; 5] =
        [Kind::HostPages, Kind::OpaqueFd, Kind::DmaBuf, Kind::CudaIpc, Kind::HipIpc];

    /// The name in error messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::HostPages => "host_pages",
            Kind::OpaqueFd => "opaque_fd",
            Kind::DmaBuf => "dma_buf",
            Kind::CudaIpc => "cuda_ipc",
            Kind::HipIpc => "hip_ipc",
        }
    }

    /// The handle's size; zero for kinds without a handle.
    fn handle_bytes(self) -> usize {
        if matches!(self, Kind::CudaIpc | Kind::HipIpc) { HANDLE_BYTES } else { 0 }
    }

    /// How many fds come with this kind.
    fn fds(self) -> u8 {
        u8::from(matches!(self, Kind::HostPages | Kind::OpaqueFd | Kind::DmaBuf))
    }
}

/// Why a packet is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It does not begin with the protocol's magic.
    Foreign,
    Version(u16),
    Unknown(u16),
    /// Its length differs from its header's, or from that of its kind.
    Length,
    Field(&'static str),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Error::refused(match fault {
            Fault::Foreign => "it does not speak onebuf's protocol".into(),
            Fault::Version(version) => {
                let what = format!("version {version} of the protocol between processes");
                return Error::unsupported(what, format!("version {VERSION}"));
            }
            Fault::Unknown(what) => format!("it sent an unknown message type ({what})"),
            Fault::Length => "it sent a message of a wrong length".into(),
            Fault::Field(name) => format!("its message has an invalid `{name}`"),
        })
    }
}

impl Message {
    fn number(&self) -> u16 {
        match self {
            Message::Hello { .. } => 1,
            Message::Grant(_) => 2,
            Message::WrongElement { .. } => 3,
            Message::Ready => 4,
            Message::Turn { .. } => 5,
            Message::Bye => 6,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            Message::Hello { element_bytes } | Message::WrongElement { element_bytes } => {
                body.extend(element_bytes.to_le_bytes());
            }
            Message::Turn { round } => body.extend(round.to_le_bytes()),
            Message::Grant(grant) => grant.encode(&mut body),
            Message::Ready | Message::Bye => {}
        }
        let mut packet = MAGIC.to_vec();
        packet.extend(VERSION.to_le_bytes());
        packet.extend(self.number().to_le_bytes());
        packet.extend((body.len() as u32).to_le_bytes());
        packet.extend(body);
        packet
    }

    pub fn decode(packet: &[u8]) -> Result<Self, Fault> {
        let mut rest = Reader(packet);
        if rest.array::<4>().map_err(|_| Fault::Foreign)? != MAGIC {
            return Err(Fault::Foreign);
        }
        match u16::from_le_bytes(rest.array()?) {
            VERSION => {}
            other => return Err(Fault::Version(other)),
        }
        let number = u16::from_le_bytes(rest.array()?);
        let said = rest.u32()? as usize;
        if said != rest.0.len() || packet.len() > MAX_BYTES {
            return Err(Fault::Length);
        }
        let message = match number {
            1 => Message::Hello { element_bytes: rest.element()? },
            2 => Message::Grant(Box::new(Grant::decode(&mut rest)?)),
            3 => Message::WrongElement { element_bytes: rest.element()? },
            4 => Message::Ready,
            5 => Message::Turn { round: rest.u64()? },
            6 => Message::Bye,
            other => return Err(Fault::Unknown(other)),
        };
        if rest.0.is_empty() { Ok(message) } else { Err(Fault::Length) }
    }
}

impl Grant {
    fn encode(&self, body: &mut Vec<u8>) {
        body.extend([self.kind as u8, self.fds]);
        body.extend(self.element_bytes.to_le_bytes());
        for number in [self.allocation_bytes, self.offset, self.bytes, self.base, self.session] {
            body.extend(number.to_le_bytes());
        }
        body.push(u8::from(self.uuid.is_some()));
        body.extend(self.uuid.unwrap_or_default());
        for tail in [self.device.as_bytes(), &self.handle] {
            let tail = &tail[..tail.len().min(MAX_TAIL)];
            body.push(tail.len() as u8);
            body.extend(tail);
        }
    }

    fn decode(rest: &mut Reader<'_>) -> Result<Self, Fault> {
        let [kind, fds] = rest.array()?;
        let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind);
        let kind = kind.ok_or(Fault::Field("kind"))?;
        let element_bytes = rest.element()?;
        let [allocation_bytes, offset, bytes, base, session] =
            [rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?];
        let [known] = rest.array()?;
        let uuid: [u8; 16] = rest.array()?;
        let uuid = match known {
            0 if uuid == [0; 16] => None,
            1 => Some(uuid),
            _ => return Err(Fault::Field("uuid")),
        };
        let device = rest.tail()?.to_vec();
        // Error messages repeat the id, and terminals interpret control characters. Device ids have none.
        let device = String::from_utf8(device)
            .ok()
            .filter(|id| id.bytes().all(|byte| byte.is_ascii_graphic()))
            .ok_or(Fault::Field("device"))?;
        let handle = rest.tail()?.to_vec();
        let grant = Self {
            kind,
            fds,
            element_bytes,
            allocation_bytes,
            offset,
            bytes,
            base,
            session,
            uuid,
            device,
            handle,
        };
        grant.check()
    }

    /// Checks the rules for all kinds of memory.
    fn check(self) -> Result<Self, Fault> {
        let end = self.offset.checked_add(self.bytes);
        let rules = [
            (self.fds == self.kind.fds(), "fds"),
            (self.handle.len() == self.kind.handle_bytes(), "handle"),
            (self.allocation_bytes <= i64::MAX as u64, "allocation_bytes"),
            (self.bytes > 0 && self.bytes.is_multiple_of(self.element_bytes.into()), "bytes"),
            (end.is_some_and(|end| end <= self.allocation_bytes), "offset"),
        ];
        match rules.into_iter().find(|(kept, _)| !kept) {
            Some((_, field)) => Err(Fault::Field(field)),
            None => Ok(self),
        }
    }
}

/// The unread rest of a packet.
struct Reader<'p>(&'p [u8]);

impl<'p> Reader<'p> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Fault::Length)?;
        self.0 = tail;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_le_bytes)
    }

    fn element(&mut self) -> Result<u32, Fault> {
        match self.u32()? {
            0 => Err(Fault::Field("element_bytes")),
            bytes => Ok(bytes),
        }
    }

    /// A length byte, and that many bytes.
    fn tail(&mut self) -> Result<&'p [u8], Fault> {
        let [len] = self.array()?;
        let len = usize::from(len);
        if len > MAX_TAIL {
            return Err(Fault::Length);
        }
        let (head, tail) = self.0.split_at_checked(len).ok_or(Fault::Length)?;
        self.0 = tail;
        Ok(head)
    }
}

const _: () = assert!(HEAD_BYTES + 2 + 4 + 40 + 17 + 2 * (1 + MAX_TAIL) <= MAX_BYTES);

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests {
    use super::*;
    use onebuf_hal::testing::fuzz::{Bound, Form, Target};
    use proptest::prelude::*;

    fn grants() -> impl Strategy<Value = Grant> {
        let numbers = (1_u32..=64, 1_u64..1 << 40, 0_u64..1 << 40, 0_u64..1 << 20);
        let rest = (any::<u64>(), any::<u64>(), any::<Option<[u8; 16]>>(), 0_usize..5);
        let tails = ("[a-z]{1,8}:[0-9]{1,3}", prop::collection::vec(any::<u8>(), MAX_TAIL));
        (numbers, rest, tails).prop_map(
            |(
                (element_bytes, n, offset, more),
                (base, session, uuid, kind),
                (device, mut handle),
            )| {
                handle.truncate(Kind::ALL[kind].handle_bytes());
                let (kind, bytes) = (Kind::ALL[kind], n * u64::from(element_bytes));
                Grant {
                    kind,
                    fds: kind.fds(),
                    element_bytes,
                    allocation_bytes: offset + bytes + more,
                    offset,
                    bytes,
                    base,
                    session,
                    uuid,
                    device,
                    handle,
                }
            },
        )
    }

    fn messages() -> impl Strategy<Value = Message> {
        prop_oneof![
            (1..=u32::MAX).prop_map(|element_bytes| Message::Hello { element_bytes }),
            (1..=u32::MAX).prop_map(|element_bytes| Message::WrongElement { element_bytes }),
            any::<u64>().prop_map(|round| Message::Turn { round }),
            grants().prop_map(|grant| Message::Grant(Box::new(grant))),
            Just(Message::Ready),
            Just(Message::Bye),
        ]
    }

    proptest! {
        #[test]
        fn what_is_said_is_heard(message in messages()) {
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        }

        #[test]
        fn nothing_shorter_or_longer_is_heard(message in messages(), extra in any::<u8>()) {
            let mut packet = message.encode();
            for len in 0..packet.len() {
                prop_assert!(Message::decode(&packet[..len]).is_err());
            }
            packet.push(extra);
            prop_assert_eq!(Message::decode(&packet), Err(Fault::Length));
        }

        /// Whatever arrives, an accepted message encodes to the same bytes.
        #[test]
        fn noise_is_harmless(mut packet in prop::collection::vec(any::<u8>(), 0..600), head in 0..4) {
            let known = Message::Hello { element_bytes: 4 }.encode();
            let keep = [0, 4, 6, 8][head as usize].min(packet.len());
            packet[..keep].copy_from_slice(&known[..keep]);
            if let Ok(message) = Message::decode(&packet) {
                prop_assert_eq!(message.encode(), packet);
            }
        }

        /// After changing one byte or number, an accepted grant still lies inside its allocation.
        #[test]
        fn a_grant_is_never_outside_of_itself(
            grant in grants(), at in 0_usize..64, value in any::<u64>(), wide in any::<bool>()
        ) {
            let mut packet = Message::Grant(Box::new(grant)).encode();
            let at = at.min(packet.len() - 8);
            let value = value.to_le_bytes();
            let len = if wide { 8 } else { 1 };
            packet[at..at + len].copy_from_slice(&value[..len]);
            if let Ok(Message::Grant(grant)) = Message::decode(&packet) {
                let end = grant.offset.checked_add(grant.bytes);
                prop_assert!(end.is_some_and(|end| end <= grant.allocation_bytes));
                prop_assert_eq!(grant.bytes % u64::from(grant.element_bytes), 0);
                prop_assert!(grant.bytes > 0 && grant.fds == grant.kind.fds());
                prop_assert_eq!(grant.handle.len(), grant.kind.handle_bytes());
            }
        }
    }

    #[test]
    fn fuzz_messages() {
        let grant = Grant {
            kind: Kind::CudaIpc,
            fds: 0,
            element_bytes: 4,
            allocation_bytes: 4096,
            offset: 0,
            bytes: 4096,
            base: 1 << 40,
            session: 7,
            uuid: Some([3; 16]),
            device: "cuda:0".into(),
            handle: vec![9; HANDLE_BYTES],
        };
        let seeds = [
            Message::Hello { element_bytes: 4 }.encode(),
            Message::Turn { round: 7 }.encode(),
            Message::Grant(Box::new(grant)).encode(),
        ];
        Target {
            name: "messages of peers",
            bound: Bound { per_byte: 2, fixed: size_of::<Grant>() },
            input: &|random, most| Form::Bytes.changed(random, &seeds, most),
            parse: &|packet| Message::decode(packet).is_ok(),
        }
        .run();
    }

    #[test]
    fn faults_have_names() {
        let mut packet = Message::Turn { round: 1 }.encode();
        packet[4] = 9;
        assert_eq!(Message::decode(&packet), Err(Fault::Version(9)));
        packet[4..8].copy_from_slice(&[1, 0, 77, 0]);
        assert_eq!(Message::decode(&packet), Err(Fault::Unknown(77)));
        assert_eq!(Message::decode(b"GET / HTTP/1.1"), Err(Fault::Foreign));
        assert_eq!(Message::decode(b""), Err(Fault::Foreign));
        let wrong = Error::from(Fault::Version(9)).to_string();
        assert!(wrong.contains("version 9") && wrong.contains("version 1"), "{wrong}");
    }
}
