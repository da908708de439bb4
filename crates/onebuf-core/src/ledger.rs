//! The ledger: counts every byte that onebuf moved, by source, destination and cause.

use crate::topology::DeviceIx;
use onebuf_hal::locks::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::OnceLock};

/// Why bytes were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The caller requested this read, write, fill or copy.
    Asked,
    /// The caller did not request the copy: staging, a driver's shadow copy, or failover.
    Implied,
}

/// Traffic from one device to another for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The id of the source device.
    pub from: String,
    /// The id of the destination device.
    pub to: String,
    /// Why the bytes were moved.
    pub cause: Cause,
    /// The number of bytes.
    pub bytes: u64,
    /// The number of operations.
    pub operations: u64,
}

/// Counters for every ordered pair of devices and both causes; two relaxed additions per record.
#[derive(Debug)]
pub struct Ledger {
    names: Vec<OnceLock<String>>,
    cells: Vec<Cell>,
}

#[derive(Debug)]
struct Cell {
    bytes: AtomicU64,
    operations: AtomicU64,
}

impl Ledger {
    /// Creates a ledger for these devices, with space for `more` devices that are added later.
    pub(crate) fn new(names: Vec<String>, more: usize) -> Self {
        let empty = std::iter::repeat_with(OnceLock::new).take(more);
        let names: Vec<_> = names.into_iter().map(OnceLock::from).chain(empty).collect();
        let cell = || Cell { bytes: AtomicU64::new(0), operations: AtomicU64::new(0) };
        let cells = (0..names.len() * names.len() * 2).map(|_| cell()).collect();
        Self { names, cells }
    }

    /// Sets the id of a device that was added later.
    pub(crate) fn name(&self, device: DeviceIx, id: &str) {
        self.names[device.get()].get_or_init(|| id.to_owned());
    }

    pub(crate) fn record(&self, from: DeviceIx, to: DeviceIx, cause: Cause, bytes: usize) {
        let cell = &self.cells[self.index(from.get(), to.get(), cause)];
        cell.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        cell.operations.fetch_add(1, Ordering::Relaxed);
    }

    fn index(&self, from: usize, to: usize, cause: Cause) -> usize {
        (from * self.names.len() + to) * 2 + usize::from(cause == Cause::Implied)
    }

    /// Returns all traffic. Pairs of devices without traffic are left out.
    pub fn entries(&self) -> Vec<Entry> {
        let n = self.names.iter().take_while(|name| name.get().is_some()).count();
        let all = (0..n).flat_map(|from| (0..n).map(move |to| (from, to)));
        let both = all.flat_map(|(f, t)| [Cause::Asked, Cause::Implied].map(|c| (f, t, c)));
        both.map(|(from, to, cause)| {
            let cell = &self.cells[self.index(from, to, cause)];
            Entry {
                from: self.names[from].get().cloned().unwrap_or_default(),
                to: self.names[to].get().cloned().unwrap_or_default(),
                cause,
                bytes: cell.bytes.load(Ordering::Relaxed),
                operations: cell.operations.load(Ordering::Relaxed),
            }
        })
        .filter(|entry| entry.operations > 0)
        .collect()
    }

    /// Returns the number of bytes moved for one cause.
    pub fn bytes(&self, cause: Cause) -> u64 {
        self.entries().iter().filter(|e| e.cause == cause).map(|e| e.bytes).sum()
    }

    /// Returns the number of bytes moved by the caller's reads, writes, fills and copies.
    pub fn asked_bytes(&self) -> u64 {
        self.bytes(Cause::Asked)
    }

    /// Returns the number of bytes moved by implied copies; zero on proven zero-copy routes.
    pub fn implied_bytes(&self) -> u64 {
        self.bytes(Cause::Implied)
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "asked: {} bytes, implied: {} bytes", self.asked_bytes(), self.implied_bytes())?;
        for e in self.entries() {
            let cause = if e.cause == Cause::Asked { "asked" } else { "implied" };
            let plural = if e.operations == 1 { "" } else { "s" };
            write!(f, "\n  {} -> {}: {} bytes {cause}", e.from, e.to, e.bytes)?;
            write!(f, " in {} operation{plural}", e.operations)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_was_added_later_is_counted_by_its_name() {
        let ledger = Ledger::new(vec!["host".into()], 2);
        ledger.record(DeviceIx(0), DeviceIx(1), Cause::Implied, 8);
        assert!(ledger.entries().is_empty(), "a device without a name");
        ledger.name(DeviceIx(1), "opencl:0@1");
        let entries = ledger.entries();
        let [entry] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!((&*entry.from, &*entry.to, entry.bytes), ("host", "opencl:0@1", 8));
        assert_eq!((ledger.implied_bytes(), ledger.asked_bytes()), (8, 0));
        for _ in 0..2 {
            ledger.record(DeviceIx(1), DeviceIx(0), Cause::Asked, 3);
        }
        let text = "asked: 6 bytes, implied: 8 bytes\n  \
                    host -> opencl:0@1: 8 bytes implied in 1 operation\n  \
                    opencl:0@1 -> host: 6 bytes asked in 2 operations";
        assert_eq!(ledger.to_string(), text);
    }
}
