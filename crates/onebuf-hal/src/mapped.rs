//! Host memory that a device accesses itself, found by its address on the host.
//!
//! A backend that must copy other host memory first looks here, and transfers such memory directly.

use crate::locks::{Arc, Mutex, lock};
use std::{collections::BTreeMap, sync::Weak};

/// Memories of one device by the addresses at which the host sees them. It keeps none of them alive.
#[derive(Debug)]
pub struct MappedMemories<T>(Mutex<BTreeMap<usize, Mapped<T>>>);

#[derive(Debug)]
struct Mapped<T> {
    bytes: usize,
    memory: Weak<T>,
}

impl<T> Default for MappedMemories<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> MappedMemories<T> {
    /// Adds a memory. Of two at one address the newer is found.
    pub fn add(&self, at: *const u8, bytes: usize, memory: &Arc<T>) {
        let memory = Arc::downgrade(memory);
        lock(&self.0).insert(at.addr(), Mapped { bytes, memory });
    }

    /// Removes a memory that is about to be freed. Memory that was added later at the same address stays.
    pub fn remove(&self, at: *const u8, memory: *const T) {
        let mut all = lock(&self.0);
        if all.get(&at.addr()).is_some_and(|mapped| std::ptr::eq(mapped.memory.as_ptr(), memory)) {
            all.remove(&at.addr());
        }
    }

    /// Returns the memory that contains these bytes of the host, and their offset in it.
    pub fn find(&self, at: *const u8, bytes: usize) -> Option<(Arc<T>, usize)> {
        let all = lock(&self.0);
        let (base, mapped) = all.range(..=at.addr()).next_back()?;
        let offset = at.addr() - base;
        offset.checked_add(bytes).filter(|end| *end <= mapped.bytes)?;
        mapped.memory.upgrade().map(|memory| (memory, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: usize) -> *const u8 {
        std::ptr::without_provenance(address)
    }

    #[test]
    fn memories_are_found_by_their_bytes() {
        let (all, one, two) = (MappedMemories::default(), Arc::new(1), Arc::new(2));
        all.add(at(4096), 4096, &one);
        all.add(at(16384), 100, &two);
        let find = |address, bytes| all.find(at(address), bytes).map(|(found, at)| (*found, at));
        assert_eq!(find(4096, 4096), Some((1, 0)));
        assert_eq!(find(8191, 1), Some((1, 4095)));
        assert_eq!(find(8191, 2), None);
        assert_eq!(find(4095, 1), None);
        assert_eq!(find(16400, 84), Some((2, 16)));
        assert_eq!(find(16400, usize::MAX), None);
    }

    #[test]
    fn freed_memories_are_not_found() {
        let (all, old) = (MappedMemories::default(), Arc::new(1));
        all.add(at(4096), 4096, &old);
        let new = Arc::new(2);
        all.add(at(4096), 64, &new);
        all.remove(at(4096), Arc::as_ptr(&old));
        assert_eq!(all.find(at(4096), 64).map(|(found, _)| *found), Some(2));
        all.remove(at(4096), Arc::as_ptr(&new));
        assert!(all.find(at(4096), 64).is_none());
        all.add(at(4096), 64, &new);
        drop(new);
        assert!(all.find(at(4096), 64).is_none(), "a memory that is being freed");
    }
}
