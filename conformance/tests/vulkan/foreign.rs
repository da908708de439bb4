//! A foreign `VkDevice`: the test plays the owner with raw calls, and all of its objects exist afterwards.

use super::{LOADER, N, alone, builder, machine};
use onebuf::{
    Buffer, CopyPolicy, Error, ForeignVulkan, Hub, MemoryKind, Probe, Result, RouteKind,
    VulkanBuffer, VulkanHandles, VulkanMemory, prelude::*,
};
use onebuf_conformance::{Side, Step, absent, assert_same, random_words, step_model};
use onebuf_sys::vulkan::{Device, Instance, Vulkan, vk, vk::Handle};
use std::{
    ffi::c_void,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
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
const EXTENSIONS: [&str; 1] = ["VK_KHR_external_memory_fd"];
/// The offset of the owner's buffer: it does not have the whole allocation.
const PLACE: u64 = 4096;

/// The owner and its objects. The probe counts those that are left.
pub struct Owner {
    probe: Arc<Probe>,
    instance: Instance,
    physical: vk::PhysicalDevice,
    pub device: Arc<Device>,
    pub family: u32,
}

/// Makes the handles wrong.
type Wrong<'w> = &'w dyn Fn(&mut VulkanHandles<'_>);

/// A buffer of the owner, and its memory.
pub struct Made {
    pub buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    kind: u32,
    bytes: u64,
    mapped: NonNull<u8>,
}

impl Owner {
    /// `None`, after a printed skip, without a suitable device.
    pub fn new() -> Option<Owner> {
        let probe = Probe::new();
        let Ok(vulkan) = Vulkan::load(Some(LOADER), Some(probe.clone())) else {
            absent("Vulkan", "no loader");
            return None;
        };
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: complete descriptions; each handle is used while it lives.
        unsafe {
            let instance = vulkan.create_instance(&info).unwrap();
            let Some(physical) = instance.physical_devices().unwrap().first().copied() else {
                absent("Vulkan", "no device");
                return None;
            };
            let families = instance.raw().get_physical_device_queue_family_properties(physical);
            let computes =
                |one: &vk::QueueFamilyProperties| one.queue_flags.contains(vk::QueueFlags::COMPUTE);
            let family = families.iter().position(computes).unwrap() as u32;
            let queues = [vk::DeviceQueueCreateInfo::default()
                .queue_family_index(family)
                .queue_priorities(&[1.0])];
            let mut features =
                vk::PhysicalDeviceVulkan12Features::default().timeline_semaphore(true);
            let names = [vk::KHR_EXTERNAL_MEMORY_FD_NAME.as_ptr()];
            let info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&names)
                .push_next(&mut features);
            let device = Arc::new(instance.create_device(physical, &info).unwrap());
            Some(Owner { probe, instance, physical, device, family })
        }
    }

    fn register(&self, hub: &Hub) -> Result<ForeignVulkan> {
        self.register_with(hub, &|_| ())
    }

    fn register_with(&self, hub: &Hub, change: Wrong<'_>) -> Result<ForeignVulkan> {
        let mut handles = self.handles();
        change(&mut handles);
        // SAFETY: live handles, or null handles that are refused; the owner outlives the hub's use of them.
        unsafe { hub.foreign_vulkan(&handles) }
    }

    pub fn handles(&self) -> VulkanHandles<'static> {
        let at = |handle: u64| handle as *mut c_void;
        VulkanHandles {
            instance: at(self.instance.raw().handle().as_raw()),
            physical_device: at(self.physical.as_raw()),
            device: at(self.device.raw().handle().as_raw()),
            queue_family: self.family,
            queues: &[0],
            extensions: &EXTENSIONS,
        }
    }

    /// Creates a buffer of `words` words in the middle of mapped memory, exportable on request.
    pub fn make(&self, words: usize, exportable: bool) -> Made {
        let fd = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(fd);
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(fd);
        let mut info = vk::BufferCreateInfo::default().size(words as u64 * 4).usage(USAGE);
        if exportable {
            info = info.push_next(&mut external);
        }
        // SAFETY: complete descriptions; the memory type suits the buffer, and the memory is large enough at that offset.
        unsafe {
            let buffer = self.device.create_buffer(&info).unwrap();
            let needs = self.device.raw().get_buffer_memory_requirements(buffer);
            let all = self.instance.raw().get_physical_device_memory_properties(self.physical);
            let fits = |(n, one): &(u32, &vk::MemoryType)| {
                needs.memory_type_bits >> n & 1 == 1 && one.property_flags.contains(MAPPED)
            };
            let (kind, _) = (0..).zip(all.memory_types_as_slice()).find(fits).unwrap();
            let bytes = PLACE + needs.size + 4096;
            let mut info =
                vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(kind);
            if exportable {
                info = info.push_next(&mut export);
            }
            let memory = self.device.allocate_memory(&info).unwrap();
            self.device.bind_buffer_memory(buffer, memory, PLACE).unwrap();
            let whole = (vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
            let at = self.device.map_memory(memory, 0, whole.0, whole.1).unwrap();
            Made { buffer, memory, kind, bytes, mapped: NonNull::new(at.cast()).unwrap() }
        }
    }

    /// Destroys the owner's objects, and asserts that none are left.
    pub fn end(self, made: Vec<Made>) {
        // SAFETY: everything that used them is gone.
        unsafe {
            for one in made {
                self.device.destroy_buffer(one.buffer);
                self.device.free_memory(one.memory);
            }
            self.device.destroy();
            self.instance.destroy();
        }
        assert!(self.probe.live().is_empty(), "{:?}", self.probe.live());
    }
}

impl Made {
    /// Describes the buffer to onebuf, with `words` words.
    pub fn told(&self, words: usize, exportable: bool, mapped: bool) -> VulkanBuffer {
        let memory = VulkanMemory {
            memory: self.memory.as_raw(),
            offset: PLACE,
            bytes: self.bytes,
            memory_type: self.kind,
            mapped: mapped.then_some(self.mapped),
            exportable,
        };
        let buffer = VulkanBuffer::new(self.buffer.as_raw(), words * 4);
        VulkanBuffer { memory: Some(memory), ..buffer }
    }

    /// The words as the owner sees them.
    pub fn words(&self, words: usize) -> Vec<u32> {
        // SAFETY: within the mapping; no work is pending.
        unsafe {
            let at = self.mapped.add(PLACE as usize).cast::<u32>();
            std::slice::from_raw_parts(at.as_ptr(), words).to_vec()
        }
    }

    pub fn set(&self, words: &[u32]) {
        // SAFETY: as above.
        unsafe {
            let at = self.mapped.add(PLACE as usize).cast::<u32>();
            at.copy_from(NonNull::from(words).cast(), words.len());
        }
    }
}

pub fn wrap(hub: &Hub, context: &ForeignVulkan, told: VulkanBuffer) -> Result<Buffer<u32>> {
    // SAFETY: the owner keeps it until the end of the test, and does not use it while it is wrapped.
    unsafe { hub.wrap_vk_buffer::<u32>(context, told) }.build()
}

/// The owner's device, our buffer over its memory, and the host take turns on the owner's bytes, in every memory kind.
#[test]
fn foreign_buffers_are_used_in_place() {
    let _alone = alone();
    let (Some(owner), Some(ours)) = (Owner::new(), machine(builder().without(["gl"]))) else {
        return;
    };
    let hub = &ours.hub;
    let context = owner.register(hub).unwrap();
    assert_eq!(context.device().id(), "vulkan:0@1");
    let side = Side::open(&context.device()).unwrap();
    let made = [owner.make(N, false), owner.make(N, true)];
    let memory_kinds = [
        (
            VulkanBuffer { memory: None, ..made[0].told(N, false, false) },
            &made[0],
            MemoryKind::Device,
        ),
        (made[0].told(N, false, true), &made[0], MemoryKind::MappedDevice),
        (made[1].told(N, true, false), &made[1], MemoryKind::Exportable),
        // Our own buffer over the owner's memory, which also has a buffer of the owner.
        (
            VulkanBuffer { buffer: 0, ..made[0].told(N, false, true) },
            &made[0],
            MemoryKind::MappedDevice,
        ),
    ];
    for (round, (told, theirs, memory_kind)) in (0..).zip(memory_kinds) {
        let mut model = random_words(u64::from(round), N);
        theirs.set(&model);
        let buffer = wrap(hub, &context, told).unwrap();
        assert_eq!(buffer.plan().memory_kind, memory_kind);
        assert_same(&buffer.to_vec().unwrap(), &model, "what the owner wrote");
        for n in 0..3 {
            side.step(&buffer, Step::nth(round + n)).unwrap();
            step_model(&mut model, Step::nth(round + n));
        }
        assert_same(&side.look(&buffer).unwrap(), &model, "by its device");
        if memory_kind == MemoryKind::MappedDevice {
            assert_eq!(*buffer.map().unwrap(), model[..]);
        }
        // The drop waits for the last work.
        side.step(&buffer, Step::nth(9)).unwrap();
        step_model(&mut model, Step::nth(9));
        drop(buffer);
        assert_same(&theirs.words(N), &model, "what the owner finds");
    }
    drop((side, context));
    drop(ours);
    owner.end(made.into());
}

/// Exportable memory of the owner is accessible to the hub's own device, and to others that import descriptors.
#[test]
fn foreign_memory_is_shared_by_its_descriptor() {
    let _alone = alone();
    let (Some(owner), Some(ours)) = (Owner::new(), machine(builder().without(["opencl"]))) else {
        return;
    };
    let hub = &ours.hub;
    let context = owner.register(hub).unwrap();
    let (theirs, vulkan) = (Side::open(&context.device()).unwrap(), ours.side("vulkan:0"));
    let made = owner.make(N, true);
    let mut model = random_words(4, N);
    made.set(&model);
    // SAFETY: as for `wrap`.
    let wrap = unsafe { hub.wrap_vk_buffer::<u32>(&context, made.told(N, true, false)) };
    let wrap = wrap.shared_with([&vulkan.device]).route(RouteKind::OpaqueFd);
    let before = hub.ledger().implied_bytes();
    let buffer = wrap.copies(CopyPolicy::Forbid).build().unwrap();
    for (n, side) in (0..).zip([&theirs, vulkan, &theirs, vulkan, vulkan]) {
        side.step(&buffer, Step::nth(n)).unwrap();
        step_model(&mut model, Step::nth(n));
        let other = if std::ptr::eq(side, vulkan) { &theirs } else { vulkan };
        assert_same(&other.look(&buffer).unwrap(), &model, "by a descriptor");
    }
    assert_eq!(hub.ledger().implied_bytes(), before, "{}", hub.ledger());
    drop(buffer);
    assert_same(&made.words(N), &model, "what the owner finds");
    drop((theirs, context, ours));
    owner.end(vec![made]);
}

/// Registering or wrapping again shares the object; an owned object is released once; a device entry is reused.
#[test]
fn foreign_devices_come_and_go() {
    let _alone = alone();
    let (Some(owner), Some(ours)) = (Owner::new(), machine(builder().without(["opencl", "gl"])))
    else {
        return;
    };
    let hub = &ours.hub;
    let made = owner.make(N, false);
    let released = Arc::new(AtomicUsize::new(0));
    for _ in 0..40 {
        let context = owner.register(hub).unwrap();
        assert_eq!(owner.register(hub).unwrap().device().id(), context.device().id());
        let told = made.told(N, false, true);
        let count = released.clone();
        let raw = made.buffer.as_raw();
        // SAFETY: as for `wrap`.
        let first = unsafe { hub.wrap_vk_buffer::<u32>(&context, told) }.owned(move |handle| {
            assert_eq!(handle as u64, raw);
            count.fetch_add(1, Ordering::Relaxed);
        });
        let first = first.build().unwrap();
        let second = wrap(hub, &context, told).unwrap();
        let guard = first.map_mut().unwrap();
        assert!(matches!(second.map(), Err(Error::Busy { .. })), "two states over one memory");
        drop(guard);
        drop(first);
        let before = released.load(Ordering::Relaxed);
        drop(second);
        assert_eq!(released.load(Ordering::Relaxed), before + 1);
        assert_eq!(context.device().id(), "vulkan:0@1");
    }
    drop(ours);
    owner.end(vec![made]);
}

#[test]
fn wrong_foreign_objects_are_told() {
    let _alone = alone();
    let (Some(owner), Some(ours)) = (Owner::new(), machine(builder().without(["opencl", "gl"])))
    else {
        return;
    };
    let hub = &ours.hub;
    let none = onebuf::builder().only(["host"]);
    let none = none.build().unwrap();
    assert!(matches!(owner.register(&none), Err(Error::Unavailable { .. })));
    let wrong: [(Wrong<'_>, &str); 4] = [
        (&|handles| handles.device = std::ptr::null_mut(), "null"),
        (&|handles| handles.queue_family = 77, "queue family 77"),
        (&|handles| handles.queues = &[55], "queue 55"),
        (&|handles| handles.queues = &[], "no queue"),
    ];
    for (change, words) in wrong {
        let error = owner.register_with(hub, change).unwrap_err().to_string();
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    let plain = owner.register_with(hub, &|handles| handles.extensions = &[]).unwrap();
    let made = owner.make(N, false);
    let told = made.told(N, false, true);
    let with = |change: &dyn Fn(&mut VulkanMemory)| {
        let mut memory = told.memory.unwrap();
        change(&mut memory);
        VulkanBuffer { memory: Some(memory), ..told }
    };
    let cases = [
        (VulkanBuffer { buffer: 0, memory: None, ..told }, "null, and no memory"),
        (VulkanBuffer { bytes: 0, ..told }, "0 elements"),
        (VulkanBuffer { bytes: 4 * N + 2, ..told }, "whole number of u32 elements"),
        (VulkanBuffer { bytes: 4 * N + (1 << 20), ..told }, "of a VkBuffer of"),
        (VulkanBuffer { offset: 4, bytes: 64, ..told }, "wants multiples"),
        (with(&|memory| memory.memory_type = 99), "types"),
        (with(&|memory| memory.offset = 1), "aligned to"),
        (with(&|memory| memory.bytes = PLACE + 64), "of an allocation of"),
        (with(&|memory| memory.exportable = true), "VK_KHR_external_memory_fd"),
    ];
    for (told, words) in cases {
        let error = wrap(hub, &plain, told).unwrap_err().to_string();
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    // It still works afterwards, and the owner's objects are unchanged.
    let buffer = wrap(hub, &plain, told).unwrap();
    // SAFETY: as for `wrap`.
    let other = unsafe { hub.wrap_vk_buffer::<u32>(&plain, told) }.len(N - 1).build();
    assert!(other.unwrap_err().to_string().contains("elements, not "));
    buffer.write(&random_words(1, N)).unwrap();
    drop((buffer, plain, ours));
    owner.end(vec![made]);
}
