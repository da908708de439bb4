//! The host's memory of several frames at a time, for overlapped parts.

use super::{HostEnd, Towards, side_of};
use bytemuck::Pod;
use onebuf_core::{Buffer, Map, MapWrite, Queue, bridge};
use onebuf_hal::Result;

/// The host's memory for one buffer of every slot: the buffers' own where the host can map them, and memory beside them
/// otherwise. Kept from one run to the next by a part that works on several frames at a time ([`Overlapped`](crate::Overlapped)).
#[derive(Debug)]
pub struct HostMemory<T: Pod> {
    /// For each slot whose buffer the host cannot map.
    sides: Vec<Option<SlotSide<T>>>,
}

#[derive(Debug)]
struct SlotSide<T: Pod> {
    memory: Buffer<T>,
    /// Copies between the two; `None` for ordinary memory, which is transferred.
    queue: Option<Queue>,
}

/// The memory of the slots during one run.
#[derive(Debug)]
pub struct HostSlots<'r, T: Pod> {
    buffers: Vec<&'r Buffer<T>>,
    sides: &'r [Option<SlotSide<T>>],
}

impl<T: Pod> Default for HostMemory<T> {
    fn default() -> Self {
        Self { sides: Vec::new() }
    }
}

impl<T: Pod> HostMemory<T> {
    /// Prepares the memory for the buffers of all slots, which the host fills or only reads.
    ///
    /// # Errors
    /// Those of building buffers and queues.
    pub fn open<'r>(
        &'r mut self,
        buffers: Vec<&'r Buffer<T>>,
        fills: bool,
    ) -> Result<HostSlots<'r, T>> {
        self.sides.truncate(buffers.len());
        for (slot, buffer) in buffers.iter().enumerate() {
            let known = self.sides.get(slot).and_then(Option::as_ref);
            let fits = known.is_some_and(|side| side.memory.len() == buffer.len());
            if slot == self.sides.len() {
                self.sides.push(None);
            }
            if buffer.maps_in_place(fills) {
                self.sides[slot] = None;
            } else if !fits {
                self.sides[slot] = Some(SlotSide::new(buffer)?);
            }
        }
        Ok(HostSlots { buffers, sides: &self.sides })
    }

    /// Describes how the frames of a slot's buffer come (`fills`) or go.
    pub fn explain(buffer: &Buffer<T>, fills: bool) -> String {
        let towards = if fills { Towards::Device } else { Towards::Host };
        HostEnd { towards, most: 2, aside: None }.explain(buffer)
    }
}

impl<T: Pod> SlotSide<T> {
    fn new(buffer: &Buffer<T>) -> Result<Self> {
        match side_of(buffer) {
            Ok((device, memory)) => Ok(Self { memory, queue: Some(device.queue()?) }),
            Err(_) => Ok(Self { memory: buffer.hub().buffer(buffer.len()).build()?, queue: None }),
        }
    }
}

impl<'r, T: Pod> HostSlots<'r, T> {
    /// The number of elements of a slot's buffer.
    pub fn len(&self, slot: usize) -> usize {
        self.buffers[slot].len()
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.buffers.len()
    }

    /// Lets the host read a slot's frame, after the work that writes it. A buffer that the host cannot map is copied first, which
    /// the ledger counts as requested.
    ///
    /// # Errors
    /// As for [`Buffer::map`].
    pub fn read(&self, slot: usize) -> Result<Map<'r, T>> {
        let (buffer, side) = (self.buffers[slot], self.sides[slot].as_ref());
        let Some(SlotSide { memory, queue }) = side else { return buffer.map() };
        match queue {
            Some(queue) => {
                bridge::copy_on(queue, buffer, memory)?;
                queue.flush()?;
            }
            None => {
                let mut map = memory.map_mut()?;
                buffer.read(&mut map)?;
                map.unmap()?;
            }
        }
        memory.map()
    }

    /// Lets the host overwrite a slot's frame, after the work that uses it.
    ///
    /// # Errors
    /// As for [`Buffer::map_overwrite`].
    pub fn overwrite(&self, slot: usize) -> Result<MapWrite<'r, T>> {
        match &self.sides[slot] {
            None => self.buffers[slot].map_overwrite(..),
            Some(side) => side.memory.map_overwrite(..),
        }
    }

    /// Ends [`overwrite`](Self::overwrite): the buffer has the new frame, or will have it before its next user begins.
    ///
    /// # Errors
    /// The driver's.
    pub fn filled(&self, slot: usize, map: MapWrite<'r, T>) -> Result<()> {
        map.unmap()?;
        self.upload(slot)
    }

    /// Like [`filled`](Self::filled), after `check` has looked at the elements.
    ///
    /// # Errors
    /// Those of `check`, and the driver's. The buffer keeps what the host wrote if that is in place.
    pub fn filled_if(
        &self,
        slot: usize,
        map: MapWrite<'r, T>,
        check: impl FnOnce(&[T]) -> Result<()>,
    ) -> Result<()> {
        map.unmap()?;
        let memory = self.sides[slot].as_ref().map_or(self.buffers[slot], |side| &side.memory);
        check(&memory.map()?)?;
        self.upload(slot)
    }

    fn upload(&self, slot: usize) -> Result<()> {
        let Some(SlotSide { memory, queue }) = &self.sides[slot] else { return Ok(()) };
        match queue {
            Some(queue) => {
                bridge::copy_on(queue, memory, self.buffers[slot])?;
                queue.flush()
            }
            None => self.buffers[slot].write(&memory.map()?),
        }
    }
}
