//! How buffers are mapped: by what they are for, and by whose driver it is.
//!
//! A map that stays is either coherent, so that each side's writes are the other's without a call, or
//! flushed: then the host's writes are handed over explicitly. What a driver does best with is data here
//! and nothing more; `ONEBUF_GL_MAPPING` (`coherent` or `flushed`) overrides it.

use crate::hal::{Access, HostAccess};
use onebuf_sys::gl::consts;

/// How the host's writes come to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coherence {
    /// By themselves.
    Coherent,
    /// By a call.
    Flushed,
}

/// What a driver does best with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Habits {
    /// Buffers that the host only writes.
    pub uploads: Coherence,
    /// Buffers that it also reads.
    pub others: Coherence,
}

/// By what the driver's vendor is called. AMD's memory for uploads is write-combined, whose writes arrive in
/// order and at full speed; Intel's is the CPU's own; NVIDIA's driver streams what it is told to flush.
const HABITS: [(&[&str], Habits); 3] = [
    (&["NVIDIA"], Habits { uploads: Coherence::Flushed, others: Coherence::Coherent }),
    (&["AMD", "ATI"], Habits { uploads: Coherence::Coherent, others: Coherence::Coherent }),
    (&["Intel"], Habits { uploads: Coherence::Coherent, others: Coherence::Coherent }),
];

/// Where nothing is known, what is simplest.
const USUAL: Habits = Habits { uploads: Coherence::Coherent, others: Coherence::Coherent };

/// The variable that overrides them.
const VARIABLE: &str = "ONEBUF_GL_MAPPING";

impl Habits {
    /// Those of the vendor, or of the environment.
    pub fn of(vendor: &str) -> Habits {
        Habits::with(vendor, std::env::var(VARIABLE).ok().as_deref())
    }

    fn with(vendor: &str, asked: Option<&str>) -> Habits {
        let all = |coherence| Habits { uploads: coherence, others: coherence };
        let knows = |names: &&[&str]| {
            let words = || vendor.split(|c: char| !c.is_alphanumeric());
            names.iter().any(|name| words().any(|word| word == *name))
        };
        match asked {
            Some("coherent") => all(Coherence::Coherent),
            Some("flushed") => all(Coherence::Flushed),
            _ => HABITS.iter().find(|(names, _)| knows(names)).map_or(USUAL, |(_, own)| *own),
        }
    }

    /// The flags of a buffer that is mapped for what kernels and the host will do.
    pub fn mapping(&self, access: Access, host: HostAccess) -> Mapping {
        use consts::{
            CLIENT_STORAGE_BIT as CACHED, MAP_COHERENT_BIT as COHERENT,
            MAP_FLUSH_EXPLICIT_BIT as FLUSH, MAP_PERSISTENT_BIT as STAYS, MAP_READ_BIT as READ,
            MAP_WRITE_BIT as WRITE,
        };
        let (side, memory, coherence) = match host {
            HostAccess::Write => (WRITE, 0, self.uploads),
            // Read where kernels write: in the CPU's caches, or each read is one over the bus.
            HostAccess::Read => (READ, CACHED, Coherence::Coherent),
            _ if access == Access::Write => (READ | WRITE, CACHED, self.others),
            _ => (READ | WRITE, 0, self.others),
        };
        match coherence {
            Coherence::Coherent => {
                let map = side | STAYS | COHERENT;
                Mapping { storage: map | memory, map, coherence }
            }
            Coherence::Flushed => {
                let map = side | STAYS;
                Mapping { storage: map | memory, map: map | FLUSH, coherence }
            }
        }
    }
}

/// How one buffer is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    /// What its storage is made with.
    pub storage: u32,
    /// What it is mapped with.
    pub map: u32,
    pub coherence: Coherence,
}

impl Mapping {
    /// Whether the host may read through it.
    pub fn reads(&self) -> bool {
        self.map & consts::MAP_READ_BIT != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consts::*;

    #[test]
    fn vendors_are_known_by_their_names() {
        let of = |vendor| Habits::with(vendor, None).uploads;
        assert_eq!(of("NVIDIA Corporation"), Coherence::Flushed);
        assert_eq!(of("ATI Technologies Inc."), Coherence::Coherent);
        assert_eq!(of("Intel"), Coherence::Coherent);
        assert_eq!(Habits::with("Somebody else", None), USUAL);
        assert_eq!(Habits::with("SATIN", None), USUAL, "ATI is a word, not a part of one");
        let forced = Habits::with("Intel", Some("flushed"));
        assert_eq!((forced.uploads, forced.others), (Coherence::Flushed, Coherence::Flushed));
        assert_eq!(Habits::with("NVIDIA", Some("coherent")), USUAL);
    }

    #[test]
    fn flags_follow_from_who_does_what() {
        let usual = |access, host| Habits::with("", None).mapping(access, host);
        let both = usual(Access::ReadWrite, HostAccess::ReadWrite);
        let map = MAP_READ_BIT | MAP_WRITE_BIT | MAP_PERSISTENT_BIT | MAP_COHERENT_BIT;
        assert_eq!((both.map, both.storage), (map, map));
        let upload = usual(Access::Read, HostAccess::Write);
        assert_eq!(upload.map, MAP_WRITE_BIT | MAP_PERSISTENT_BIT | MAP_COHERENT_BIT);
        assert!(!upload.reads());
        let result = usual(Access::Write, HostAccess::Read);
        assert_eq!(result.storage, result.map | CLIENT_STORAGE_BIT);
        assert_eq!(result.map & MAP_WRITE_BIT, 0);
        let streamed = Habits::with("NVIDIA", None).mapping(Access::Read, HostAccess::Write);
        assert_eq!(streamed.map, MAP_WRITE_BIT | MAP_PERSISTENT_BIT | MAP_FLUSH_EXPLICIT_BIT);
        assert_eq!(streamed.storage, MAP_WRITE_BIT | MAP_PERSISTENT_BIT);
        // What is read has nothing to flush.
        let read = Habits::with("", Some("flushed")).mapping(Access::Write, HostAccess::Read);
        assert_eq!(read.coherence, Coherence::Coherent);
    }
}
