//! One allocation: a buffer, its memory, and its host mapping. It is freed explicitly, by the code that knows that
//! nothing uses it any more.

use super::{conv, device::Driver, duplicate::close_if_same, foreign::Under};
use onebuf_hal::{Error, FdRange, HostAccess, HostRange, Result};
use onebuf_sys::{
    VkRefused,
    vulkan::{Device, vk},
};
use std::{os::fd::IntoRawFd, ptr::NonNull};

/// What every buffer is for.
pub(super) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::UNIFORM_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// Behind memory that others import: a rasteriser that keeps a page of its own in it wants more than the
/// bytes of the buffer.
const SLACK_BYTES: u64 = 4096;

const LOCAL: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
/// The host writes without telling, and the device sees it.
const MAPPED: vk::MemoryPropertyFlags =
    both(vk::MemoryPropertyFlags::HOST_VISIBLE, vk::MemoryPropertyFlags::HOST_COHERENT);
const CACHED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::HOST_CACHED;
/// Memory for other purposes.
const UNFIT: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::PROTECTED.as_raw()
        | vk::MemoryPropertyFlags::LAZILY_ALLOCATED.as_raw()
        | vk::MemoryPropertyFlags::DEVICE_COHERENT_AMD.as_raw()
        | vk::MemoryPropertyFlags::DEVICE_UNCACHED_AMD.as_raw(),
);

/// What memory is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// The chip's own.
    Device,
    /// Mapped for as long as it lives, and coherent.
    Mapped(HostAccess),
    /// The chip's own, which others can import.
    Exportable,
}

impl BlockKind {
    /// What its type of memory has, best first. Every device has a type that is mapped and coherent.
    fn wishes(self) -> &'static [vk::MemoryPropertyFlags] {
        match self {
            BlockKind::Device | BlockKind::Exportable => {
                const { &[LOCAL, vk::MemoryPropertyFlags::empty()] }
            }
            // The host's writes go past its caches to the chip, and nobody reads them back.
            BlockKind::Mapped(HostAccess::Write) => const { &[both(LOCAL, MAPPED), MAPPED] },
            BlockKind::Mapped(_) => const { &[both(MAPPED, CACHED), MAPPED] },
        }
    }
}

/// Both, in constants: `|` is not for those.
const fn both(a: vk::MemoryPropertyFlags, b: vk::MemoryPropertyFlags) -> vk::MemoryPropertyFlags {
    vk::MemoryPropertyFlags::from_raw(a.as_raw() | b.as_raw())
}

/// An address that is only passed on here.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostAddress(pub NonNull<u8>);

// SAFETY: an address; who dereferences it answers for that.
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}

/// An allocation.
#[derive(Debug)]
pub(super) struct Block {
    pub buffer: vk::Buffer,
    pub memory: vk::DeviceMemory,
    /// Where the host sees the first byte.
    pub host: Option<HostAddress>,
    /// How many bytes the buffer has: whole words.
    pub bytes: u64,
    /// How many the memory has.
    pub allocation_bytes: u64,
    /// Where in the memory the buffer begins.
    pub offset: u64,
    /// The number of the memory's type, where it is known: who imports it has to say it.
    pub kind: Option<u32>,
    /// What of it is somebody else's to free.
    pub theirs: Theirs,
}

/// What of a block was made by somebody else.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Theirs {
    pub buffer: bool,
    pub memory: bool,
}

/// Why there is no block.
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

/// What was made so far of a block: given back, unless it is finished.
struct Making<'d> {
    device: &'d Device,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
}

impl<'d> Making<'d> {
    /// A buffer; `external` where its memory is others', or theirs too.
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

    /// Maps it for as long as it lives.
    fn map(&self) -> Result<Option<HostAddress>, VkRefused> {
        let (whole, flags) = (vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
        // SAFETY: new memory that the host can see, mapped once.
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

/// The first type that has all of a wish, for the first wish that can be had.
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
    /// New memory.
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

    /// Host pages of somebody else's, from the beginning of the first page on; and where in the buffer
    /// their bytes begin.
    pub fn of_pages(
        device: &Device,
        driver: &Driver,
        range: &HostRange,
    ) -> Result<(Block, usize), Trouble> {
        let page = driver.limits.host_page;
        let start = range.pointer.addr().get() % page;
        // SAFETY: the same page, which is mapped whole; it is only passed on.
        let base = unsafe { range.pointer.as_ptr().sub(start) };
        let size = (start + range.bytes).next_multiple_of(page) as u64;
        let bytes = words(start + range.bytes);
        let pages = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let mut making = Making::new(device, bytes, pages)?;
        // SAFETY: pages of this process, which their owner keeps.
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

    /// Memory behind a descriptor, from where its bytes begin. It has to be imported as the type that it has, which
    /// no call tells: where its exporter did not say it, the types are tried in turn.
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

    /// A new descriptor of its memory.
    pub fn export(&self, device: &Device) -> Result<i32, VkRefused> {
        let info = vk::MemoryGetFdInfoKHR::default()
            .memory(self.memory)
            .handle_type(vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD);
        // SAFETY: live memory that was allocated for this.
        unsafe { device.memory_fd(&info) }
    }

    /// Nobody uses it any more.
    pub fn free(self, device: &Device) {
        let Theirs { buffer, memory } = self.theirs;
        let buffer = if buffer { vk::Buffer::null() } else { self.buffer };
        let memory = if memory { vk::DeviceMemory::null() } else { self.memory };
        free(device, buffer, memory);
    }

    /// A buffer of ours over memory that somebody else allocated, of that type; the two are given back apart.
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
        // SAFETY: memory that its owner keeps, of a type, a size and an alignment that the new buffer takes.
        unsafe { device.bind_buffer_memory(making.buffer, under.memory, under.offset)? };
        let mut block = making.done(under.buffer_address(), words(bytes), under.bytes);
        (block.memory, block.offset, block.kind) = (under.memory, under.offset, Some(under.kind));
        block.theirs.memory = true;
        Ok(block)
    }
}

/// The driver owns the descriptor once it succeeded: it is given a duplicate.
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

/// Shaders see whole words.
fn words(bytes: usize) -> u64 {
    bytes.next_multiple_of(4) as u64
}

/// What a foreign buffer needs of its memory.
pub(super) fn needs_of(device: &Device, buffer: vk::Buffer) -> vk::MemoryRequirements {
    // SAFETY: whoever gave it promised that it is a live buffer of this device.
    unsafe { device.raw().get_buffer_memory_requirements(buffer) }
}

/// Of each, null is nothing.
fn free(device: &Device, buffer: vk::Buffer, memory: vk::DeviceMemory) {
    // SAFETY: made by this file, freed once; the buffer before its memory, which is unmapped by that.
    unsafe {
        if buffer != vk::Buffer::null() {
            device.destroy_buffer(buffer);
        }
        if memory != vk::DeviceMemory::null() {
            device.free_memory(memory);
        }
    }
}
