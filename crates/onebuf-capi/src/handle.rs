//! Handles: numbers that name objects, validated at every use.
//!
//! A handle contains its kind, the slot in that kind's table, and the generation of the slot. Using a handle that was
//! freed, is of another kind, or was never created is an error with no other effect. A lookup shares ownership of the
//! object, so freeing it on another thread is safe.

use crate::fault::{Fault, Result};
use onebuf::Error;
use std::sync::{Arc, PoisonError, RwLock};

const INDEX_BITS: u32 = 32;
const GENERATION_BITS: u32 = 24;
/// A slot is retired after this many generations, so that an old handle never names a new object.
const LAST_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

/// The table of one kind of object.
pub(crate) struct Table<T> {
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    all: Vec<TableSlot<T>>,
    free: Vec<u32>,
}

struct TableSlot<T> {
    generation: u32,
    object: Option<Arc<T>>,
}

/// A handle type.
pub(crate) trait Noun: Copy {
    /// The type of the objects.
    type Object: Send + Sync + 'static;
    /// Not zero, and unique: see [`NOUNS`].
    const KIND: u8;

    fn id(self) -> u64;
    fn from_id(id: u64) -> Self;
    fn table() -> &'static Table<Self::Object>;

    /// Creates a handle for a new object.
    fn put(object: Self::Object) -> Result<Self> {
        let (index, generation) = Self::table().put(object)?;
        let generation = u64::from(generation) << INDEX_BITS;
        let kind = u64::from(Self::KIND) << (INDEX_BITS + GENERATION_BITS);
        Ok(Self::from_id(kind | generation | u64::from(index)))
    }

    /// A shared reference to the object.
    fn get(self) -> Result<Arc<Self::Object>> {
        let (index, generation) = self.place()?;
        Self::table().get(index, generation).ok_or_else(|| self.stale())
    }

    /// Removes the object from its table. The handle is invalid afterwards.
    fn take(self) -> Result<Arc<Self::Object>> {
        let (index, generation) = self.place()?;
        Self::table().take(index, generation).ok_or_else(|| self.stale())
    }

    /// Removes the object from its table and takes it by value. Fails, and leaves the handle valid, if another object
    /// or a call on another thread shares it, or if the object itself refuses.
    fn take_alone(self, is_free: impl Fn(&Self::Object) -> bool) -> Result<Self::Object> {
        let (index, generation) = self.place()?;
        let busy = || {
            let noun = name_of(Self::KIND);
            let what = format!("this {noun} is in use: free what was made of it first");
            Fault::from(Error::Busy { what })
        };
        let taken = Self::table().take_alone(index, generation, is_free);
        taken.ok_or_else(|| self.stale())?.ok_or_else(busy)
    }

    /// Slot and generation, if the number can be a handle of this kind.
    fn place(self) -> Result<(u32, u32)> {
        let id = self.id();
        let kind = (id >> (INDEX_BITS + GENERATION_BITS)) as u8;
        if kind == Self::KIND {
            return Ok((id as u32, (id >> INDEX_BITS) as u32 & LAST_GENERATION));
        }
        let want = name_of(Self::KIND);
        Err(Fault::Handle(match id {
            0 => format!("the null handle where a {want} is needed"),
            _ => format!("{id:#x} is a {}'s handle where a {want}'s is needed", name_of(kind)),
        }))
    }

    fn stale(self) -> Fault {
        let noun = name_of(Self::KIND);
        Fault::Handle(format!("{:#x} names no {noun}: it was freed, or never made", self.id()))
    }
}

/// Names of kinds for messages, indexed by [`Noun::KIND`].
const NOUNS: [&str; 26] = [
    "no object",
    "string",
    "hub",
    "device",
    "queue",
    "buffer",
    "mapping",
    "view",
    "transfer",
    "fence",
    "program",
    "kernel",
    "pool",
    "context",
    "user event",
    "factored matrix",
    "offer",
    "peer",
    "pipeline",
    "source",
    "sink",
    "OpenGL context",
    "Vulkan device",
    "queue pool",
    "published hub",
    "viewer",
];

fn name_of(kind: u8) -> &'static str {
    NOUNS.get(usize::from(kind)).unwrap_or(&NOUNS[0])
}

impl<T> Table<T> {
    pub const fn new() -> Self {
        Self { slots: RwLock::new(Slots { all: Vec::new(), free: Vec::new() }) }
    }

    fn put(&self, object: T) -> Result<(u32, u32)> {
        let object = Some(Arc::new(object));
        // Nothing can panic half way through a change under this lock, so a poisoned table is still consistent.
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = slots.free.pop() {
            let slot = &mut slots.all[index as usize];
            slot.object = object;
            return Ok((index, slot.generation));
        }
        let index = u32::try_from(slots.all.len()).map_err(|_| Error::OutOfMemory {
            device: "handles".into(),
            asked: 1,
            limit: Some(u32::MAX.into()),
        })?;
        slots.all.push(TableSlot { generation: 1, object });
        Ok((index, 1))
    }

    fn get(&self, index: u32, generation: u32) -> Option<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.all.get(index as usize)?;
        slot.object.as_ref().filter(|_| slot.generation == generation).cloned()
    }

    /// The caller drops the object after releasing the lock: dropping may take long, and may free other objects.
    fn take(&self, index: u32, generation: u32) -> Option<Arc<T>> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner).take(index, generation)
    }

    /// `None` if there is no such object; `Some(None)` if it is shared.
    fn take_alone(
        &self,
        index: u32,
        generation: u32,
        is_free: impl Fn(&T) -> bool,
    ) -> Option<Option<T>> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.all.get(index as usize).filter(|slot| slot.generation == generation)?;
        // Getting another reference requires this lock.
        let object = slot.object.as_ref()?;
        if Arc::strong_count(object) > 1 || !is_free(object) {
            return Some(None);
        }
        slots.take(index, generation).map(Arc::into_inner)
    }
}

impl<T> Slots<T> {
    fn take(&mut self, index: u32, generation: u32) -> Option<Arc<T>> {
        let slot = self.all.get_mut(index as usize)?;
        let object = slot.object.take_if(|_| slot.generation == generation)?;
        if slot.generation < LAST_GENERATION {
            slot.generation += 1;
            self.free.push(index);
        }
        Some(object)
    }
}

/// Implements [`Noun`] for a structure with an `id`.
macro_rules! noun {
    ($handle:ident, $object:ty, $kind:literal) => {
        impl $crate::handle::Noun for $handle {
            type Object = $object;
            const KIND: u8 = $kind;

            fn id(self) -> u64 {
                self.id
            }

            fn from_id(id: u64) -> Self {
                Self { id }
            }

            fn table() -> &'static $crate::handle::Table<$object> {
                static TABLE: $crate::handle::Table<$object> = $crate::handle::Table::new();
                &TABLE
            }
        }

        impl $crate::input::Blank for $handle {
            fn blank() -> Self {
                Self { id: 0 }
            }
        }
    };
}
pub(crate) use noun;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct thing {
        id: u64,
    }
    noun!(thing, u32, 200);

    fn why(outcome: Result<Arc<u32>>) -> String {
        match outcome {
            Err(Fault::Handle(why)) => why,
            Err(other) => panic!("{other}"),
            Ok(found) => panic!("{found}"),
        }
    }

    #[test]
    fn only_living_handles_of_the_kind_name_something() {
        let one = thing::put(7).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(one.get().map(|n| *n).ok(), Some(7));
        assert_eq!(one.take().map(|n| *n).ok(), Some(7));
        assert!(why(one.get()).contains("was freed"));
        assert!(why(one.take()).contains("was freed"));
        let two = thing::put(8).unwrap_or_else(|e| panic!("{e}"));
        assert_ne!(one, two);
        assert!(why(one.get()).contains("was freed"), "the slot is another's now");
        assert!(why(thing { id: 0 }.get()).contains("null handle"));
        assert!(why(thing { id: 5 << 56 }.get()).contains("a buffer's handle"));
        assert!(why(thing { id: u64::MAX }.get()).contains("no object's handle"));
        assert!(why(thing { id: two.id + 1000 }.get()).contains("never made"));
    }

    #[test]
    fn what_is_shared_is_not_taken_alone() {
        let one = thing::put(1).unwrap_or_else(|e| panic!("{e}"));
        let shared = one.get().unwrap_or_else(|e| panic!("{e}"));
        assert!(one.take_alone(|_| true).is_err_and(|fault| fault.to_string().contains("in use")));
        drop(shared);
        assert!(one.get().is_ok_and(|found| *found == 1), "still there");
        assert!(one.take_alone(|_| false).is_err_and(|fault| fault.to_string().contains("in use")));
        assert!(one.take_alone(|_| true).is_ok_and(|found| found == 1));
        assert!(one.take_alone(|_| true).is_err_and(|fault| fault.to_string().contains("freed")));
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_left_alone() {
        let table: Table<u32> = Table::new();
        let (index, _) = table.put(1).unwrap_or_else(|e| panic!("{e}"));
        table.slots.write().unwrap().all[index as usize].generation = LAST_GENERATION;
        assert_eq!(table.take(index, LAST_GENERATION).as_deref(), Some(&1));
        assert_eq!(table.get(index, LAST_GENERATION), None);
        let (next, generation) = table.put(2).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((next, generation), (index + 1, 1));
    }
}
