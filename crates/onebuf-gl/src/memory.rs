//! Memory: persistently mapped buffers, unmapped buffers, host pages that OpenGL uses in place, and memory of other
//! APIs; and regions of these.
//!
//! Shaders' writes are visible to the host after a barrier and a fence, which every event has. The host's writes are
//! visible to shaders immediately if the map is coherent; otherwise acquiring the memory flushes them.

use super::{
    GlBackend,
    context::{Context, reached},
    conv,
    habits::{Coherence, Mapping},
    queue::Queue,
};
use onebuf_hal::{
    self as hal, Access, AccessState, AllocSpec, DeviceInfo, Domain, Error, Export, FdRange,
    HostRange, MemoryKind, ObjectRange, RawHandle, Result,
    locks::{Arc, AtomicBool, Mutex, Ordering, lock},
    typed::{AllocationPart, TypedMemory},
};
use onebuf_sys::gl::{Gl, GlRefused, GlStatus, consts};
use std::{
    fmt,
    os::fd::{AsRawFd, IntoRawFd},
    ptr::{self, NonNull},
    time::Duration,
};

/// The binding target for buffers that are created or written.
pub(super) const TARGET: u32 = consts::COPY_WRITE_BUFFER;
/// Shaders access words: a buffer ends with a whole word, and onebuf's own buffers with a whole vector of four.
const WHOLE_BYTES: usize = 16;
const WORD_BYTES: usize = 4;
/// How long host pages wait for the work that uses them before they are leaked.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// A host address, which this module only passes on.
#[derive(Clone, Copy, Debug)]
struct HostAddress(NonNull<u8>);

// SAFETY: an address; code that dereferences it must justify that.
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}

/// The owner of the bytes.
#[derive(Debug)]
enum Origin {
    /// The driver, in a buffer of onebuf.
    Own,
    /// The host.
    Pages(HostRange),
    /// Another API, by the memory object of this name.
    External(u32),
    /// A foreign buffer, and whether `glBufferSubData` may write it.
    Foreign { takes_writes: bool },
}

/// A buffer, deleted when its last reference is dropped.
pub(super) struct Inner {
    context: Arc<Context>,
    pub name: u32,
    host: Option<HostAddress>,
    mapping: Option<Mapping>,
    /// The buffer's size: at least that of the memory.
    capacity: usize,
    align: usize,
    memory_kind: MemoryKind,
    origin: Origin,
    access_state: Mutex<AccessState>,
    /// Whether another API may use it through its own sharing calls.
    shared: AtomicBool,
}

/// A device's memory, or a region of it.
#[derive(Debug)]
pub struct Memory {
    pub(super) inner: Arc<Inner>,
    /// The offset of a region; `None` for the whole memory.
    part: Option<usize>,
    pub domain: Domain,
    bytes: usize,
    access: Access,
}

impl Memory {
    /// Allocates memory, mapped or not.
    pub(super) fn allocate(
        context: Arc<Context>,
        spec: &AllocSpec,
        contents: Option<&[u8]>,
    ) -> Result<Memory> {
        let habits = context.driver.habits;
        let maps = spec.memory_kind == MemoryKind::MappedDevice;
        let mapping = maps.then(|| habits.mapping(spec.access, spec.host, spec.hint));
        let capacity = spec.bytes.next_multiple_of(WHOLE_BYTES);
        let made = context.stored(spec.bytes, |gl| store(gl, capacity, mapping, contents));
        let Stored { name, host } = made?;
        let inner = Inner {
            name,
            host,
            mapping,
            capacity,
            align: spec.align,
            memory_kind: spec.memory_kind,
            origin: Origin::Own,
            access_state: Mutex::new(AccessState::Acquired),
            shared: AtomicBool::new(false),
            context,
        };
        Ok(Memory::whole(inner, spec.bytes, spec.access))
    }

    /// Imports host pages that other code allocated.
    pub(super) fn import(
        context: Arc<Context>,
        range: &HostRange,
        access: Access,
    ) -> Result<Memory> {
        let at = HostAddress(range.pointer);
        // The rest of the last word is in the same page.
        let capacity = range.bytes.next_multiple_of(WORD_BYTES);
        if !at.0.addr().get().is_multiple_of(WORD_BYTES) {
            return Err(Error::unsupported(
                format!("host memory at {:p} in OpenGL", at.0),
                "memory that is aligned to words, better to pages",
            ));
        }
        let pages = range.clone();
        let name = context.stored(range.bytes, move |gl| pin(gl, at, capacity));
        let name = name.map_err(|why| misplaced(why, at))?;
        let inner = Inner {
            name,
            host: Some(at),
            mapping: None,
            capacity,
            align: 1,
            memory_kind: MemoryKind::HostPages,
            origin: Origin::Pages(pages),
            access_state: Mutex::new(AccessState::Acquired),
            shared: AtomicBool::new(false),
            context,
        };
        Ok(Memory::whole(inner, range.bytes, access))
    }

    /// Imports memory of another API or process.
    pub(super) fn import_fd(
        context: Arc<Context>,
        range: &FdRange,
        access: Access,
    ) -> Result<Memory> {
        let room = range.allocation_bytes - range.offset;
        let capacity = range.bytes.next_multiple_of(WORD_BYTES).min(room);
        let external = context.external.clone();
        let imported = context.run(|gl| {
            let imported = import(gl, range, capacity);
            lock(&external).extend(imported.as_ref().map(|(name, _)| *name));
            Ok(imported)
        });
        let (name, memory) = imported?.map_err(|refused| unfit(&context, refused, range))?;
        let inner = Inner {
            name,
            host: None,
            mapping: None,
            capacity,
            align: 1,
            memory_kind: MemoryKind::Exportable,
            origin: Origin::External(memory),
            access_state: Mutex::new(AccessState::Acquired),
            shared: AtomicBool::new(false),
            context,
        };
        Ok(Memory::whole(inner, range.bytes, access))
    }

    /// Wraps a foreign buffer, which its owner deletes.
    pub(super) fn lent(
        context: Arc<Context>,
        name: u32,
        bytes: usize,
        takes_writes: bool,
    ) -> Memory {
        let inner = Inner {
            name,
            host: None,
            mapping: None,
            capacity: bytes,
            align: 1,
            memory_kind: MemoryKind::Device,
            origin: Origin::Foreign { takes_writes },
            access_state: Mutex::new(AccessState::Acquired),
            shared: AtomicBool::new(false),
            context,
        };
        Memory::whole(inner, bytes, Access::ReadWrite)
    }

    fn whole(inner: Inner, bytes: usize, access: Access) -> Memory {
        let (domain, inner) = (inner.context.driver.domain, Arc::new(inner));
        if let Some(HostAddress(at)) = inner.coherent() {
            inner.context.ours().mapped.add(at.as_ptr(), bytes, &inner);
        }
        Memory { inner, part: None, domain, bytes, access }
    }

    /// The offset in the whole buffer.
    pub fn offset(&self) -> usize {
        self.part.unwrap_or(0)
    }

    /// Whether another API may have written it without a call of onebuf.
    pub fn is_external(&self) -> bool {
        self.is_shared() || matches!(self.inner.origin, Origin::External(_))
    }

    /// Whether another API may use it through its own sharing calls.
    pub fn is_shared(&self) -> bool {
        self.inner.shared.load(Ordering::Relaxed)
    }

    /// Whether `glBufferSubData` may write it: not if another API created or uses the storage, or its owner excluded
    /// it. (With NVIDIA's driver a shader does not see such a write to a buffer that CUDA has registered.)
    pub fn takes_writes(&self) -> bool {
        match self.inner.origin {
            _ if self.is_shared() => false,
            Origin::External(_) => false,
            Origin::Foreign { takes_writes } => takes_writes,
            Origin::Own | Origin::Pages(_) => true,
        }
    }

    /// Returns a pointer to a byte if the map allows reading.
    pub fn readable(&self, offset: usize) -> Option<NonNull<u8>> {
        let maps = self.inner.mapping.is_none_or(|mapping| mapping.reads());
        // SAFETY: the caller reads inside the memory.
        self.host_pointer().filter(|_| maps).map(|at| unsafe { at.add(offset) })
    }

    /// The offset of a byte in the buffer.
    pub fn byte(&self, offset: usize) -> usize {
        self.offset() + offset
    }

    /// Returns the range to bind for `bytes` bytes, in whole words as far as the buffer has them.
    pub fn block(&self, bytes: usize) -> (usize, usize) {
        let room = self.inner.capacity - self.offset();
        (self.offset(), bytes.next_multiple_of(WORD_BYTES).min(room))
    }

    /// Changes the access state. Returns whether that took a call.
    pub fn reside(&self, to: AccessState) -> Result<bool> {
        if !self.needs_access_state() {
            return Ok(false);
        }
        let inner = &self.inner;
        let mut access_state = lock(&inner.access_state);
        let flushes = *access_state == AccessState::Released && to != AccessState::Released;
        if flushes {
            let (name, bytes) = (inner.name, conv::signed(inner.capacity));
            // SAFETY: a live buffer, mapped whole for explicit flushes; the context is current.
            inner.context.run(|gl| unsafe {
                gl.bind_buffer(TARGET, name)?;
                gl.flush_buffer(TARGET, 0, bytes)
            })?;
        }
        *access_state = to;
        Ok(flushes)
    }
}

// SAFETY: a buffer's map is persistent and stays until `Inner` is deleted.
unsafe impl TypedMemory for Memory {
    type Types = GlBackend;

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
        // SAFETY: a region lies inside the whole.
        self.inner.host.map(|HostAddress(at)| unsafe { at.add(self.offset()) })
    }

    fn needs_access_state(&self) -> bool {
        self.inner.mapping.is_some_and(|mapping| mapping.coherence == Coherence::Flushed)
    }

    fn access_state(&self) -> AccessState {
        *lock(&self.inner.access_state)
    }

    /// The hand-over flushes the whole map once more: it cannot know that every store was flushed.
    fn flush_stores(&self, offset: usize, bytes: usize) -> Result<bool> {
        let inner = &self.inner;
        let access_state = lock(&inner.access_state);
        if !self.needs_access_state() || *access_state != AccessState::Released {
            return Ok(false);
        }
        let (name, at) = (inner.name, conv::signed(self.byte(offset)));
        // SAFETY: a live buffer, mapped whole for explicit flushes, and a range of it; the context is current.
        inner.context.run(|gl| unsafe {
            gl.bind_buffer(TARGET, name)?;
            gl.flush_buffer(TARGET, at, conv::signed(bytes))
        })?;
        Ok(true)
    }

    unsafe fn export(&self, _queue: &Queue) -> Result<Export> {
        let host = self.inner.host.filter(|_| self.readable(0).is_some());
        let Some(HostAddress(pointer)) = host else {
            let needs = "mapped_device memory that the host may read and write";
            return Err(Error::unsupported("the host's view of this memory", needs));
        };
        let align = self.inner.align;
        if !pointer.addr().get().is_multiple_of(align) {
            let what =
                format!("a host view aligned to {align} of memory mapped by OpenGL at {pointer:p}");
            let needs = "a driver that maps with this alignment, or page-aligned memory of the host's: allocate on the host";
            return Err(Error::unsupported(what, needs));
        }
        Ok(Export::Host(HostRange { pointer, bytes: self.bytes, owner: self.inner.clone() }))
    }

    /// Memory mapped for the host is refused: on NVIDIA's driver such a map does not see what sharing calls wrote.
    fn export_object(&self) -> Result<ObjectRange> {
        let fits = matches!(self.inner.origin, Origin::Own | Origin::Foreign { .. });
        if self.inner.mapping.is_some() || !fits {
            let what = format!("{} memory by sharing calls", self.inner.memory_kind);
            return Err(Error::unsupported(what, "a buffer of OpenGL's that is not mapped"));
        }
        let driver = &self.inner.context.driver.info.platform;
        if matches!(self.inner.origin, Origin::Foreign { .. }) && driver.contains("NVIDIA") {
            // Seen with 580.159: CUDA sees the previous contents, and OpenGL's shaders no longer do.
            let what = format!("a foreign OpenGL buffer by sharing calls of {driver}'s driver");
            return Err(Error::unsupported(what, "a buffer that onebuf makes"));
        }
        // The initial contents may still be in flight, and the first user does not wait for them.
        hal::Event::wait(&self.inner.context.ours().mark()?, LAST_WAIT)?;
        self.inner.shared.store(true, Ordering::Relaxed);
        let hal::NativeContext { api, handles: context, .. } = self.inner.context.native();
        let (name, home) = (self.inner.name as usize, self.inner.clone());
        Ok(ObjectRange { api, name, bytes: self.bytes, context, home })
    }

    unsafe fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Memory> {
        let (inner, domain) = (self.inner.clone(), self.domain);
        Ok(Memory { inner, part: Some(offset), domain, bytes, access })
    }

    fn raw(&self) -> RawHandle {
        RawHandle::Object(self.inner.name as usize)
    }

    fn remark(&self) -> Option<String> {
        let what = match (&self.inner.origin, self.inner.mapping) {
            (Origin::Own, None) => "a buffer that the host reaches by copies",
            (Origin::Own, Some(mapping)) => match mapping.coherence {
                Coherence::Coherent => "a buffer that stays mapped, coherent",
                Coherence::Flushed => "a buffer that stays mapped, flushed at hand-overs",
            },
            (Origin::Pages(_), _) => "the host's own pages, pinned",
            (Origin::External(_), _) => "another API's memory, imported by a descriptor",
            (Origin::Foreign { .. }, _) => {
                "a foreign OpenGL buffer, which the host reaches by copies"
            }
        };
        Some(match self.part {
            None => what.to_owned(),
            Some(offset) => format!("{what}; a region from byte {offset}"),
        })
    }
}

impl hal::ObjectHome for Inner {
    fn run(&self, call: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        hal::ObjectHome::run(&**self.context.ours(), call)
    }
}

/// A new buffer, and its mapped address.
struct Stored {
    name: u32,
    host: Option<HostAddress>,
}

impl Context {
    /// Allocates memory; an out-of-memory error names the requested size.
    fn stored<T: Send>(
        &self,
        bytes: usize,
        make: impl FnOnce(&Gl) -> Result<T, GlRefused> + Send,
    ) -> Result<T> {
        let info = &self.driver.info;
        self.run_checked(|gl| make(gl).map_err(|why| conv::allocation(why, bytes, info)))
    }
}

/// Creates a buffer, and deletes it if `make` fails.
fn with_buffer<T>(
    gl: &Gl,
    target: u32,
    make: impl FnOnce(u32) -> Result<T, GlRefused>,
) -> Result<T, GlRefused> {
    // SAFETY: the context is current; the buffer is new, and deleted once.
    unsafe {
        let name = gl.create_buffer()?;
        let made = gl.bind_buffer(target, name).and_then(|()| make(name));
        made.inspect_err(|_| {
            let _ = gl.delete_buffer(name);
        })
    }
}

fn store(
    gl: &Gl,
    capacity: usize,
    mapping: Option<Mapping>,
    contents: Option<&[u8]>,
) -> Result<Stored, GlRefused> {
    let flags = consts::DYNAMIC_STORAGE_BIT | mapping.map_or(0, |mapping| mapping.storage);
    let bytes = conv::signed(capacity);
    with_buffer(gl, TARGET, |name| {
        // SAFETY: the context is current and the buffer bound; the contents are no longer than the buffer, and copied.
        unsafe {
            gl.buffer_storage(TARGET, bytes, ptr::null(), flags)?;
            if let Some(contents) = contents {
                let len = conv::signed(contents.len().min(capacity));
                gl.write_buffer(TARGET, 0, len, contents.as_ptr().cast())?;
            }
            let map = |mapping: Mapping| gl.map_buffer(TARGET, 0, bytes, mapping.map);
            let host = mapping.map(map).transpose()?;
            let host = host.and_then(|at| NonNull::new(at.0.cast())).map(HostAddress);
            Ok(Stored { name, host })
        }
    })
}

/// Creates a buffer over host pages. The driver pins whole pages.
fn pin(gl: &Gl, at: HostAddress, bytes: usize) -> Result<u32, GlRefused> {
    let target = consts::EXTERNAL_VIRTUAL_MEMORY_BUFFER;
    with_buffer(gl, target, |name| {
        let (at, bytes) = (at.0.as_ptr().cast_const().cast(), conv::signed(bytes));
        // SAFETY: the context is current and the buffer bound; the pages are kept until the buffer is deleted and the
        // work that uses it is over.
        unsafe {
            gl.buffer_data(target, bytes, at, consts::DYNAMIC_COPY)?;
            gl.bind_buffer(target, 0)?;
        }
        Ok(name)
    })
}

/// Drivers that require page-aligned memory return `INVALID_VALUE`.
fn misplaced(error: Error, at: HostAddress) -> Error {
    match error {
        Error::Driver { code, .. } if code == GlStatus::INVALID_VALUE.0 => Error::unsupported(
            format!("host memory at {:p} in OpenGL", at.0),
            "whole pages: memory that is aligned to 4096 bytes",
        ),
        other => other,
    }
}

/// Imports another API's memory as a buffer. The memory object must be *dedicated*: otherwise NVIDIA's driver accepts
/// every call, but what shaders write never arrives.
fn import(gl: &Gl, range: &FdRange, capacity: usize) -> Result<(u32, u32), GlRefused> {
    let is_true: i32 = 1;
    // SAFETY: the context is current; the object is new, and deleted once; the parameter is one number.
    unsafe {
        let memory = gl.create_memory()?;
        let set = gl.memory_parameter(memory, consts::DEDICATED_MEMORY_OBJECT, &raw const is_true);
        let made = set.and_then(|()| give(gl, memory, range)).and_then(|()| {
            with_buffer(gl, TARGET, |name| {
                let (bytes, offset) = (conv::signed(capacity), range.offset as u64);
                gl.buffer_storage_memory(TARGET, bytes, memory, offset)?;
                Ok(name)
            })
        });
        match made {
            Ok(name) => Ok((name, memory)),
            Err(refused) => {
                let _ = gl.delete_memory(memory);
                Err(refused)
            }
        }
    }
}

/// Passes a duplicate of the descriptor to the driver, which then owns it.
fn give(gl: &Gl, memory: u32, range: &FdRange) -> Result<(), GlRefused> {
    let call = "glImportMemoryFdEXT";
    let fd = range.fd.try_clone();
    let fd = fd.map_err(|_| GlRefused { call, status: GlStatus::OUT_OF_MEMORY })?;
    let (bytes, kind) = (range.allocation_bytes as u64, consts::HANDLE_TYPE_OPAQUE_FD);
    // SAFETY: the context is current, the object is new, the descriptor is open.
    unsafe { gl.import_fd(memory, bytes, kind, fd.as_raw_fd())? };
    let _ = fd.into_raw_fd();
    Ok(())
}

/// The error for a descriptor or range that the driver refuses.
fn unfit(context: &Context, refused: GlRefused, range: &FdRange) -> Error {
    let info = &context.driver.info;
    let FdRange { bytes, offset, allocation_bytes, .. } = range;
    match refused {
        GlRefused { call: "glBufferStorageMemEXT", status: GlStatus::OUT_OF_MEMORY } => {
            Error::unsupported(
                format!(
                    "{bytes} bytes at offset {offset} of a descriptor's {allocation_bytes} on {}, which \
                     calls that out of memory,",
                    info.name
                ),
                "an allocation that is larger: 4096 bytes more are enough for llvmpipe",
            )
        }
        GlRefused { call: "glImportMemoryFdEXT", status } if !status.is_fatal() => {
            Error::unsupported(
                format!("the descriptor on {} ({refused})", info.name),
                "memory that a driver of the same chip and vendor exported",
            )
        }
        refused => conv::allocation(refused, range.bytes, info),
    }
}

impl Inner {
    /// The address of a coherent map that the host may read and write.
    fn coherent(&self) -> Option<HostAddress> {
        let both = consts::MAP_READ_BIT | consts::MAP_WRITE_BIT | consts::MAP_COHERENT_BIT;
        let maps = self.mapping.is_some_and(|mapping| mapping.map & both == both);
        self.host.filter(|_| maps)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(HostAddress(at)) = self.coherent() {
            self.context.ours().mapped.remove(at.as_ptr(), &raw const *self);
        }
        let name = self.name;
        let origin = std::mem::replace(&mut self.origin, Origin::Own);
        if matches!(origin, Origin::Foreign { .. }) {
            return;
        }
        let device = self.context.driver.info.name.clone();
        let external = self.context.external.clone();
        self.context.delete(move |gl| {
            lock(&external).retain(|other| *other != name);
            // OpenGL keeps its own memory while work uses it, but not the host's.
            let kept = match &origin {
                Origin::Pages(_) => !outlast(gl),
                _ => false,
            };
            // SAFETY: the context is current; the buffer was created by `Memory`, and is deleted once.
            let deleted = unsafe { gl.delete_buffer(name) };
            match origin {
                Origin::Own | Origin::Foreign { .. } => deleted,
                // SAFETY: the context is current; the object was created by `import`, and is deleted once.
                Origin::External(memory) => deleted.and(unsafe { gl.delete_memory(memory) }),
                Origin::Pages(pages) => {
                    // A driver that did not delete the buffer may still use the pages.
                    if kept || deleted.is_err() {
                        tracing::error!(%device, "the driver may still use host pages: they are leaked");
                        std::mem::forget(pages);
                    }
                    deleted
                }
            }
        });
    }
}

/// Waits for all work so far. Returns whether it ended.
fn outlast(gl: &Gl) -> bool {
    // SAFETY: the context is current; the fence is new, and deleted once.
    unsafe {
        let Ok(sync) = gl.fence(consts::SYNC_GPU_COMMANDS_COMPLETE, 0) else { return false };
        let ended = reached(gl, sync, LAST_WAIT);
        let _ = gl.delete_fence(sync);
        ended == Ok(true)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("device", &self.context.driver.info.name)
            .field("buffer", &self.name)
            .field("capacity", &self.capacity)
            .field("memory_kind", &self.memory_kind)
            .finish_non_exhaustive()
    }
}
