//! A program that uses ash: OpenCL moves vertices in memory that the program's own Vulkan commands read, without a copy.
//!
//! The program has one `VkQueue` and keeps it. onebuf submits to it under the same lock.
//!
//! `cargo run -p onebuf-examples --example ash-vertices`

use ash::vk;
use onebuf::{Each, SyncMethod, prelude::*};
use onebuf_ash::{AshBuffer, AshDevice, AshHubExt, AshMemory, AshQueues, AshViewExt};
use std::{
    error::Error,
    ffi::CStr,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

const N: usize = 4096;
const TEXT: &str = "kernel void turn(global float *p, float by) { p[get_global_id(0)] += by; }";
const EXTENSIONS: [&CStr; 2] =
    [ash::ext::external_memory_host::NAME, ash::khr::external_memory_fd::NAME];

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: loads the system's loader, which runs its initialization.
    let Ok(entry) = (unsafe { ash::Entry::load() }) else {
        println!("no Vulkan here: nothing for ash to draw");
        return Ok(());
    };
    let Some(program) = Program::new(&entry)? else {
        println!("no Vulkan here: nothing for ash to draw");
        return Ok(());
    };
    let hub = onebuf::discover()?;
    let told = AshDevice {
        instance: &program.instance,
        physical: program.physical,
        device: &program.device,
        family: 0,
        extensions: &program.extensions,
    };
    // SAFETY: live handles, which outlive everything below. The program uses its queue under the lock alone.
    let ash = unsafe { hub.ash(&told, AshQueues::Shared(program.queue.clone())) }?;
    let memory = AshMemory {
        memory: program.vertices.memory,
        offset: 0,
        bytes: program.vertices.bytes,
        memory_type: program.vertices.memory_type,
        mapped: Some(program.vertices.mapped), // so the host and OpenCL use it in place
        exportable: false,
    };
    let vertices =
        AshBuffer { memory: Some(memory), ..AshBuffer::new(program.vertices.buffer, N * 4, USAGE) };
    let compute = hub.device("opencl").unwrap_or_else(|_| hub.host());
    // SAFETY: the program's buffer outlives this, and its work on it goes through the queue.
    let wrap = unsafe { ash.wrap::<f32>(&vertices) }?;
    let positions = wrap.shared_with([&compute]).trust_declared(true).build()?; // or run `onebuf doctor` once

    let source = onebuf::Source::opencl_c(TEXT).with_native("turn", |args| {
        let by = args.value::<f32>(1)?;
        args.slice_mut::<f32>(0)?.iter_mut().for_each(|x| *x += by);
        Ok(())
    });
    // SAFETY: work-item i touches p[i] only.
    let turn = unsafe { compute.kernel::<(Each<&mut f32>, f32)>(source, "turn")? };
    let queue = ash.queue()?; // the program's queue, as a queue of the hub
    positions.fill(0.0)?;
    let mut sync = SyncMethod::SameQueue;
    for frame in 1..=10 {
        turn.launch([N], (&positions, 0.5))?; // OpenCL writes
        let view = positions.read_on(&queue)?; // the program's next submission comes after it
        sync = view.sync_method();
        program.draw(view.ash_buffer()?.0)?; // the program submits, and does not wait
        drop(view); // OpenCL's next kernel comes after that submission
        if frame == 10 {
            queue.finish()?;
        }
    }
    let drawn = program.drawn.floats();
    assert!(drawn.iter().all(|&x| x == 5.0), "{:?}", &drawn[..4]);
    println!("ash drew 10 frames that {compute} computed; its queue waited by {sync}");
    println!("{}", positions.explain());
    drop((positions, turn, queue, ash, hub));
    program.end();
    Ok(())
}

const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// What every program with ash has: a device, a queue, commands, buffers.
struct Program {
    instance: ash::Instance,
    physical: vk::PhysicalDevice,
    device: ash::Device,
    extensions: Vec<&'static CStr>,
    queue: Arc<Mutex<vk::Queue>>,
    pool: vk::CommandPool,
    vertices: Mapped,
    /// What its commands copy the vertices to.
    drawn: Mapped,
}

struct Mapped {
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    bytes: u64,
    memory_type: u32,
    mapped: NonNull<u8>,
}

impl Mapped {
    fn floats(&self) -> Vec<f32> {
        // SAFETY: the mapping has N floats, and no work is pending.
        unsafe { std::slice::from_raw_parts(self.mapped.cast().as_ptr(), N).to_vec() }
    }
}

impl Program {
    fn new(entry: &ash::Entry) -> Result<Option<Self>, vk::Result> {
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: complete descriptions; each handle is used while it lives.
        unsafe {
            let Ok(instance) = entry.create_instance(&info, None) else { return Ok(None) };
            let all = instance.enumerate_physical_devices()?;
            let Some(&physical) = all.first() else { return Ok(None) };
            let known = instance.enumerate_device_extension_properties(physical)?;
            let has =
                |name: &&CStr| known.iter().any(|one| one.extension_name_as_c_str() == Ok(name));
            let extensions: Vec<_> = EXTENSIONS.into_iter().filter(has).collect();
            let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
            let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
            let mut features =
                vk::PhysicalDeviceVulkan12Features::default().timeline_semaphore(true);
            let info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&names)
                .push_next(&mut features);
            let device = instance.create_device(physical, &info, None)?;
            let queue = Arc::new(Mutex::new(device.get_device_queue(0, 0)));
            let pool = device.create_command_pool(&vk::CommandPoolCreateInfo::default(), None)?;
            let [vertices, drawn] =
                [mapped(&instance, physical, &device)?, mapped(&instance, physical, &device)?];
            Ok(Some(Self { instance, physical, device, extensions, queue, pool, vertices, drawn }))
        }
    }

    /// Copies the vertices, as a stand-in for drawing them, and does not wait.
    fn draw(&self, vertices: vk::Buffer) -> Result<(), vk::Result> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .command_buffer_count(1);
        // SAFETY: complete descriptions of live objects; the queue is used under the lock.
        unsafe {
            let commands = self.device.allocate_command_buffers(&info)?;
            self.device
                .begin_command_buffer(commands[0], &vk::CommandBufferBeginInfo::default())?;
            let whole = [vk::BufferCopy::default().size(N as u64 * 4)];
            self.device.cmd_copy_buffer(commands[0], vertices, self.drawn.buffer, &whole);
            self.device.end_command_buffer(commands[0])?;
            let work = [vk::SubmitInfo::default().command_buffers(&commands)];
            let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            self.device.queue_submit(*queue, &work, vk::Fence::null())
        }
    }

    fn end(self) {
        // SAFETY: all work is done, and nothing uses these objects any longer.
        unsafe {
            let _ = self.device.device_wait_idle();
            for one in [self.vertices, self.drawn] {
                self.device.destroy_buffer(one.buffer, None);
                self.device.free_memory(one.memory, None);
            }
            self.device.destroy_command_pool(self.pool, None);
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// A buffer in memory that stays mapped.
///
/// # Safety
/// Live handles of one device.
unsafe fn mapped(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    device: &ash::Device,
) -> Result<Mapped, vk::Result> {
    let info = vk::BufferCreateInfo::default().size(N as u64 * 4).usage(USAGE);
    let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
    // SAFETY: complete descriptions; the memory type suits the buffer, and the memory is large enough.
    unsafe {
        let buffer = device.create_buffer(&info, None)?;
        let needs = device.get_buffer_memory_requirements(buffer);
        let all = instance.get_physical_device_memory_properties(physical);
        let fits = |(n, one): &(u32, &vk::MemoryType)| {
            needs.memory_type_bits >> n & 1 == 1 && one.property_flags.contains(wanted)
        };
        let found = (0..).zip(all.memory_types_as_slice()).find(fits);
        let (memory_type, _) = found.ok_or(vk::Result::ERROR_FEATURE_NOT_PRESENT)?;
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(memory_type);
        let memory = device.allocate_memory(&info, None)?;
        device.bind_buffer_memory(buffer, memory, 0)?;
        let at = device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())?;
        let mapped = NonNull::new(at.cast()).ok_or(vk::Result::ERROR_MEMORY_MAP_FAILED)?;
        Ok(Mapped { buffer, memory, bytes: needs.size, memory_type, mapped })
    }
}
