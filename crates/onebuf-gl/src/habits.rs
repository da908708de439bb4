//! How buffers are mapped: by use, by hint, and by the driver's vendor.
//!
//! A persistent map is either coherent, so that each side's writes are visible to the other without a call, or flushed:
//! then a call makes the host's writes visible. Each driver's preference is a table row here; `ONEBUF_GL_MAPPING`
//! (`coherent` or `flushed`) overrides it.

use onebuf_hal::{Access, Hint, HostAccess};
use onebuf_sys::gl::consts;

/// How the host's writes become visible to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coherence {
    /// Without a call.
    Coherent,
    /// By a flush.
    Flushed,
}

/// The mapping that a driver handles best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Habits {
    /// Buffers that the host only writes.
    pub uploads: Coherence,
    /// Buffers that the host also reads.
    pub others: Coherence,
    /// Whether the environment variable forces it, so that hints do not change it.
    pub forced: bool,
}

/// Preferences by vendor name. AMD's memory for uploads is write-combined, whose writes arrive in order and at full
/// speed; Intel's is CPU memory; NVIDIA's driver streams flushed ranges.
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

/// The default for unknown vendors.
const USUAL: Habits =
    Habits { uploads: Coherence::Coherent, others: Coherence::Coherent, forced: false };

/// The variable that overrides the preferences.
const VARIABLE: &str = "ONEBUF_GL_MAPPING";

impl Habits {
    /// Returns the preferences of the vendor, or those of the environment.
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

    /// Returns the flags for mapping a buffer, by kernel access, host access and hint.
    pub fn mapping(&self, access: Access, host: HostAccess, hint: Option<Hint>) -> Mapping {
        use consts::{
            CLIENT_STORAGE_BIT as CACHED, MAP_COHERENT_BIT as COHERENT,
            MAP_FLUSH_EXPLICIT_BIT as FLUSH, MAP_PERSISTENT_BIT as STAYS, MAP_READ_BIT as READ,
            MAP_WRITE_BIT as WRITE,
        };
        let (side, memory, coherence) = match host {
            HostAccess::Write => (WRITE, 0, self.uploads),
            // The host reads what kernels write: in CPU-cached memory, as otherwise each read crosses the bus.
            HostAccess::Read => (READ, CACHED, Coherence::Coherent),
            _ if access == Access::Write => (READ | WRITE, CACHED, self.others),
            _ => (READ | WRITE, 0, self.others),
        };
        let memory = match hint {
            // Memory that is fast for the CPU, or for the chip.
            Some(Hint::CpuPreferred) => CACHED,
            Some(Hint::GpuPreferred) => 0,
            _ => memory,
        };
        let coherence = match hint.filter(|_| !self.forced) {
            Some(Hint::Coherent) => Coherence::Coherent,
            // Each hand-over follows one sequence of writes, and makes a call anyway.
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
    /// Flags of the storage.
    pub storage: u32,
    /// Flags of the map.
    pub map: u32,
    pub coherence: Coherence,
}

impl Mapping {
    /// Whether the host may read through the map.
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
        // A map for reading has nothing to flush.
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
