//! One allocation: a buffer, its memory, and its host mapping. It is freed explicitly, by code that ensures that nothing
//! uses it any longer.

use super::{conv, device::Driver, duplicate::close_if_same, foreign::Under};
use onebuf_hal::{Error, FdRange, HostAccess, HostRange, Result};
use onebuf_sys::{
    VkRefused,
    vulkan::{Device, vk},
};
use std::{os::fd::IntoRawFd, ptr::NonNull};

/// The usage flags of every buffer. onebuf needs storage, uniforms and transfers; the others are for applications that draw with
/// a buffer's handle, because drivers do not let a buffer gain usages.
pub(super) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::UNIFORM_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw()
        | vk::BufferUsageFlags::VERTEX_BUFFER.as_raw()
        | vk::BufferUsageFlags::INDEX_BUFFER.as_raw()
        | vk::BufferUsageFlags::INDIRECT_BUFFER.as_raw(),
);

/// Added to the size of exportable memory: a software rasteriser that stores a private page in it needs more than the
/// buffer's bytes.
const SLACK_BYTES: u64 = 4096;

const LOCAL: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
/// The device sees the host's writes without a flush.
const MAPPED: vk::MemoryPropertyFlags =
    both(vk::MemoryPropertyFlags::HOST_VISIBLE, vk::MemoryPropertyFlags::HOST_COHERENT);
const CACHED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::HOST_CACHED;
/// Memory types that are never used.
const UNFIT: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::PROTECTED.as_raw()
        | vk::MemoryPropertyFlags::LAZILY_ALLOCATED.as_raw()
        | vk::MemoryPropertyFlags::DEVICE_COHERENT_AMD.as_raw()
        | vk::MemoryPropertyFlags::DEVICE_UNCACHED_AMD.as_raw(),
);

/// The kind of memory to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// Device-local memory.
    Device,
    /// Host-visible memory, mapped for its whole lifetime, and coherent.
    Mapped(HostAccess),
    /// Device-local memory that other APIs can import.
    Exportable,
}

impl BlockKind {
    /// The preferred properties of the memory type, best first. Every device has a type that is mapped and coherent.
    fn wishes(self) -> &'static [vk::MemoryPropertyFlags] {
        match self {
            BlockKind::Device | BlockKind::Exportable => {
                const { &[LOCAL, vk::MemoryPropertyFlags::empty()] }
            }
            // The host only writes it, so device-local memory is best: the writes bypass the host's caches.
            BlockKind::Mapped(HostAccess::Write) => const { &[both(LOCAL, MAPPED), MAPPED] },
            BlockKind::Mapped(_) => const { &[both(MAPPED, CACHED), MAPPED] },
        }
    }
}

/// Combines two flags in a constant, where `|` is not available.
const fn both(a: vk::MemoryPropertyFlags, b: vk::MemoryPropertyFlags) -> vk::MemoryPropertyFlags {
    vk::MemoryPropertyFlags::from_raw(a.as_raw() | b.as_raw())
}

/// An address that this module passes on, but never dereferences.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostAddress(pub NonNull<u8>);

// SAFETY: only an address; dereferencing it is unsafe, and the caller's responsibility.
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}

/// An allocation.
#[derive(Debug)]
pub(super) struct Block {
    pub buffer: vk::Buffer,
    pub memory: vk::DeviceMemory,
    /// The host address of the buffer's first byte.
    pub host: Option<HostAddress>,
    /// The buffer's size, in whole words.
    pub bytes: u64,
    /// The size of the memory.
    pub allocation_bytes: u64,
    /// The buffer's offset in the memory.
    pub offset: u64,
    /// The index of the memory's type, if known: an importer has to state it.
    pub kind: Option<u32>,
    /// The parts that onebuf does not free.
    pub theirs: Theirs,
}

/// Which parts of a block are foreign.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Theirs {
    pub buffer: bool,
    pub memory: bool,
}

/// Why a block could not be created.
pub(super) enum Trouble {
    Refused(VkRefused),
    Other(Error),
}

impl From<VkRefused> for Trouble {
    fn from(refused: VkRefused) -> Self {
        Trouble::Refused(refused)
    }
}

impl Trouble {
    pub fn is_lack_of_memory(&self) -> bool {
        use vk::Result as R;
        matches!(
            self,
            Trouble::Refused(VkRefused {
                status: R::ERROR_OUT_OF_DEVICE_MEMORY | R::ERROR_OUT_OF_HOST_MEMORY,
                ..
            })
        )
    }

    pub fn error(self, driver: &Driver, bytes: usize) -> Error {
        match self {
            Trouble::Refused(refused) => conv::allocation(refused, bytes, &driver.info),
            Trouble::Other(error) => error,
        }
    }
}

/// An incomplete block, freed unless it is completed.
struct Making<'d> {
    device: &'d Device,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
}

impl<'d> Making<'d> {
    /// Creates a buffer. `external` is not empty if its memory is imported or exportable.
    fn new(
        device: &'d Device,
        bytes: u64,
        external: vk::ExternalMemoryHandleTypeFlags,
    ) -> Result<Self, VkRefused> {
        let mut shared = vk::ExternalMemoryBufferCreateInfo::default().handle_types(external);
        let mut info = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(USAGE)
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        if !external.is_empty() {
            info = info.push_next(&mut shared);
        }
        // SAFETY: a live device, a complete description.
        let buffer = unsafe { device.create_buffer(&info)? };
        Ok(Self { device, buffer, memory: vk::DeviceMemory::null() })
    }

    fn needs(&self) -> vk::MemoryRequirements {
        // SAFETY: a live buffer of this device.
        unsafe { self.device.raw().get_buffer_memory_requirements(self.buffer) }
    }

    fn allocate(&mut self, info: &vk::MemoryAllocateInfo<'_>) -> Result<(), VkRefused> {
        // SAFETY: a live device, a complete description.
        self.memory = unsafe { self.device.allocate_memory(info)? };
        Ok(())
    }

    fn bind(&self, offset: u64) -> Result<(), VkRefused> {
        // SAFETY: new memory of a type and alignment that the new buffer takes, large enough.
        unsafe { self.device.bind_buffer_memory(self.buffer, self.memory, offset) }
    }

    /// Maps the memory for its whole lifetime.
    fn map(&self) -> Result<Option<HostAddress>, VkRefused> {
        let (whole, flags) = (vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
        // SAFETY: new memory that is host-visible, mapped once.
        let at = unsafe { self.device.map_memory(self.memory, 0, whole, flags)? };
        Ok(NonNull::new(at.cast()).map(HostAddress))
    }

    fn done(mut self, host: Option<HostAddress>, bytes: u64, allocation_bytes: u64) -> Block {
        let buffer = std::mem::replace(&mut self.buffer, vk::Buffer::null());
        let memory = std::mem::replace(&mut self.memory, vk::DeviceMemory::null());
        let (offset, kind, theirs) = (0, None, Theirs::default());
        Block { buffer, memory, host, bytes, allocation_bytes, offset, kind, theirs }
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        free(self.device, self.buffer, self.memory);
    }
}

/// Returns the first memory type that satisfies the first satisfiable entry of `wishes`.
fn pick(driver: &Driver, bits: u32, wishes: &[vk::MemoryPropertyFlags]) -> Option<u32> {
    let types = (0..).zip(driver.memory.memory_types_as_slice());
    let fit: Vec<_> = types
        .filter(|(n, kind)| bits >> n & 1 == 1 && !kind.property_flags.intersects(UNFIT))
        .collect();
    wishes.iter().find_map(|wish| {
        fit.iter().find(|(_, kind)| kind.property_flags.contains(*wish)).map(|(n, _)| *n)
    })
}

fn no_type(driver: &Driver, what: &str) -> Trouble {
    let what = format!("{what} on {}", driver.info.name);
    Trouble::Other(Error::unsupported(what, "a type of memory that the driver allows for it"))
}

impl Block {
    /// Allocates memory.
    pub fn new(
        device: &Device,
        driver: &Driver,
        bytes: usize,
        block_kind: BlockKind,
    ) -> Result<Block, Trouble> {
        let shared = block_kind == BlockKind::Exportable;
        let fd = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;
        let external = if shared { fd } else { vk::ExternalMemoryHandleTypeFlags::empty() };
        let bytes = words(bytes);
        let mut making = Making::new(device, bytes, external)?;
        let needs = making.needs();
        let kind = pick(driver, needs.memory_type_bits, block_kind.wishes())
            .ok_or_else(|| no_type(driver, "memory"))?;
        let size = if shared { needs.size + SLACK_BYTES } else { needs.size };
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(fd);
        let mut info =
            vk::MemoryAllocateInfo::default().allocation_size(size).memory_type_index(kind);
        if shared {
            info = info.push_next(&mut export);
        }
        making.allocate(&info)?;
        making.bind(0)?;
        let host = match block_kind {
            BlockKind::Mapped(_) => making.map()?,
            _ => None,
        };
        Ok(Block { kind: Some(kind), ..making.done(host, bytes, size) })
    }

    /// Imports foreign host pages, from the beginning of the first page. Also returns the offset of their bytes in the
    /// buffer.
    pub fn of_pages(
        device: &Device,
        driver: &Driver,
        range: &HostRange,
    ) -> Result<(Block, usize), Trouble> {
        let page = driver.limits.host_page;
        let start = range.pointer.addr().get() % page;
        // SAFETY: within the same page, which is mapped as a whole; the address is only passed on.
        let base = unsafe { range.pointer.as_ptr().sub(start) };
        let size = (start + range.bytes).next_multiple_of(page) as u64;
        let bytes = words(start + range.bytes);
        let pages = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let mut making = Making::new(device, bytes, pages)?;
        // SAFETY: pages of this process, which their owner keeps mapped.
        let bits =
            unsafe { device.host_pointer_types(base.cast()) }? & making.needs().memory_type_bits;
        let kind = pick(driver, bits, BlockKind::Mapped(HostAccess::ReadWrite).wishes())
            .ok_or_else(|| no_type(driver, "coherent host pages"))?;
        let mut import = vk::ImportMemoryHostPointerInfoEXT::default()
            .handle_type(pages)
            .host_pointer(base.cast());
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(size)
            .memory_type_index(kind)
            .push_next(&mut import);
        making.allocate(&info)?;
        making.bind(0)?;
        Ok((making.done(NonNull::new(base).map(HostAddress), bytes, size), start))
    }

    /// Imports memory behind a descriptor, from the offset of its bytes. It must be imported with its own memory type, which no
    /// call reports: if the exporter did not state it, the types are tried one after another.
    pub fn of_fd(device: &Device, driver: &Driver, range: &FdRange) -> Result<Block, Trouble> {
        let (offset, all) = (range.offset as u64, range.allocation_bytes as u64);
        let bytes = words(range.bytes).min(all - offset);
        let fd = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;
        let mut making = Making::new(device, bytes, fd)?;
        let needs = making.needs();
        if !offset.is_multiple_of(needs.alignment) || offset + needs.size > all {
            let (align, size) = (needs.alignment, needs.size);
            return Err(Trouble::Other(Error::unsupported(
                format!("{bytes} bytes at offset {offset} of a descriptor's {all}"),
                format!("room for {size} bytes that are aligned to {align}"),
            )));
        }
        let mut last = no_type(driver, "memory of a descriptor");
        let mut left = needs.memory_type_bits;
        let mut known = range.memory_type.filter(|kind| *kind < u32::BITS && left >> kind & 1 == 1);
        let mut next =
            |left| known.take().or_else(|| pick(driver, left, BlockKind::Device.wishes()));
        while let Some(kind) = next(left) {
            left &= !(1 << kind);
            match import_as(&mut making, range, kind) {
                Ok(()) => {
                    making.bind(offset)?;
                    return Ok(making.done(None, bytes, all));
                }
                Err(trouble) => last = trouble,
            }
        }
        Err(last)
    }

    /// Creates a new descriptor of its memory.
    pub fn export(&self, device: &Device) -> Result<i32, VkRefused> {
        let info = vk::MemoryGetFdInfoKHR::default()
            .memory(self.memory)
            .handle_type(vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD);
        // SAFETY: live memory that was allocated as exportable.
        unsafe { device.memory_fd(&info) }
    }

    /// Frees the block, except for its foreign parts. Nothing may use it any longer.
    pub fn free(self, device: &Device) {
        let Theirs { buffer, memory } = self.theirs;
        let buffer = if buffer { vk::Buffer::null() } else { self.buffer };
        let memory = if memory { vk::DeviceMemory::null() } else { self.memory };
        free(device, buffer, memory);
    }

    /// Creates a buffer over foreign memory of that type; freeing the block destroys only the buffer.
    pub fn over(
        device: &Device,
        driver: &Driver,
        bytes: usize,
        exportable: bool,
        under: &Under,
    ) -> Result<Block, Trouble> {
        let fd = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;
        let external = if exportable { fd } else { vk::ExternalMemoryHandleTypeFlags::empty() };
        let making = Making::new(device, words(bytes), external)?;
        under.check(driver, &making.needs()).map_err(Trouble::Other)?;
        // SAFETY: its owner keeps the memory, and the buffer accepts its type, size and alignment.
        unsafe { device.bind_buffer_memory(making.buffer, under.memory, under.offset)? };
        let mut block = making.done(under.buffer_address(), words(bytes), under.bytes);
        (block.memory, block.offset, block.kind) = (under.memory, under.offset, Some(under.kind));
        block.theirs.memory = true;
        Ok(block)
    }
}

/// Imports the descriptor as one memory type. The driver gets a duplicate, which it owns if the call succeeds.
fn import_as(making: &mut Making<'_>, range: &FdRange, kind: u32) -> Result<(), Trouble> {
    let fd = range.fd.try_clone().map_err(|why| {
        Trouble::Other(Error::invalid(format!("the descriptor cannot be duplicated: {why}")))
    })?;
    let fd = fd.into_raw_fd();
    let mut import = vk::ImportMemoryFdInfoKHR::default()
        .handle_type(vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD)
        .fd(fd);
    let info = vk::MemoryAllocateInfo::default()
        .allocation_size(range.allocation_bytes as u64)
        .memory_type_index(kind)
        .push_next(&mut import);
    making.allocate(&info).inspect_err(|_| close_if_same(fd, &range.fd))?;
    Ok(())
}

/// Rounds up to whole words, because shaders access whole words.
fn words(bytes: usize) -> u64 {
    bytes.next_multiple_of(4) as u64
}

/// The memory requirements of a foreign buffer.
pub(super) fn needs_of(device: &Device, buffer: vk::Buffer) -> vk::MemoryRequirements {
    // SAFETY: the code that registered it guarantees that it is a live buffer of this device.
    unsafe { device.raw().get_buffer_memory_requirements(buffer) }
}

/// Destroys the buffer and frees the memory; null handles are skipped.
fn free(device: &Device, buffer: vk::Buffer, memory: vk::DeviceMemory) {
    // SAFETY: created by this module, freed once; the buffer before its memory. Freeing also unmaps the memory.
    unsafe {
        if buffer != vk::Buffer::null() {
            device.destroy_buffer(buffer);
        }
        if memory != vk::DeviceMemory::null() {
            device.free_memory(memory);
        }
    }
}
