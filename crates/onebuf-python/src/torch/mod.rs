//! An allocator for PyTorch whose memory other APIs can use in place.
//!
//! Segments are buffers of onebuf that CUDA (or HIP) shares with other devices, without copies. `blocks` divides them; `exports` has
//! the functions that PyTorch calls. There is one allocator in a process, as in PyTorch. PyTorch frees tensors while the process ends: the
//! allocator itself stays. Its memory is freed after the interpreter has ended (`Py_AtExit`), because drivers may crash if the process ends while their
//! objects exist: NVIDIA's does with imported memory of OpenGL or Vulkan.

mod blocks;
mod exports;
mod throw;

pub(crate) use throw::{Thrower, set as set_thrower};

use crate::{ending, root::Root};
use blocks::{Blocks, Key, Stats};
use onebuf::{
    Access, BufferBuilder, CopyPolicy, Device, Error, Fence, Hub, MemoryKind, Queue, Result,
    hal::RawHandle, prelude::*,
};
use std::{
    collections::HashMap,
    ffi::c_void,
    panic::catch_unwind,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

/// How long the end waits for the work of a stream.
const WORK: Duration = Duration::from_secs(5);

/// How the segments of one device are made.
#[derive(Clone)]
pub(crate) struct Recipe {
    /// The CUDA or HIP device.
    pub device: Device,
    /// The devices that share each segment with it.
    pub share: Vec<Device>,
    pub trust_declared: bool,
}

/// The allocator of this process.
pub(crate) struct Allocator {
    /// Empty after the end of the interpreter.
    state: Mutex<Option<State>>,
}

struct State {
    hub: Hub,
    recipes: HashMap<i32, Recipe>,
    /// The most bytes of all segments.
    limit: Option<usize>,
    blocks: Blocks<Arc<Root>>,
    streams: HashMap<Key, Queue>,
    /// Streams that use a block beside its own.
    recorded: HashMap<usize, Vec<usize>>,
    /// Blocks that were given back, and the work of other streams on them.
    held: Vec<(usize, Vec<Fence>)>,
}

static ALLOCATOR: OnceLock<Allocator> = OnceLock::new();

/// The allocator, if there is one.
pub(crate) fn get() -> Option<&'static Allocator> {
    ALLOCATOR.get()
}

/// Sets the allocator. `Busy` if there is one already.
pub(crate) fn set(hub: Hub, recipes: Vec<(i32, Recipe)>, limit: Option<usize>) -> Result<()> {
    let state = State {
        hub,
        recipes: recipes.into_iter().collect(),
        limit,
        blocks: Blocks::default(),
        streams: HashMap::new(),
        recorded: HashMap::new(),
        held: Vec::new(),
    };
    let made = Allocator { state: Mutex::new(Some(state)) };
    let busy = |_| Error::Busy { what: "this process has an allocator for PyTorch already".into() };
    ALLOCATOR.set(made).map_err(busy)?;
    // SAFETY: the function calls nothing of Python's.
    if unsafe { pyo3::ffi::Py_AtExit(Some(close)) } != 0 {
        return Err(Error::Busy {
            what: "the interpreter has no place for another function at its end".into(),
        });
    }
    Ok(())
}

/// Frees all memory, after the work of the streams. PyTorch's tensors are gone, except for those that C++ still has.
extern "C" fn close() {
    let Some(allocator) = get() else { return };
    let closed = catch_unwind(|| {
        let state = allocator.lock().take();
        if let Some(mut state) = state {
            let keys: Vec<Key> = state.blocks.segments().map(|(key, ..)| key).collect();
            let all: Vec<Queue> =
                keys.into_iter().filter_map(|key| state.queue(key).ok()).collect();
            for queue in all.iter().chain(state.streams.values()) {
                // Work that fails, or takes longer, is left to the driver.
                let _ = queue.fence().wait(WORK);
            }
            drop(state);
        }
    });
    let _ = closed;
}

impl Recipe {
    /// Memory of the chip itself, never the host's, which other APIs import.
    fn request<'h>(&self, hub: &'h Hub, share: &[Device], bytes: usize) -> BufferBuilder<'h, u8> {
        let all: Vec<Device> =
            std::iter::once(self.device.clone()).chain(share.iter().cloned()).collect();
        let request = hub.buffer::<u8>(bytes).shared_with(&all).access(Access::ReadWrite);
        let request = request.copies(CopyPolicy::Forbid).trust_declared(self.trust_declared);
        request.memory_kind(MemoryKind::Exportable).name("PyTorch's segment")
    }

    /// A segment: a buffer of zeroes, and its address on the device. It has been waited for. Other APIs have limits for the size of
    /// one buffer (OpenCL often a quarter of the memory): a segment that they refuse is for this device alone.
    fn make(&self, hub: &Hub, bytes: usize) -> Result<(Arc<Root>, usize)> {
        let shared = self.request(hub, &self.share, bytes).build();
        let built = shared.or_else(|_| self.request(hub, &[], bytes).build())?;
        let root = Root::new(built, false);
        let queue = self.device.default_queue()?;
        let view = root.buffer.write_on(&queue)?;
        let RawHandle::Address(at) = view.raw()? else {
            return Err(Error::unsupported(
                format!("memory of {} without an address", self.device.id()),
                "a CUDA or HIP device",
            ));
        };
        drop(view);
        queue.flush()?;
        // PyTorch's streams are not ordered after this queue.
        queue.fence().wait(hub.timeout())?;
        Ok((root, at))
    }

    /// Whether such segments can be made: the plan alone.
    pub fn check(&self, hub: &Hub) -> Result<()> {
        self.request(hub, &self.share, 2 << 20).plan().map(drop)
    }
}

/// Where a tensor's memory is: its segment, its first byte there, and PyTorch's number of the device.
pub(crate) struct Found {
    pub root: Arc<Root>,
    pub offset: usize,
    pub device: i32,
}

impl Allocator {
    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with the state. `DeviceLost` after the interpreter's end.
    fn with<T>(&self, body: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.lock();
        let ended = || Error::DeviceLost {
            device: "PyTorch's allocator".into(),
            reason: "the interpreter has ended".into(),
        };
        body(state.as_mut().ok_or_else(ended)?)
    }

    /// The counters, and the bytes of segments that are not shared with every device.
    pub fn stats(&self) -> Result<(Stats, usize)> {
        self.with(|state| Ok((state.blocks.stats(), state.unshared())))
    }

    /// The device of that number.
    pub fn device(&self, number: i32) -> Result<Device> {
        self.with(|state| Ok(state.recipe(number)?.device.clone()))
    }

    /// PyTorch's stream as a queue.
    pub fn queue(&self, key: Key) -> Result<Queue> {
        self.with(|state| state.queue(key))
    }

    /// Allocates, from free blocks of the stream or by a new segment.
    fn allocate(&self, key: Key, bytes: usize) -> Result<usize> {
        self.with(|state| {
            if !state.held.is_empty() {
                state.sweep();
            }
            if let Some(at) = state.blocks.take(key, bytes) {
                return Ok(at);
            }
            let size = blocks::segment_bytes(bytes)
                .ok_or_else(|| Error::invalid(format!("a block of {bytes} bytes")))?;
            let (root, at) = state.segment(key.0, size)?;
            state.blocks.add(key, at, size, root);
            let taken = state.blocks.take(key, bytes);
            taken.ok_or_else(|| Error::invalid("a segment without its block"))
        })
    }

    /// Frees idle segments.
    pub fn empty_cache(&self) -> Result<usize> {
        self.with(State::trim)
    }

    /// A segment for PyTorch's own cache, which divides it.
    fn allocate_segment(&self, key: Key, bytes: usize) -> Result<usize> {
        self.with(|state| {
            let size = bytes.max(1).next_multiple_of(blocks::segment_bytes(1).unwrap_or(1));
            let (root, at) = state.segment(key.0, size)?;
            state.blocks.add(key, at, size, root);
            state.blocks.take_whole(at);
            Ok(at)
        })
    }

    /// Frees a segment after the work of its stream, of `stream`, and of those that were recorded: PyTorch does not wait for it. If that
    /// fails, the memory is never freed.
    fn free_segment(&self, at: usize, stream: usize) -> Result<()> {
        let (root, fences, timeout) = {
            let mut state = self.lock();
            let Some(state) = &mut *state else { return Ok(()) };
            let ((device, own), root) = state.blocks.remove(at).ok_or_else(|| unknown(at))?;
            let mut streams = state.recorded.remove(&at).unwrap_or_default();
            streams.extend([own, stream]);
            streams.sort_unstable();
            streams.dedup();
            let fences: Result<Vec<Fence>> =
                streams.into_iter().map(|of| Ok(state.queue((device, of))?.fence())).collect();
            (root, fences, state.hub.timeout())
        };
        let waited = fences.and_then(|all| all.iter().try_for_each(|fence| fence.wait(timeout)));
        match waited {
            Ok(()) => drop(root),
            Err(why) => {
                tracing::error!("memory of PyTorch's at {at:#x} is never freed: {why}");
                std::mem::forget(root);
            }
        }
        Ok(())
    }

    /// Gives a block back.
    fn free(&self, at: usize) -> Result<()> {
        match &mut *self.lock() {
            Some(state) => state.free(at),
            None => Ok(()),
        }
    }

    /// Notes that another stream than its own uses a block.
    pub fn record(&self, at: usize, stream: usize) {
        if let Some(state) = &mut *self.lock() {
            state.record(at, stream);
        }
    }

    /// The segment of memory that lies in one block in use.
    pub fn find(&self, at: usize, bytes: usize) -> Result<Found> {
        let no = || {
            Error::invalid(format!(
                "the {bytes} bytes at {at:#x} are no memory of onebuf's allocator: call `onebuf.torch_allocator` before PyTorch \
                 allocates, and make the tensor afterwards"
            ))
        };
        self.with(|state| {
            state.blocks.block(at, bytes).ok_or_else(no)?;
            let (root, first, _) = state.blocks.segment(at).ok_or_else(no)?;
            let (device, _) = state.blocks.key_of(at).ok_or_else(no)?;
            Ok(Found { root: root.clone(), offset: at - first, device })
        })
    }
}

impl State {
    fn recipe(&self, number: i32) -> Result<&Recipe> {
        self.recipes.get(&number).ok_or_else(|| {
            Error::invalid(format!("PyTorch's allocator has no memory of device {number}"))
        })
    }

    fn queue(&mut self, key: Key) -> Result<Queue> {
        if let Some(queue) = self.streams.get(&key) {
            return Ok(queue.clone());
        }
        let device = &self.recipe(key.0)?.device;
        // SAFETY: PyTorch's streams are never destroyed.
        let queue = unsafe { self.hub.wrap_stream(device, key.1 as *mut c_void) }?;
        self.streams.insert(key, queue.clone());
        Ok(queue)
    }

    /// Makes a segment; if that fails, once more without what is idle.
    fn segment(&mut self, device: i32, bytes: usize) -> Result<(Arc<Root>, usize)> {
        let recipe = self.recipe(device)?.clone();
        let first = self.within(bytes).and_then(|()| recipe.make(&self.hub, bytes));
        let why = match first {
            Ok(made) => return Ok(made),
            Err(why) => why,
        };
        if self.trim()? == 0 {
            return Err(why);
        }
        self.within(bytes)?;
        recipe.make(&self.hub, bytes)
    }

    fn within(&self, bytes: usize) -> Result<()> {
        let reserved = self.blocks.stats().reserved;
        match self.limit {
            Some(limit) if limit < reserved.saturating_add(bytes) => {
                let (asked, limit) = (bytes as u64, Some(limit as u64));
                Err(Error::OutOfMemory { device: "PyTorch's allocator".into(), asked, limit })
            }
            _ => Ok(()),
        }
    }

    /// Frees the segments that no block uses, after the work of their streams; returns the number of bytes.
    fn trim(&mut self) -> Result<usize> {
        let timeout = self.hub.timeout();
        for (_, fences) in &self.held {
            fences.iter().try_for_each(|fence| fence.wait(timeout))?;
        }
        self.sweep();
        let before = self.blocks.stats().reserved;
        let mut waited: HashMap<Key, Result<()>> = HashMap::new();
        for (at, key) in self.blocks.idle() {
            let done = match waited.get(&key) {
                Some(done) => done.is_ok(),
                None => {
                    let done = self.queue(key).and_then(|queue| queue.fence().wait(timeout));
                    waited.entry(key).insert_entry(done).get().is_ok()
                }
            };
            // The work of the others may still use their memory.
            if done {
                drop(self.blocks.remove(at));
            }
        }
        waited.into_values().collect::<Result<()>>()?;
        Ok(before - self.blocks.stats().reserved)
    }

    fn free(&mut self, at: usize) -> Result<()> {
        let streams = match self.recorded.is_empty() {
            true => None,
            false => self.recorded.remove(&at),
        };
        let Some(streams) = streams else {
            return self.blocks.give(at).then_some(()).ok_or_else(|| unknown(at));
        };
        self.blocks.hold(at).then_some(()).ok_or_else(|| unknown(at))?;
        if ending::has_begun() {
            // The block is not used again.
            return Ok(());
        }
        let Some((device, _)) = self.blocks.key_of(at) else { return Err(unknown(at)) };
        let fences: Result<Vec<Fence>> =
            streams.iter().map(|of| Ok(self.queue((device, *of))?.fence())).collect();
        self.held.push((at, fences?));
        Ok(())
    }

    fn record(&mut self, at: usize, stream: usize) {
        let Some(at) = self.blocks.block(at, 1) else { return };
        if self.blocks.key_of(at).is_none_or(|(_, own)| own == stream) {
            return;
        }
        let streams = self.recorded.entry(at).or_default();
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }

    /// Bytes of segments that are not shared with every device.
    fn unshared(&self) -> usize {
        let expected =
            |device: i32| self.recipes.get(&device).map_or(0, |recipe| recipe.share.len() + 1);
        let all = self.blocks.segments();
        let alone = all
            .filter(|((device, _), root, _)| root.buffer.plan().routes.len() < expected(*device));
        alone.map(|(_, _, bytes)| bytes).sum()
    }

    /// Frees held blocks whose work is done. Work that failed counts as done: the device is lost, or will say so itself.
    fn sweep(&mut self) {
        let blocks = &mut self.blocks;
        self.held.retain(|(at, fences)| {
            let done = fences.iter().all(|fence| fence.is_done().unwrap_or(true));
            if done {
                blocks.release(*at);
            }
            !done
        });
    }
}

fn unknown(at: usize) -> Error {
    Error::invalid(format!("{at:#x} was not allocated by onebuf, or is free already"))
}
