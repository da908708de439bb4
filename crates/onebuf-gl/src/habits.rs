//! How buffers are mapped: by their use, by the request, and by the driver's vendor.
//!
//! A persistent map is either coherent, so that each side's writes are visible to the other without a call, or flushed:
//! then the host's writes are handed over explicitly. The preference of each driver is only data here;
//! `ONEBUF_GL_MAPPING` (`coherent` or `flushed`) overrides it.

use onebuf_hal::{Access, Hint, HostAccess};
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
    /// Whether that was ordered, so that no wish changes it.
    pub forced: bool,
}

/// By what the driver's vendor is called. AMD's memory for uploads is write-combined, whose writes arrive in
/// order and at full speed; Intel's is the CPU's own; NVIDIA's driver streams what it is told to flush.
const HABITS: [(&[&str], Habits); 3] = [
    (
        &["NVIDIA"],
        Habits { uploads: Coherence::Flushed, others: Coherence::Coherent, forced: false },
    ),
    (
        &["AMD", "ATI"],
        Habits { uploads: Coherence::Coherent, others: Coherence::Coherent, forced: false },
    ),
    (
        &["Intel"],
        Habits { uploads: Coherence::Coherent, others: Coherence::Coherent, forced: false },
    ),
];

/// Where nothing is known, what is simplest.
const USUAL: Habits =
    Habits { uploads: Coherence::Coherent, others: Coherence::Coherent, forced: false };

/// The variable that overrides them.
const VARIABLE: &str = "ONEBUF_GL_MAPPING";

impl Habits {
    /// Those of the vendor, or of the environment.
    pub fn of(vendor: &str) -> Habits {
        Habits::with(vendor, std::env::var(VARIABLE).ok().as_deref())
    }

    fn with(vendor: &str, asked: Option<&str>) -> Habits {
        let all = |coherence| Habits { uploads: coherence, others: coherence, forced: true };
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

    /// The flags of a buffer that is mapped for what kernels and the host will do, and what was wished of it.
    pub fn mapping(&self, access: Access, host: HostAccess, hint: Option<Hint>) -> Mapping {
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
        let memory = match hint {
            // Where the CPU is quick, or where the chip is.
            Some(Hint::CpuPreferred) => CACHED,
            Some(Hint::GpuPreferred) => 0,
            _ => memory,
        };
        let coherence = match hint.filter(|_| !self.forced) {
            Some(Hint::Coherent) => Coherence::Coherent,
            // Each turn is one stretch of writes, and ends with a call anyway.
            Some(Hint::Streaming) if side & WRITE != 0 => Coherence::Flushed,
            _ => coherence,
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
        assert_eq!(Habits::with("NVIDIA", Some("coherent")), Habits { forced: true, ..USUAL });
    }

    #[test]
    fn flags_follow_from_who_does_what() {
        let usual = |access, host| Habits::with("", None).mapping(access, host, None);
        let both = usual(Access::ReadWrite, HostAccess::ReadWrite);
        let map = MAP_READ_BIT | MAP_WRITE_BIT | MAP_PERSISTENT_BIT | MAP_COHERENT_BIT;
        assert_eq!((both.map, both.storage), (map, map));
        let upload = usual(Access::Read, HostAccess::Write);
        assert_eq!(upload.map, MAP_WRITE_BIT | MAP_PERSISTENT_BIT | MAP_COHERENT_BIT);
        assert!(!upload.reads());
        let result = usual(Access::Write, HostAccess::Read);
        assert_eq!(result.storage, result.map | CLIENT_STORAGE_BIT);
        assert_eq!(result.map & MAP_WRITE_BIT, 0);
        let streamed = Habits::with("NVIDIA", None).mapping(Access::Read, HostAccess::Write, None);
        assert_eq!(streamed.map, MAP_WRITE_BIT | MAP_PERSISTENT_BIT | MAP_FLUSH_EXPLICIT_BIT);
        assert_eq!(streamed.storage, MAP_WRITE_BIT | MAP_PERSISTENT_BIT);
        // What is read has nothing to flush.
        let read = Habits::with("", Some("flushed")).mapping(Access::Write, HostAccess::Read, None);
        assert_eq!(read.coherence, Coherence::Coherent);
    }

    #[test]
    fn wishes_break_ties_and_orders_do_not_bend() {
        let both = (Access::ReadWrite, HostAccess::ReadWrite);
        let with = |habits: Habits, hint| habits.mapping(both.0, both.1, Some(hint));
        let streamed = with(USUAL, Hint::Streaming);
        assert_eq!(streamed.coherence, Coherence::Flushed);
        assert_eq!(streamed.map & MAP_COHERENT_BIT, 0);
        assert_eq!(with(USUAL, Hint::Coherent).coherence, Coherence::Coherent);
        let forced = Habits::with("", Some("flushed"));
        assert_eq!(with(forced, Hint::Coherent).coherence, Coherence::Flushed);
        let near = |hint| with(USUAL, hint).storage & CLIENT_STORAGE_BIT != 0;
        assert!(near(Hint::CpuPreferred) && !near(Hint::GpuPreferred) && !near(Hint::Streaming));
        let reads = |hint| USUAL.mapping(Access::Write, HostAccess::Read, hint);
        assert_eq!(reads(Some(Hint::Streaming)).coherence, Coherence::Coherent, "nothing to flush");
        assert_eq!(reads(Some(Hint::GpuPreferred)).storage & CLIENT_STORAGE_BIT, 0);
        assert_ne!(reads(None).storage & CLIENT_STORAGE_BIT, 0);
        let upload = Habits::with("NVIDIA", None);
        let upload = upload.mapping(Access::Read, HostAccess::Write, Some(Hint::Coherent));
        assert_eq!(upload.coherence, Coherence::Coherent);
    }
}
