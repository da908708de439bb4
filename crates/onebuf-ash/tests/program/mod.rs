//! A small program that uses ash, as its users write it.

use ash::vk;
use std::{
    ffi::CStr,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// By its name, whatever the environment says, because other suites run without Vulkan.
pub const LOADER: &str = "libvulkan.so.1";

pub const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);
const MAPPED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw()
        | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);
const EXTENSIONS: [&CStr; 3] = [
    ash::khr::external_memory_fd::NAME,
    ash::ext::external_memory_host::NAME,
    ash::khr::external_semaphore_fd::NAME,
];

pub struct Program {
    pub instance: ash::Instance,
    pub physical: vk::PhysicalDevice,
    pub device: ash::Device,
    pub family: u32,
    pub extensions: Vec<&'static CStr>,
    pub queue: Arc<Mutex<vk::Queue>>,
    pool: Mutex<vk::CommandPool>,
    /// Keeps the loader open.
    _entry: ash::Entry,
}

/// A mapped buffer.
pub struct Made {
    pub buffer: vk::Buffer,
    pub memory: vk::DeviceMemory,
    pub bytes: u64,
    pub memory_type: u32,
    pub mapped: NonNull<u8>,
}

impl Made {
    pub fn words(&self, words: usize) -> Vec<u32> {
        // SAFETY: inside the mapping; no work is pending.
        unsafe { std::slice::from_raw_parts(self.mapped.cast().as_ptr(), words).to_vec() }
    }

    pub fn set(&self, words: &[u32]) {
        // SAFETY: as above.
        unsafe { self.mapped.cast::<u32>().copy_from(NonNull::from(words).cast(), words.len()) }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Program {
    /// `None` without a device.
    pub fn new() -> Option<Program> {
        // SAFETY: complete descriptions; each handle is used while it lives.
        unsafe {
            let entry = ash::Entry::load_from(LOADER).ok()?;
            let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
            let info = vk::InstanceCreateInfo::default().application_info(&application);
            let instance = entry.create_instance(&info, None).unwrap();
            let physical = *instance.enumerate_physical_devices().unwrap().first()?;
            let families = instance.get_physical_device_queue_family_properties(physical);
            let computes =
                |one: &vk::QueueFamilyProperties| one.queue_flags.contains(vk::QueueFlags::COMPUTE);
            let family = families.iter().position(computes)? as u32;
            let known = instance.enumerate_device_extension_properties(physical).unwrap();
            let has =
                |name: &&CStr| known.iter().any(|one| one.extension_name_as_c_str() == Ok(name));
            let extensions: Vec<_> = EXTENSIONS.into_iter().filter(has).collect();
            let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
            let queues = [vk::DeviceQueueCreateInfo::default()
                .queue_family_index(family)
                .queue_priorities(&[1.0])];
            let mut features =
                vk::PhysicalDeviceVulkan12Features::default().timeline_semaphore(true);
            let info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&names)
                .push_next(&mut features);
            let device = instance.create_device(physical, &info, None).unwrap();
            let queue = Arc::new(Mutex::new(device.get_device_queue(family, 0)));
            let info = vk::CommandPoolCreateInfo::default().queue_family_index(family);
            let pool = Mutex::new(device.create_command_pool(&info, None).unwrap());
            Some(Program {
                instance,
                physical,
                device,
                family,
                extensions,
                queue,
                pool,
                _entry: entry,
            })
        }
    }

    /// A buffer in memory that stays mapped.
    pub fn buffer(&self, bytes: usize) -> Made {
        let info = vk::BufferCreateInfo::default().size(bytes as u64).usage(USAGE);
        // SAFETY: complete descriptions; the memory type suits the buffer, and the memory is large enough.
        unsafe {
            let buffer = self.device.create_buffer(&info, None).unwrap();
            let needs = self.device.get_buffer_memory_requirements(buffer);
            let all = self.instance.get_physical_device_memory_properties(self.physical);
            let fits = |(n, one): &(u32, &vk::MemoryType)| {
                needs.memory_type_bits >> n & 1 == 1 && one.property_flags.contains(MAPPED)
            };
            let (memory_type, _) = (0..).zip(all.memory_types_as_slice()).find(fits).unwrap();
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(memory_type);
            let memory = self.device.allocate_memory(&info, None).unwrap();
            self.device.bind_buffer_memory(buffer, memory, 0).unwrap();
            let flags = vk::MemoryMapFlags::empty();
            let at = self.device.map_memory(memory, 0, vk::WHOLE_SIZE, flags).unwrap();
            let mapped = NonNull::new(at.cast()).unwrap();
            Made { buffer, memory, bytes: needs.size, memory_type, mapped }
        }
    }

    /// Fills a buffer, by a submission that waits for these points.
    pub fn fill(&self, buffer: vk::Buffer, word: u32, waits: &[(vk::Semaphore, u64)]) {
        self.submit(waits, |commands| {
            // SAFETY: being recorded; a live buffer of whole words.
            unsafe { self.device.cmd_fill_buffer(commands, buffer, 0, vk::WHOLE_SIZE, word) }
        });
    }

    pub fn fill_range(&self, buffer: vk::Buffer, offset: u64, bytes: u64, word: u32) {
        self.submit(&[], |commands| {
            // SAFETY: being recorded; a live buffer with this range.
            unsafe { self.device.cmd_fill_buffer(commands, buffer, offset, bytes, word) }
        });
    }

    fn submit(&self, waits: &[(vk::Semaphore, u64)], record: impl FnOnce(vk::CommandBuffer)) {
        let pool = locked(&self.pool);
        let info =
            vk::CommandBufferAllocateInfo::default().command_pool(*pool).command_buffer_count(1);
        let (semaphores, values): (Vec<_>, Vec<_>) = waits.iter().copied().unzip();
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; values.len()];
        let mut times = vk::TimelineSemaphoreSubmitInfo::default().wait_semaphore_values(&values);
        // SAFETY: a live pool under its lock, a complete submission, and the lock of the queue.
        unsafe {
            let commands = self.device.allocate_command_buffers(&info).unwrap();
            let begin = vk::CommandBufferBeginInfo::default();
            self.device.begin_command_buffer(commands[0], &begin).unwrap();
            record(commands[0]);
            self.device.end_command_buffer(commands[0]).unwrap();
            let work = vk::SubmitInfo::default()
                .wait_semaphores(&semaphores)
                .wait_dst_stage_mask(&stages)
                .command_buffers(&commands)
                .push_next(&mut times);
            let queue = locked(&self.queue);
            self.device.queue_submit(*queue, &[work], vk::Fence::null()).unwrap();
        }
    }

    pub fn timeline(&self) -> vk::Semaphore {
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: a live device with timeline semaphores.
        unsafe { self.device.create_semaphore(&info, None) }.unwrap()
    }

    pub fn signal(&self, timeline: vk::Semaphore, value: u64) {
        let info = vk::SemaphoreSignalInfo::default().semaphore(timeline).value(value);
        // SAFETY: a live semaphore whose value grows.
        unsafe { self.device.signal_semaphore(&info) }.unwrap();
    }

    pub fn end_timeline(&self, timeline: vk::Semaphore) {
        // SAFETY: no work uses it.
        unsafe { self.device.destroy_semaphore(timeline, None) }
    }

    pub fn end(self, made: Vec<Made>) {
        // SAFETY: everything that used these objects is gone, after the wait.
        unsafe {
            self.device.device_wait_idle().unwrap();
            for one in made {
                self.device.destroy_buffer(one.buffer, None);
                self.device.free_memory(one.memory, None);
            }
            self.device.destroy_command_pool(*locked(&self.pool), None);
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}
