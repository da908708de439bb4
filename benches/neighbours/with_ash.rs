//! A `vk::Buffer` of a program that uses ash, used by one fill on the queue that it shares.
//!
//! # Safety
//! Complete descriptions; each handle is used while it lives. One thread uses the device, and waits for each submission.

#![allow(unsafe_code)]

use crate::{BYTES, Neighbour, Opened, Result, Stop};
use ash::vk;
use onebuf::{Buffer, Hub};
use onebuf_ash::{Ash, AshBuffer, AshDevice, AshHubExt, AshQueues};
use std::{
    cell::Cell,
    sync::{Arc, Mutex, PoisonError},
};

const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);
const MAPPED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw()
        | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);
/// Nanoseconds that a submission may take.
const PATIENCE_NS: u64 = 60_000_000_000;

/// The program.
struct Program {
    instance: ash::Instance,
    physical: vk::PhysicalDevice,
    device: ash::Device,
    family: u32,
    queue: Arc<Mutex<vk::Queue>>,
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    timeline: vk::Semaphore,
    /// What the timeline reaches after the submissions so far.
    value: Cell<u64>,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    /// The memory's first word.
    first: *const u32,
    /// Keeps the loader open.
    _entry: ash::Entry,
}

struct WithAsh {
    /// First: onebuf's objects end before the program's.
    ash: Ash,
    program: Program,
    /// The last fill's word.
    word: Cell<u32>,
}

pub fn open(hub: &Hub) -> Opened {
    let absent = |why: &str| Stop::Absent(format!("Vulkan: {why}"));
    // SAFETY: the loader is an ordinary library.
    let entry = unsafe { ash::Entry::load() }.map_err(|why| absent(&why.to_string()))?;
    let Some(program) = Program::new(entry)? else { return Err(absent("no device")) };
    let Program { instance, physical, device, family, .. } = &program;
    let told =
        AshDevice { instance, physical: *physical, device, family: *family, extensions: &[] };
    // SAFETY: live handles, which the result outlives; every user holds the lock.
    let ash = unsafe { hub.ash(&told, AshQueues::Shared(program.queue.clone())) }?;
    Ok(Box::new(WithAsh { ash, program, word: Cell::new(0) }))
}

impl Program {
    /// `None` without a device.
    fn new(entry: ash::Entry) -> Result<Option<Program>> {
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: as the module says.
        unsafe {
            let instance = entry.create_instance(&info, None)?;
            let Some(&physical) = instance.enumerate_physical_devices()?.first() else {
                return Ok(None);
            };
            let families = instance.get_physical_device_queue_family_properties(physical);
            let computes =
                |one: &vk::QueueFamilyProperties| one.queue_flags.contains(vk::QueueFlags::COMPUTE);
            let Some(family) = families.iter().position(computes) else { return Ok(None) };
            let family = family as u32;
            let queues = [vk::DeviceQueueCreateInfo::default()
                .queue_family_index(family)
                .queue_priorities(&[1.0])];
            let mut features =
                vk::PhysicalDeviceVulkan12Features::default().timeline_semaphore(true);
            let info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .push_next(&mut features);
            let device = instance.create_device(physical, &info, None)?;
            let queue = Arc::new(Mutex::new(device.get_device_queue(family, 0)));
            let info = vk::CommandPoolCreateInfo::default()
                .queue_family_index(family)
                .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
            let pool = device.create_command_pool(&info, None)?;
            let info =
                vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
            let commands = device.allocate_command_buffers(&info)?[0];
            let mut kind =
                vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
            let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
            let timeline = device.create_semaphore(&info, None)?;
            let (buffer, memory, first) = buffer(&instance, physical, &device)?;
            let (value, _entry) = (Cell::new(0), entry);
            Ok(Some(Program {
                instance,
                physical,
                device,
                family,
                queue,
                pool,
                commands,
                timeline,
                value,
                buffer,
                memory,
                first,
                _entry,
            }))
        }
    }

    /// What a library that is given a buffer asks for: Vulkan does not tell its size.
    fn query(&self) {
        // SAFETY: a live buffer.
        let needs = unsafe { self.device.get_buffer_memory_requirements(self.buffer) };
        std::hint::black_box(needs.size);
    }

    /// Records a fill, submits it under the lock, and waits for it.
    fn fill(&self, word: u32) -> Result<()> {
        let (Program { device, commands, timeline, .. }, value) = (self, self.value.get() + 1);
        let once = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let (timelines, values, all) = ([*timeline], [value], [*commands]);
        let mut signals =
            vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let work = vk::SubmitInfo::default()
            .command_buffers(&all)
            .signal_semaphores(&timelines)
            .push_next(&mut signals);
        // SAFETY: as the module says; the last submission of these commands is done.
        unsafe {
            device.begin_command_buffer(*commands, &once)?;
            self.barrier(vk::AccessFlags::MEMORY_WRITE, vk::AccessFlags::TRANSFER_WRITE);
            device.cmd_fill_buffer(*commands, self.buffer, 0, BYTES as u64, word);
            self.barrier(vk::AccessFlags::TRANSFER_WRITE, vk::AccessFlags::HOST_READ);
            device.end_command_buffer(*commands)?;
            let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            device.queue_submit(*queue, &[work], vk::Fence::null())?;
            drop(queue);
            let wait = vk::SemaphoreWaitInfo::default().semaphores(&timelines).values(&values);
            device.wait_semaphores(&wait, PATIENCE_NS)?;
        }
        self.value.set(value);
        Ok(())
    }

    fn barrier(&self, from: vk::AccessFlags, to: vk::AccessFlags) {
        let all = vk::PipelineStageFlags::ALL_COMMANDS | vk::PipelineStageFlags::HOST;
        let memory = [vk::MemoryBarrier::default().src_access_mask(from).dst_access_mask(to)];
        let none = vk::DependencyFlags::empty();
        // SAFETY: the commands are being recorded.
        unsafe {
            self.device.cmd_pipeline_barrier(self.commands, all, all, none, &memory, &[], &[]);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let Program { device, instance, .. } = self;
        // SAFETY: everything that used these objects is gone, after the wait. A benchmark ignores refusals.
        unsafe {
            let _ = device.device_wait_idle();
            device.destroy_buffer(self.buffer, None);
            device.free_memory(self.memory, None);
            device.destroy_semaphore(self.timeline, None);
            device.destroy_command_pool(self.pool, None);
            device.destroy_device(None);
            instance.destroy_instance(None);
        }
    }
}

/// A buffer in memory that stays mapped, which onebuf is not told.
///
/// # Safety
/// Live handles.
unsafe fn buffer(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    device: &ash::Device,
) -> Result<(vk::Buffer, vk::DeviceMemory, *const u32)> {
    let info = vk::BufferCreateInfo::default().size(BYTES as u64).usage(USAGE);
    // SAFETY: the caller's contract; the memory type suits the buffer, and the memory is large enough.
    unsafe {
        let buffer = device.create_buffer(&info, None)?;
        let needs = device.get_buffer_memory_requirements(buffer);
        let all = instance.get_physical_device_memory_properties(physical);
        let fits = |(n, one): &(u32, &vk::MemoryType)| {
            needs.memory_type_bits >> n & 1 == 1 && one.property_flags.contains(MAPPED)
        };
        let kind = (0..).zip(all.memory_types_as_slice()).find(fits);
        let (kind, _) = kind.ok_or("no memory that can be mapped")?;
        let info =
            vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(kind);
        let memory = device.allocate_memory(&info, None)?;
        device.bind_buffer_memory(buffer, memory, 0)?;
        let at = device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())?;
        Ok((buffer, memory, at.cast()))
    }
}

impl WithAsh {
    fn wrapped(&self) -> onebuf::Result<Buffer<u32>> {
        // SAFETY: a live buffer, which nothing else uses meanwhile.
        unsafe { self.ash.wrap(&AshBuffer::new(self.program.buffer, BYTES, USAGE)) }?.build()
    }

    fn next(&self) -> u32 {
        self.word.set(self.word.get().wrapping_add(1));
        self.word.get()
    }
}

impl Neighbour for WithAsh {
    fn wrap(&self) -> Result<()> {
        Ok(self.wrapped()?.fill(self.next())?)
    }

    fn wrap_unused(&self) -> Result<()> {
        Ok(self.wrapped().map(drop)?)
    }

    fn raw(&self) -> Result<()> {
        self.program.query();
        self.program.fill(self.next())
    }

    fn raw_unused(&self) -> Result<()> {
        self.program.query();
        Ok(())
    }

    fn words(&self) -> Result<[u32; 2]> {
        // SAFETY: mapped and coherent memory, and no work is pending.
        Ok([unsafe { self.program.first.read_volatile() }, self.word.get()])
    }
}
