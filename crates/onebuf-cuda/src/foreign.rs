//! The application's objects in the device's primary context: memory, streams and events.
//!
//! Code that uses CUDA's runtime API, and every vendor library, uses this context. The driver describes an address: its
//! allocation, its device, whether the host sees it. It does not describe a handle, so the caller guarantees handles.

use super::{
    device::{Context, Device},
    event::Event,
    ipc::UNKNOWN_PROCESS,
    memory::Memory,
    queue::Queue,
    vmm::{self, Vmm},
};
use onebuf_hal::{
    self as hal, Access, AllocSpec, Error, FdKind, FdRange, HostAccess, IpcRange, MemoryKind,
    Result, locks::Arc,
};
use onebuf_sys::{
    Flavor,
    cuda_like::{AllocationHandle, CuContext, CuEvent, CuStream, DevicePtr, consts},
};
use std::{ffi::c_void, ptr::NonNull};

/// What the driver knows about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerFacts {
    /// What kind of memory it is.
    pub kind: PointerKind,
    /// The driver's number of the device that allocated the memory.
    pub device: i32,
    /// The first address of the allocation.
    pub start: u64,
    /// The size of the allocation.
    pub bytes: usize,
    /// The address that kernels use.
    pub address: u64,
    /// The address that the host uses, for pinned and managed memory.
    pub host: Option<NonNull<u8>>,
    /// Whether a descriptor of the allocation can be exported.
    pub exportable: bool,
    pub(super) context: usize,
}

/// The kind of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// Device memory.
    Device,
    /// Managed memory, whose pages move.
    Managed,
    /// Host memory that the driver allocated or pinned.
    Host,
}

/// Some bytes of an allocation of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForeignRange {
    pub at: DevicePtr,
    start: DevicePtr,
    allocation_bytes: usize,
    /// Whether its pages move where they are accessed.
    pub is_managed: bool,
}

impl ForeignRange {
    /// Exports a descriptor of the allocation.
    pub fn export(&self, context: &Context, kind: FdKind, bytes: usize) -> Result<FdRange> {
        let driver = &context.driver;
        let current = context.enter()?;
        let handle = driver.check(vmm::retain(driver, self.start))?;
        let fd = vmm::export(context, handle, kind);
        vmm::release(driver, handle);
        drop(current);
        let (offset, allocation_bytes) =
            ((self.at.0 - self.start.0) as usize, self.allocation_bytes);
        Ok(FdRange { fd: fd?, kind, offset, bytes, allocation_bytes, memory_type: None })
    }
}

/// How memory of the application is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Described {
    pub memory_kind: MemoryKind,
    pub host: Option<NonNull<u8>>,
    pub range: ForeignRange,
}

/// The attributes that a wrap needs, queried with one call. The range of virtual memory is the whole reservation, mapped or not; the last two
/// have the piece that is mapped at the address. Older drivers and HIP do not know them.
const ATTRIBUTES: [i32; 10] = [
    consts::POINTER_CONTEXT,
    consts::POINTER_DEVICE_ADDRESS,
    consts::POINTER_HOST_ADDRESS,
    consts::POINTER_IS_MANAGED,
    consts::POINTER_DEVICE,
    consts::POINTER_RANGE_START,
    consts::POINTER_RANGE_BYTES,
    consts::POINTER_HANDLE_TYPES,
    consts::POINTER_MAPPING_START,
    consts::POINTER_MAPPING_BYTES,
];
const OLDER: usize = ATTRIBUTES.len() - 2;

/// The part of a range that is in the piece mapped at the address; the range itself without such a piece.
fn within_piece(range: (u64, u64), piece: (u64, u64), at: u64) -> (u64, u64) {
    let end = |(start, bytes): (u64, u64)| start.saturating_add(bytes);
    if range.1 == 0 || !(piece.0..end(piece)).contains(&at) {
        return range;
    }
    let start = range.0.max(piece.0);
    (start, end(range).min(end(piece)).saturating_sub(start))
}

impl Context {
    /// Asks the driver about an address. The context is current.
    fn pointer(&self, at: u64) -> Result<PointerFacts> {
        let (driver, table) = (&self.driver, self.table());
        if !table.has_pointer_attributes() {
            let what = format!("an address of {}", driver.info.name);
            return Err(Error::unsupported(what, "a driver that describes addresses"));
        }
        let (mut attributes, mut values) = (ATTRIBUTES, [0u64; ATTRIBUTES.len()]);
        let mut places: [*mut c_void; ATTRIBUTES.len()] =
            std::array::from_fn(|n| (&raw mut values[n]).cast());
        let mut ask = |count: usize| {
            let (attributes, places) = (attributes.as_mut_ptr(), places.as_mut_ptr());
            // SAFETY: one place of eight bytes for each attribute, none of which is longer. The driver takes any address.
            unsafe { table.pointer_attributes(count as u32, attributes, places, DevicePtr(at)) }
        };
        let answered = match driver.flavor() {
            Flavor::Cuda => ask(ATTRIBUTES.len()).or_else(|_| ask(OLDER)),
            Flavor::Hip => ask(OLDER),
        };
        driver.check(answered)?;
        let [context, address, host, managed, device, start, bytes, handles, piece, piece_bytes] =
            values;
        let (start, bytes) = within_piece((start, bytes), (piece, piece_bytes), at);
        if bytes == 0 {
            return Err(Error::invalid(format!(
                "{at:#x} is no memory of {}: ordinary host memory must be pinned first",
                driver.info.name
            )));
        }
        let host = NonNull::new(host as usize as *mut u8);
        let kind = match (managed & 0xff != 0, host) {
            (true, _) => PointerKind::Managed,
            (false, Some(_)) => PointerKind::Host,
            (false, None) => PointerKind::Device,
        };
        Ok(PointerFacts {
            kind,
            device: device as u32 as i32,
            start,
            bytes: bytes as usize,
            address: if address == 0 { at } else { address },
            host,
            exportable: handles & consts::HANDLE_POSIX_FD as u64 != 0
                && kind == PointerKind::Device
                && table.has_retain_allocation(),
            context: context as usize,
        })
    }

    /// Asks the driver about `bytes` bytes, and checks that all of them are memory that this context may use.
    fn range(&self, at: u64, bytes: usize) -> Result<PointerFacts> {
        let first = self.pointer(at)?;
        self.check_own(&first)?;
        let short = |have: u64| {
            Error::invalid(format!(
                "{bytes} bytes from {at:#x}: the allocation has only {have} bytes from there on"
            ))
        };
        let end = at.checked_add(bytes as u64).ok_or_else(|| short(0))?;
        let mut reached = first.start + first.bytes as u64;
        // Memory that was mapped in pieces is one allocation for its owner.
        while reached < end {
            let next = self.pointer(reached).map_err(|_| short(reached - at))?;
            if (next.kind, next.device) != (first.kind, first.device) || next.start != reached {
                return Err(short(reached - at));
            }
            reached += next.bytes as u64;
        }
        let in_pieces = first.start + (first.bytes as u64) < end;
        Ok(PointerFacts { exportable: first.exportable && !in_pieces, ..first })
    }

    /// Asks the driver how these bytes are used.
    fn described(&self, at: u64, bytes: usize) -> Result<Described> {
        let current = self.enter()?;
        let facts = self.range(at, bytes)?;
        drop(current);
        let (memory_kind, host) = match facts.kind {
            PointerKind::Host => (MemoryKind::MappedDevice, facts.host),
            PointerKind::Device if facts.exportable => (MemoryKind::Exportable, None),
            PointerKind::Device | PointerKind::Managed => (MemoryKind::Device, None),
        };
        let (start, allocation_bytes) = (DevicePtr(facts.start), facts.bytes);
        let is_managed = facts.kind == PointerKind::Managed;
        let at = DevicePtr(facts.address);
        let range = ForeignRange { at, start, allocation_bytes, is_managed };
        Ok(Described { memory_kind, host, range })
    }

    /// Checks that device memory belongs to this device and context.
    pub(super) fn check_own(&self, facts: &PointerFacts) -> Result<()> {
        let (driver, own) = (&self.driver, self.raw().0 as usize);
        if facts.kind != PointerKind::Device {
            return Ok(());
        }
        if facts.device != driver.device {
            return Err(Error::ForeignContext {
                have: format!("memory of the driver's device {}", facts.device),
                want: format!("memory of device {}, {}", driver.device, driver.info.name),
            });
        }
        if driver.flavor() == Flavor::Cuda && facts.context != 0 && facts.context != own {
            return Err(Error::ForeignContext {
                have: "memory of a context that the application created".to_owned(),
                want: format!(
                    "memory of the primary context of {} (`cuDevicePrimaryCtxRetain`, and CUDA's runtime API), or of \
                     `cuMemCreate`, which belongs to no context",
                    driver.info.name
                ),
            });
        }
        Ok(())
    }
}

impl Device {
    /// Asks the driver about an address.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is no memory of this driver.
    pub fn pointer(&self, at: u64) -> Result<PointerFacts> {
        let context = self.context()?;
        let _current = context.enter()?;
        context.pointer(at)
    }

    /// Wraps memory of the application.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes are no memory of this driver; [`Error::ForeignContext`] if they belong to
    /// another device or context.
    ///
    /// # Safety
    /// The memory outlives the result and all work on it.
    pub unsafe fn wrap_pointer(
        &self,
        at: u64,
        bytes: usize,
        access: Access,
    ) -> Result<(Arc<dyn hal::Memory>, AllocSpec)> {
        let context = self.context()?;
        let Described { memory_kind, host, range } = context.described(at, bytes)?;
        let spec = spec(bytes, memory_kind, access);
        Ok((Arc::new(Memory::foreign(context, range, host, &spec)), spec))
    }

    /// Asks the driver again about memory that `wrap_pointer` returned for this address: whether it would return the same.
    ///
    /// # Errors
    /// Those of `wrap_pointer`.
    pub fn is_still(&self, memory: &dyn hal::Memory, at: u64, bytes: usize) -> Result<bool> {
        let context = self.context()?;
        let described = context.described(at, bytes)?;
        let memory = memory.as_any().downcast_ref::<Memory>();
        Ok(memory.is_some_and(|memory| memory.is_foreign_as(&context, &described)))
    }

    /// Maps an allocation that the application created with the virtual memory calls, and adds a reference to it.
    ///
    /// # Errors
    /// The driver's error if it cannot be mapped.
    ///
    /// # Safety
    /// A live allocation of at least `bytes`, of this device.
    pub unsafe fn wrap_allocation(
        &self,
        handle: u64,
        bytes: usize,
        access: Access,
    ) -> Result<(Arc<dyn hal::Memory>, AllocSpec)> {
        let context = self.context()?;
        let driver = context.driver.clone();
        if !vmm::is_there(&driver.table) || !driver.table.has_retain_allocation() {
            let what = format!("an allocation handle on {}", driver.info.name);
            return Err(Error::unsupported(what, "a driver with virtual memory management"));
        }
        if handle == 0 {
            return Err(Error::invalid("an allocation handle: null"));
        }
        let page = driver.check(Vmm::page(&driver))?;
        if !bytes.is_multiple_of(page) || bytes == 0 {
            return Err(Error::invalid(format!(
                "an allocation handle with {bytes} bytes: its size is a multiple of {page} bytes"
            )));
        }
        context.sweep();
        let current = context.enter()?;
        let handle: AllocationHandle = DevicePtr(handle);
        // SAFETY: the caller's promise.
        let vmm = driver.check(unsafe { Vmm::map_foreign(&driver, handle, bytes) })?;
        drop(current);
        let spec = spec(bytes, MemoryKind::Exportable, access);
        Ok((Arc::new(Memory::mapped(context, vmm, &spec)), spec))
    }

    /// Describes another process's memory by its handle, for an import. The import opens the handle.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes are not in the allocation.
    pub fn ipc_range(&self, handle: [u8; 64], offset: usize, bytes: usize) -> Result<IpcRange> {
        let allocation_bytes =
            offset.checked_add(bytes).filter(|_| bytes > 0).ok_or_else(|| {
                Error::invalid(format!("{bytes} bytes at {offset} of another process's memory"))
            })?;
        // The process and the address are unknown; the driver refuses handles of this process.
        Ok(IpcRange { handle, process: UNKNOWN_PROCESS, base: 0, allocation_bytes, offset, bytes })
    }

    /// Wraps a stream of the application. Null and 1 are the default stream that synchronises with others, 2 is the
    /// calling thread's default stream.
    ///
    /// # Errors
    /// [`Error::ForeignContext`] if the stream belongs to another context.
    ///
    /// # Safety
    /// A live stream of this driver, that outlives the result.
    pub unsafe fn wrap_stream(&self, raw: usize) -> Result<Arc<Queue>> {
        let context = self.context()?;
        let stream = CuStream(raw as *mut c_void);
        let (driver, table) = (&context.driver, context.table());
        if table.has_stream_context() {
            let current = context.enter()?;
            let mut of = CuContext::NULL;
            // SAFETY: the caller's promise, and a valid pointer for the result.
            driver.check(unsafe { table.stream_context(stream, &raw mut of) })?;
            drop(current);
            if of != context.raw() {
                return Err(Error::ForeignContext {
                    have:
                        "a stream of another device, or of a context that the application created"
                            .to_owned(),
                    want: format!(
                        "a stream of the primary context of {}; for the order with other contexts, an event of their streams",
                        driver.info.name
                    ),
                });
            }
        }
        // SAFETY: the caller's promise.
        Ok(Arc::new(unsafe { Queue::foreign(context, stream) }?))
    }

    /// Wraps an event of the application. `queue` is any queue of this device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for null.
    ///
    /// # Safety
    /// A live event of this driver that outlives the result, and is not recorded again while the result is used.
    pub unsafe fn wrap_event(
        &self,
        raw: usize,
        queue: &Arc<dyn hal::Queue>,
    ) -> Result<Arc<dyn hal::Event>> {
        if raw == 0 {
            return Err(Error::invalid("an event: null"));
        }
        let queue = queue.as_any().downcast_ref::<Queue>();
        let queue = queue.ok_or_else(|| self.driver().foreign("a queue", None))?;
        Ok(Arc::new(Event::foreign(queue.raw.clone(), CuEvent(raw as *mut c_void))))
    }

    /// The handle of the primary context; 0 for HIP, which has none.
    ///
    /// # Errors
    /// The driver's error if the context cannot be created.
    pub fn raw_context(&self) -> Result<usize> {
        Ok(self.context()?.raw().0 as usize)
    }
}

fn spec(bytes: usize, memory_kind: MemoryKind, access: Access) -> AllocSpec {
    AllocSpec { bytes, align: 1, memory_kind, access, host: HostAccess::default(), hint: None }
}

#[cfg(test)]
mod tests {
    use super::within_piece;

    #[test]
    fn a_range_ends_where_its_piece_does() {
        // An allocation in a larger mapping; a piece of a reservation; no such attributes; an address that is unknown.
        assert_eq!(within_piece((100, 50), (0, 1000), 110), (100, 50));
        assert_eq!(within_piece((0, 600), (200, 200), 300), (200, 200));
        assert_eq!(within_piece((100, 50), (0, 0), 110), (100, 50));
        assert_eq!(within_piece((0, 0), (0, 0), 7), (0, 0));
    }
}
