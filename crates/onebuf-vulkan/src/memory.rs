//! Memory: device-local memory, mapped memory, imported host pages, exportable and imported memory, and regions of
//! these.
//!
//! Each batch makes its writes visible to the host at its end. Only memory that is shared by a descriptor can have an access
//! state: see `access_state`.

use super::{
    VulkanBackend,
    access_state::Ownership,
    block::{Block, BlockKind, HostAddress, Trouble},
    device::Context,
    queue::Queue,
    transfer,
};
use onebuf_hal::{
    self as hal, Access, AccessState, AllocSpec, DeviceInfo, Domain, Error, Export, FdKind,
    FdRange, HostRange, MemoryKind, RawHandle, Result,
    locks::Arc,
    typed::{AllocationPart, TypedMemory},
};
use onebuf_sys::vulkan::vk;
use std::{
    fmt,
    os::fd::{FromRawFd, OwnedFd},
    ptr::NonNull,
};

/// One allocation or import, freed when its last holder is dropped. Batches that use it are among the holders.
pub(super) struct Inner {
    context: Arc<Context>,
    block: Option<Block>,
    pub buffer: vk::Buffer,
    /// The offset of the bytes in the buffer.
    start: usize,
    /// The host address of the bytes.
    host: Option<HostAddress>,
    bytes: usize,
    align: usize,
    memory_kind: MemoryKind,
    /// Who owns it, if others access it by a descriptor.
    pub ownership: Ownership,
    /// The imported host pages, with their owner.
    pages: Option<HostRange>,
}

/// A device's memory, or a region of it.
#[derive(Debug)]
pub struct Memory {
    pub(super) inner: Arc<Inner>,
    /// The offset of a region; `None` for the whole.
    part: Option<usize>,
    pub domain: Domain,
    bytes: usize,
    access: Access,
}

impl Memory {
    /// Allocates memory of one of the device's memory kinds.
    pub(super) fn allocate(
        context: Arc<Context>,
        spec: &AllocSpec,
        contents: Option<&[u8]>,
    ) -> Result<Memory> {
        let memory_kind = match spec.memory_kind {
            MemoryKind::Device => BlockKind::Device,
            MemoryKind::Exportable => BlockKind::Exportable,
            _ => BlockKind::Mapped(spec.host),
        };
        let (device, driver) = (&context.table, &context.driver);
        let block = with_room(&context, spec.bytes, || {
            Block::new(device, driver, spec.bytes, memory_kind)
        })?;
        let inner = Inner::of(context, block, 0, spec, false);
        let memory = Memory::whole(inner, spec.access);
        match (contents, memory.inner.host) {
            (None, _) => {}
            (Some(contents), Some(HostAddress(at))) => {
                // SAFETY: new memory of `bytes`, which has no other user yet.
                unsafe {
                    at.copy_from(NonNull::from(contents).cast(), contents.len().min(spec.bytes));
                }
            }
            (Some(contents), None) => transfer::write_now(&memory, contents)?,
        }
        Ok(memory)
    }

    /// Imports foreign host pages.
    pub(super) fn import(
        context: Arc<Context>,
        range: &HostRange,
        access: Access,
    ) -> Result<Memory> {
        let (device, driver) = (&context.table, &context.driver);
        let (block, start) = with_room(&context, range.bytes, || {
            let made = Block::of_pages(device, driver, range)?;
            match made.1.is_multiple_of(driver.info.caps.align_bytes) {
                true => Ok(made),
                false => {
                    made.0.free(device);
                    Err(Trouble::Other(Error::unsupported(
                        format!("host pages from {:p} on {}", range.pointer, driver.info.name),
                        format!("bytes that are aligned to {}", driver.info.caps.align_bytes),
                    )))
                }
            }
        })?;
        let spec = imported(range.bytes, MemoryKind::HostPages);
        let mut inner = Inner::of(context, block, start, &spec, true);
        inner.pages = Some(range.clone());
        Ok(Memory::whole(inner, access))
    }

    /// Imports memory of another API or process.
    pub(super) fn import_fd(
        context: Arc<Context>,
        range: &FdRange,
        access: Access,
    ) -> Result<Memory> {
        let (device, driver) = (&context.table, &context.driver);
        let block = with_room(&context, range.bytes, || Block::of_fd(device, driver, range))?;
        let spec = imported(range.bytes, MemoryKind::Exportable);
        Ok(Memory::whole(Inner::of(context, block, 0, &spec, true), access))
    }

    /// Foreign memory, from byte `start` of the block's buffer.
    pub(super) fn lent(
        context: Arc<Context>,
        block: Block,
        start: usize,
        bytes: usize,
        memory_kind: MemoryKind,
    ) -> Memory {
        let spec = imported(bytes, memory_kind);
        Memory::whole(Inner::of(context, block, start, &spec, true), Access::ReadWrite)
    }

    fn whole(inner: Inner, access: Access) -> Memory {
        let (bytes, domain, inner) = (inner.bytes, inner.context.driver.domain, Arc::new(inner));
        if let Some(HostAddress(at)) = inner.mapped() {
            inner.context.mapped.add(at.as_ptr(), bytes, &inner);
        }
        Memory { inner, part: None, domain, bytes, access }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    /// Its offset in the native buffer.
    pub fn at(&self) -> u64 {
        (self.inner.start + self.part.unwrap_or(0)) as u64
    }

    /// The offset of one of its bytes in the native buffer.
    pub fn byte(&self, offset: usize) -> u64 {
        self.at() + offset as u64
    }

    /// The descriptor of its first `bytes` bytes for a shader, in whole words.
    pub fn binding(&self, bytes: usize) -> vk::DescriptorBufferInfo {
        let end = self.inner.block.as_ref().map_or(0, |block| block.bytes);
        let words = (bytes.next_multiple_of(4) as u64).min(end - self.at());
        vk::DescriptorBufferInfo::default().buffer(self.inner.buffer).offset(self.at()).range(words)
    }
}

fn imported(bytes: usize, memory_kind: MemoryKind) -> AllocSpec {
    let (access, host) = (Access::ReadWrite, hal::HostAccess::default());
    AllocSpec { bytes, align: 1, memory_kind, access, host, hint: None }
}

/// Allocates. If memory runs out, frees what finished work still holds and tries again.
fn with_room<T>(
    context: &Context,
    bytes: usize,
    allocate: impl Fn() -> Result<T, Trouble>,
) -> Result<T> {
    let made = allocate().or_else(|trouble| {
        if !trouble.is_lack_of_memory() {
            return Err(trouble);
        }
        context.sweep();
        allocate()
    });
    made.map_err(|trouble| trouble.error(&context.driver, bytes))
}

// SAFETY: a block stays mapped at one address until `Inner` is freed; batches that use it keep `Inner`.
unsafe impl TypedMemory for Memory {
    type Types = VulkanBackend;

    fn domain(&self) -> Domain {
        self.domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.inner.context.driver.info
    }

    fn access(&self) -> Access {
        self.access
    }

    fn part(&self) -> AllocationPart {
        AllocationPart::of(&self.inner, self.part)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn memory_kind(&self) -> MemoryKind {
        self.inner.memory_kind
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        // SAFETY: a part lies inside the whole.
        self.inner.host.map(|HostAddress(at)| unsafe { at.add(self.part.unwrap_or(0)) })
    }

    fn pins_pages(&self) -> bool {
        self.inner.memory_kind == MemoryKind::HostPages
    }

    fn needs_access_state(&self) -> bool {
        self.inner.ownership.state().is_some()
    }

    fn access_state(&self) -> AccessState {
        self.inner.ownership.state().unwrap_or(AccessState::Acquired)
    }

    unsafe fn export(&self, _queue: &Queue) -> Result<Export> {
        let Some(HostAddress(pointer)) = self.inner.host else {
            let needs = "mapped_device memory";
            return Err(Error::unsupported("the host's view of device memory", needs));
        };
        let align = self.inner.align;
        if !pointer.addr().get().is_multiple_of(align) {
            let what = format!("mapped memory at {pointer:p} aligned to {align}");
            return Err(Error::unsupported(what, "a driver that aligns it so"));
        }
        Ok(Export::Host(HostRange { pointer, bytes: self.bytes, owner: self.inner.clone() }))
    }

    fn export_fd(&self, kind: FdKind) -> Result<FdRange> {
        let Inner { context, memory_kind, block, .. } = &*self.inner;
        let exports = context.driver.info.caps.exports.contains(&kind);
        let made = *memory_kind == MemoryKind::Exportable;
        let Some(block) = block.as_ref().filter(|_| made && exports) else {
            let what = format!("{memory_kind} memory as {kind}");
            let needs = "memory that was allocated as exportable, and a driver that exports such";
            return Err(Error::unsupported(what, needs));
        };
        let fd = context.driver.check(block.export(&context.table))?;
        if fd < 0 {
            let what = format!("an export of memory of {}", context.driver.info.name);
            return Err(Error::unsupported(what, "a driver that returns a descriptor"));
        }
        // SAFETY: a new descriptor that has no other owner.
        let fd = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let allocation_bytes = block.allocation_bytes as usize;
        let (offset, memory_type) = (block.offset as usize + self.inner.start, block.kind);
        Ok(FdRange { fd, kind, offset, bytes: self.bytes, allocation_bytes, memory_type })
    }

    unsafe fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Memory> {
        let (inner, domain) = (self.inner.clone(), self.domain);
        Ok(Memory { inner, part: Some(offset), domain, bytes, access })
    }

    fn raw(&self) -> RawHandle {
        RawHandle::Object(vk::Handle::as_raw(self.inner.buffer) as usize)
    }

    fn raw_offset(&self) -> usize {
        self.at() as usize
    }

    fn remark(&self) -> Option<String> {
        let what = match self.inner.memory_kind {
            MemoryKind::Device => "device memory, which the host reaches by copies",
            MemoryKind::Exportable => "device memory, passed on by descriptors",
            MemoryKind::MappedDevice => "memory that stays mapped, coherent with the host",
            _ => "the host's own pages, imported",
        };
        Some(match self.part {
            None => what.to_owned(),
            Some(offset) => format!("{what}; a region from byte {offset}"),
        })
    }
}

impl Inner {
    fn of(
        context: Arc<Context>,
        block: Block,
        start: usize,
        spec: &AllocSpec,
        is_theirs: bool,
    ) -> Inner {
        let AllocSpec { bytes, align, memory_kind, .. } = *spec;
        // SAFETY: the bytes begin inside the block.
        let host = block.host.map(|HostAddress(at)| HostAddress(unsafe { at.add(start) }));
        let ownership = match memory_kind {
            MemoryKind::Exportable => Ownership::external(&context, is_theirs),
            _ => Ownership::Fixed,
        };
        let (buffer, block, pages) = (block.buffer, Some(block), None);
        Inner { context, block, buffer, start, host, bytes, align, memory_kind, ownership, pages }
    }

    /// The offset of one of its bytes in the native buffer.
    pub fn byte(&self, offset: usize) -> u64 {
        (self.start + offset) as u64
    }

    /// Its host address, if onebuf mapped it: then it is coherent.
    fn mapped(&self) -> Option<HostAddress> {
        let ours = self.block.as_ref().is_some_and(|block| !block.theirs.memory);
        self.host.filter(|_| ours)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(HostAddress(at)) = self.mapped() {
            self.context.mapped.remove(at.as_ptr(), &raw const *self);
        }
        if let Some(block) = self.block.take() {
            block.free(&self.context.table);
        }
        // After the block: the driver used the pages until now.
        drop(self.pages.take());
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("device", &self.context.driver.info.name)
            .field("bytes", &self.bytes)
            .field("memory_kind", &self.memory_kind)
            .field("buffer", &self.buffer)
            .finish_non_exhaustive()
    }
}
