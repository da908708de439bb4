//! Batches: commands that are submitted together, and the objects that they use.

use super::{
    block::{Block, BlockKind},
    device::Context,
    kernel::RawKernel,
    memory::{Inner, Memory},
    timeline::Timeline,
};
use onebuf_hal::{
    HostAccess, Result,
    locks::{Arc, AtomicBool, Ordering},
};
use onebuf_sys::vulkan::vk;
use std::sync::OnceLock;

/// The maximum number of launches in a batch.
pub(super) const MOST_SETS: u32 = 32;
/// The maximum number of buffers of all launches in a batch, and so of one launch.
pub(super) const MOST_STORAGES: u32 = 256;
/// Space for the values of all launches in a batch.
pub(super) const ARENA_BYTES: usize = 64 << 10;
/// Timestamps of a launch: its beginning and its end.
const TICKS: u32 = 2;

/// The access masks and pipeline stages of the commands.
const WRITES: vk::AccessFlags = vk::AccessFlags::from_raw(
    vk::AccessFlags::SHADER_WRITE.as_raw() | vk::AccessFlags::TRANSFER_WRITE.as_raw(),
);
const USES: vk::AccessFlags = vk::AccessFlags::from_raw(
    WRITES.as_raw()
        | vk::AccessFlags::SHADER_READ.as_raw()
        | vk::AccessFlags::TRANSFER_READ.as_raw()
        | vk::AccessFlags::UNIFORM_READ.as_raw(),
);
/// Every access of the device.
const ANY: vk::AccessFlags = vk::AccessFlags::from_raw(
    vk::AccessFlags::MEMORY_READ.as_raw() | vk::AccessFlags::MEMORY_WRITE.as_raw(),
);
const WORK: vk::PipelineStageFlags = vk::PipelineStageFlags::from_raw(
    vk::PipelineStageFlags::COMPUTE_SHADER.as_raw() | vk::PipelineStageFlags::TRANSFER.as_raw(),
);

/// Where command buffers come from.
#[derive(Clone, Copy)]
pub(super) struct Commands {
    pub pool: vk::CommandPool,
    pub level: vk::CommandBufferLevel,
}

/// The objects that a batch is recorded into. Reused when the batch is done.
#[derive(Debug)]
pub(super) struct Slot {
    pub commands: vk::CommandBuffer,
    pub descriptors: vk::DescriptorPool,
    /// The values of launches, in mapped memory.
    pub arena: Block,
    /// Timestamp queries, if the queue is profiled.
    ticks: Option<vk::QueryPool>,
}

impl Slot {
    /// Creates a slot. Its command buffer is freed with `pool`.
    pub fn new(context: &Context, pool: Commands, profiling: bool) -> Result<Slot> {
        let Context { driver, table, .. } = context;
        let sizes = [
            (vk::DescriptorType::STORAGE_BUFFER, MOST_STORAGES),
            (vk::DescriptorType::UNIFORM_BUFFER, MOST_SETS),
        ];
        let sizes =
            sizes.map(|(ty, n)| vk::DescriptorPoolSize::default().ty(ty).descriptor_count(n));
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(MOST_SETS).pool_sizes(&sizes);
        // SAFETY: a live device, a complete description.
        let descriptors = driver.check(unsafe { table.create_descriptor_pool(&info) })?;
        let arena = Block::new(table, driver, ARENA_BYTES, BlockKind::Mapped(HostAccess::Write));
        let arena = arena.map_err(|trouble| {
            // SAFETY: created above, and unused.
            unsafe { table.destroy_descriptor_pool(descriptors) };
            trouble.error(driver, ARENA_BYTES)
        })?;
        let mut slot =
            Slot { commands: vk::CommandBuffer::null(), descriptors, arena, ticks: None };
        match slot.fill(context, pool, profiling) {
            Ok(()) => Ok(slot),
            Err(why) => {
                slot.free(context);
                Err(why)
            }
        }
    }

    fn fill(&mut self, context: &Context, pool: Commands, profiling: bool) -> Result<()> {
        let Context { driver, table, .. } = context;
        if profiling {
            let info = vk::QueryPoolCreateInfo::default()
                .query_type(vk::QueryType::TIMESTAMP)
                .query_count(TICKS);
            // SAFETY: a live device, a complete description.
            self.ticks = Some(driver.check(unsafe { table.create_query_pool(&info) })?);
        }
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool.pool)
            .level(pool.level)
            .command_buffer_count(1);
        // SAFETY: a live pool, used by one thread at a time.
        let made = driver.check(unsafe { table.allocate_command_buffers(&info) })?;
        self.commands = made.first().copied().unwrap_or_default();
        Ok(())
    }

    /// Frees the slot, which nothing may use any longer. Its command buffer is freed with the pool.
    pub fn free(self, context: &Context) {
        let table = &context.table;
        // SAFETY: created by `new`, freed once.
        unsafe {
            table.destroy_descriptor_pool(self.descriptors);
            self.ticks.into_iter().for_each(|pool| table.destroy_query_pool(pool));
        }
        self.arena.free(table);
    }

    /// Resets the slot and begins recording.
    pub fn begin(&self, context: &Context) -> Result<()> {
        let Context { driver, table, .. } = context;
        let once = vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT;
        // Primary command buffers ignore it.
        let inherited = vk::CommandBufferInheritanceInfo::default();
        let info = vk::CommandBufferBeginInfo::default().flags(once).inheritance_info(&inherited);
        // SAFETY: the last batch of this slot is done; beginning resets the commands.
        driver.check(unsafe {
            let kept = vk::DescriptorPoolResetFlags::empty();
            table
                .reset_descriptor_pool(self.descriptors, kept)
                .and_then(|()| table.begin_command_buffer(self.commands, &info))
        })?;
        if let Some(pool) = self.ticks {
            // SAFETY: being recorded, and not used by any other batch.
            unsafe { table.raw().cmd_reset_query_pool(self.commands, pool, 0, TICKS) };
        }
        Ok(())
    }
}

/// Holds a batch back until the host opens it.
#[derive(Debug, Default)]
pub(super) struct Latch(AtomicBool);

impl Latch {
    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// An object that must live until a batch is done.
#[derive(Debug)]
pub(super) enum Keep {
    Memory(#[allow(dead_code, reason = "kept, not used")] Arc<Inner>),
    Kernel(#[allow(dead_code, reason = "kept, not used")] Arc<RawKernel>),
}

/// A copy between the caller's memory and staging memory. The caller keeps its memory valid until the event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carry {
    pub from: *const u8,
    pub to: *mut u8,
    pub bytes: usize,
}

// SAFETY: the owners keep the addresses valid until the batch is done, whichever thread observes that.
unsafe impl Send for Carry {}

impl Carry {
    fn go(self) {
        // SAFETY: valid until the batch is done, by the contract of the code that created it; the two do not overlap, since
        // one of them is staging memory.
        unsafe { self.from.copy_to_nonoverlapping(self.to, self.bytes) };
    }
}

/// The timestamps of a launch, set once it is done.
pub(super) type Ticks = Arc<OnceLock<[u64; TICKS as usize]>>;

/// Commands, and the objects that they use.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The timeline's value when the batch is done.
    pub value: u64,
    pub slot: Option<Slot>,
    /// Points of other queues that must be reached first.
    pub after: Vec<(Arc<Timeline>, u64)>,
    pub latches: Vec<Arc<Latch>>,
    /// Semaphores of other APIs: those that the batch waits for, which are signalled independently of it, and those that it
    /// signals. Their creator keeps them alive.
    pub takes: Vec<vk::Semaphore>,
    pub signals: Vec<vk::Semaphore>,
    keeps: Vec<Keep>,
    /// Timelines that the native queue was made to wait for since the last batch, and memory that other code's work uses.
    pub waited: Vec<Arc<Timeline>>,
    pub noted: Vec<Arc<Inner>>,
    /// Whether other code submits to the queue, too: the batch is then ordered with any command.
    is_wide: bool,
    /// Externally shared memory that this device owns until the end of the batch.
    external: Vec<Arc<Inner>>,
    /// Copies into staging memory, made before the commands run.
    pub loads: Vec<Carry>,
    /// Copies out of staging memory, made after the commands have run.
    pub landings: Vec<Carry>,
    pub staging: Vec<Block>,
    /// The number of recorded commands.
    pub commands: u32,
    pub sets: u32,
    pub storages: u32,
    pub arena_used: usize,
    ticks: Option<Ticks>,
}

impl Batch {
    /// An empty batch in a slot that is being recorded. `is_wide`: other code submits to the queue, too.
    pub fn of(slot: Slot, is_wide: bool) -> Batch {
        Batch { slot: Some(slot), is_wide, ..Batch::default() }
    }

    /// A batch without commands that signals a semaphore.
    pub fn signalling(semaphore: vk::Semaphore) -> Batch {
        Batch { signals: vec![semaphore], ..Batch::default() }
    }

    /// Whether the batch can be submitted: its latches are open, and the driver has the work that it waits for.
    pub fn is_ready(&self) -> bool {
        let submitted = |(timeline, value): &(Arc<Timeline>, u64)| timeline.is_submitted(*value);
        self.latches.iter().all(|latch| latch.is_open()) && self.after.iter().all(submitted)
    }

    pub fn keep(&mut self, what: Keep) {
        self.keeps.push(what);
    }

    fn buffer(&self) -> vk::CommandBuffer {
        self.slot.as_ref().map_or_else(vk::CommandBuffer::null, |slot| slot.commands)
    }

    /// Prepares a command: orders it after the previous ones, and acquires externally shared memory that it uses.
    pub fn use_in_order(&mut self, context: &Context, uses: &[&Memory]) -> vk::CommandBuffer {
        let mut taken = Vec::new();
        for memory in uses {
            self.keeps.push(Keep::Memory(memory.inner.clone()));
            let known = |one: &Arc<Inner>| Arc::ptr_eq(one, &memory.inner);
            if memory.inner.ownership.is_by_batch() && !self.external.iter().any(known) {
                self.external.push(memory.inner.clone());
                taken.push(owned(context, &memory.inner, true));
            }
        }
        let (from, writes) = self.others();
        let all = [vk::MemoryBarrier::default().src_access_mask(writes).dst_access_mask(USES)];
        self.barrier(context, from, WORK, &all, &taken);
        self.buffer()
    }

    /// The stages and writes of earlier commands. Other code may have submitted any command.
    fn others(&self) -> (vk::PipelineStageFlags, vk::AccessFlags) {
        match self.is_wide {
            true => (vk::PipelineStageFlags::ALL_COMMANDS, vk::AccessFlags::MEMORY_WRITE),
            false => (WORK, WRITES),
        }
    }

    /// Transfers ownership of memory: true acquires it, false releases it.
    pub fn transfer_ownership(&mut self, context: &Context, inner: &Arc<Inner>, steps: &[bool]) {
        self.keeps.push(Keep::Memory(inner.clone()));
        for take in steps {
            let all = vk::PipelineStageFlags::ALL_COMMANDS;
            let any = if *take {
                [vk::AccessFlags::empty(), ANY]
            } else {
                [ANY, vk::AccessFlags::empty()]
            };
            let owned =
                owned(context, inner, *take).src_access_mask(any[0]).dst_access_mask(any[1]);
            self.barrier(context, all, all, &[], &[owned]);
        }
    }

    /// Ends recording: makes writes visible to the host, and releases externally shared memory.
    pub fn end(&mut self, context: &Context) -> Result<()> {
        let mut uses = vk::AccessFlags::HOST_READ | vk::AccessFlags::HOST_WRITE;
        let mut to = vk::PipelineStageFlags::HOST | vk::PipelineStageFlags::BOTTOM_OF_PIPE;
        if self.is_wide {
            // Other code's next commands are ordered by this barrier alone.
            uses |= ANY;
            to |= vk::PipelineStageFlags::ALL_COMMANDS;
        }
        let (from, writes) = self.others();
        let all = [vk::MemoryBarrier::default().src_access_mask(writes).dst_access_mask(uses)];
        let given: Vec<_> =
            self.external.iter().map(|inner| owned(context, inner, false)).collect();
        self.barrier(context, from, to, &all, &given);
        // SAFETY: it is being recorded.
        context.driver.check(unsafe { context.table.end_command_buffer(self.buffer()) })
    }

    fn barrier(
        &self,
        context: &Context,
        from: vk::PipelineStageFlags,
        to: vk::PipelineStageFlags,
        all: &[vk::MemoryBarrier<'_>],
        buffers: &[vk::BufferMemoryBarrier<'_>],
    ) {
        let (none, commands) = (vk::DependencyFlags::empty(), self.buffer());
        // SAFETY: it is being recorded, by one thread.
        unsafe {
            context.table.raw().cmd_pipeline_barrier(commands, from, to, none, all, buffers, &[]);
        }
    }

    /// Records a timestamp, before or after a launch, if the queue is profiled.
    pub fn tick(&mut self, context: &Context, is_end: bool) -> Option<Ticks> {
        let pool = self.slot.as_ref().and_then(|slot| slot.ticks)?;
        let stage = match is_end {
            true => vk::PipelineStageFlags::BOTTOM_OF_PIPE,
            false => vk::PipelineStageFlags::TOP_OF_PIPE,
        };
        let (commands, number) = (self.buffer(), u32::from(is_end));
        // SAFETY: being recorded; the query was reset at the beginning, and is written once.
        unsafe { context.table.raw().cmd_write_timestamp(commands, stage, pool, number) };
        Some(self.ticks.get_or_insert_default().clone())
    }

    /// Whether the batch has a timed launch; there is only one pair of timestamps.
    pub fn is_timed(&self) -> bool {
        self.ticks.is_some()
    }

    /// Copies the caller's bytes into staging memory, right before the commands are submitted.
    pub fn load(&self) {
        self.loads.iter().for_each(|load| load.go());
    }

    /// Completes the batch: copies the bytes that were read to the caller, and stores the timestamps.
    pub fn land(&mut self, context: &Context) {
        self.landings.drain(..).for_each(Carry::go);
        let pool = self.slot.as_ref().and_then(|slot| slot.ticks);
        if let Some((ticks, pool)) = self.ticks.take().zip(pool) {
            let mut read = [0; TICKS as usize];
            // SAFETY: both were written by commands that are done.
            match unsafe { context.table.query_results(pool, 0, &mut read) } {
                Ok(()) => drop(ticks.set(read)),
                Err(why) => tracing::warn!(device = %context.driver.info.name, "{why}"),
            }
        }
    }
}

/// A transfer of queue family ownership between this device and external users.
fn owned(context: &Context, inner: &Inner, take: bool) -> vk::BufferMemoryBarrier<'static> {
    let (ours, theirs) = (context.driver.family.index, vk::QUEUE_FAMILY_EXTERNAL);
    let (none, [from, to]) =
        (vk::AccessFlags::empty(), if take { [theirs, ours] } else { [ours, theirs] });
    vk::BufferMemoryBarrier::default()
        .src_access_mask(if take { none } else { WRITES })
        .dst_access_mask(if take { USES } else { none })
        .src_queue_family_index(from)
        .dst_queue_family_index(to)
        .buffer(inner.buffer)
        .offset(0)
        .size(vk::WHOLE_SIZE)
}
