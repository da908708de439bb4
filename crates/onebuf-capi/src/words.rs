//! Constants
//!
//! Choices are integer constants, and zero is always the default. A number that is not listed is ONEBUF_INVALID_ARGUMENT.

use crate::fault::{Fault, Result};
use onebuf::{Access, CopyPolicy, Hint, HostAccess, MemoryKind, RouteKind, SyncMethod};

/// A `timeout_ms` that means the hub's own timeout.
pub const ONEBUF_DEFAULT_TIMEOUT: u64 = 0xffff_ffff_ffff_ffff;

/// How kernels access a buffer.
pub type onebuf_access = u32;
/// Kernels read and write.
pub const ONEBUF_READ_WRITE: onebuf_access = 0;
/// Kernels only read.
pub const ONEBUF_READ: onebuf_access = 1;
/// Kernels only write.
pub const ONEBUF_WRITE: onebuf_access = 2;

/// How the host accesses a buffer after it was created.
pub type onebuf_host_access = u32;
/// The host reads and writes.
pub const ONEBUF_HOST_READ_WRITE: onebuf_host_access = 0;
/// The host only reads.
pub const ONEBUF_HOST_READ: onebuf_host_access = 1;
/// The host only writes.
pub const ONEBUF_HOST_WRITE: onebuf_host_access = 2;
/// The host does neither.
pub const ONEBUF_HOST_NONE: onebuf_host_access = 3;

/// What to do about implied copies. The stricter of the hub's and the buffer's policy applies.
pub type onebuf_copies = u32;
/// Make and count them.
pub const ONEBUF_COPIES_ALLOW: onebuf_copies = 0;
/// Make and count them, and log each: see onebuf_log_to().
pub const ONEBUF_COPIES_WARN: onebuf_copies = 1;
/// Fail instead of copying.
pub const ONEBUF_COPIES_FORBID: onebuf_copies = 2;

/// The expected use of a buffer. A hint: it breaks ties and forbids nothing.
pub type onebuf_hint = u32;
/// No expectation.
pub const ONEBUF_HINT_NONE: onebuf_hint = 0;
/// Mostly used by the CPU.
pub const ONEBUF_HINT_CPU_PREFERRED: onebuf_hint = 1;
/// Mostly used by kernels.
pub const ONEBUF_HINT_GPU_PREFERRED: onebuf_hint = 2;
/// Used by both at a fine grain.
pub const ONEBUF_HINT_COHERENT: onebuf_hint = 3;
/// Written once, read once, in turn.
pub const ONEBUF_HINT_STREAMING: onebuf_hint = 4;

/// The kind of memory that is allocated.
pub type onebuf_memory_kind = u32;
/// The plan chooses.
pub const ONEBUF_MEMORY_KIND_ANY: onebuf_memory_kind = 0;
/// Ordinary pages of this process.
pub const ONEBUF_MEMORY_KIND_HOST_PAGES: onebuf_memory_kind = 1;
/// Shared virtual memory that CPU and device access at the same time.
pub const ONEBUF_MEMORY_KIND_FINE_SVM: onebuf_memory_kind = 2;
/// Shared virtual memory that is mapped and unmapped in turn.
pub const ONEBUF_MEMORY_KIND_COARSE_SVM: onebuf_memory_kind = 3;
/// Device memory that the driver maps for the CPU.
pub const ONEBUF_MEMORY_KIND_MAPPED_DEVICE: onebuf_memory_kind = 4;
/// Memory on the chip itself.
pub const ONEBUF_MEMORY_KIND_ON_CHIP: onebuf_memory_kind = 5;
/// Device memory that the CPU reaches only by enqueued copies.
pub const ONEBUF_MEMORY_KIND_DEVICE: onebuf_memory_kind = 6;
/// Device memory that other APIs and processes can import by a file descriptor.
pub const ONEBUF_MEMORY_KIND_EXPORTABLE: onebuf_memory_kind = 7;
/// Memory at one address for CPU and device, whose pages move to the side that takes over; these moves count as implied
/// copies. Only for hubs with `managed_memory`.
pub const ONEBUF_MEMORY_KIND_MANAGED: onebuf_memory_kind = 8;

/// How one device accesses memory that is allocated on another.
pub type onebuf_route = u32;
/// The plan chooses.
pub const ONEBUF_ROUTE_ANY: onebuf_route = 0;
/// The same device.
pub const ONEBUF_ROUTE_SAME: onebuf_route = 1;
/// The same host pages.
pub const ONEBUF_ROUTE_HOST_POINTER: onebuf_route = 2;
/// The same virtual address.
pub const ONEBUF_ROUTE_SVM_POINTER: onebuf_route = 3;
/// A device address that is valid in both APIs.
pub const ONEBUF_ROUTE_RAW_ADDRESS: onebuf_route = 4;
/// An opaque file descriptor.
pub const ONEBUF_ROUTE_OPAQUE_FD: onebuf_route = 5;
/// A dma-buf.
pub const ONEBUF_ROUTE_DMA_BUF: onebuf_route = 6;
/// A sharing call of one API for the other.
pub const ONEBUF_ROUTE_API_SHARE: onebuf_route = 7;
/// Another chip's memory, accessed directly.
pub const ONEBUF_ROUTE_PEER: onebuf_route = 8;
/// Memory of another process.
pub const ONEBUF_ROUTE_IPC: onebuf_route = 9;
/// A chunked copy through pinned memory.
pub const ONEBUF_ROUTE_STAGED: onebuf_route = 10;

/// A sync method, best first: how one queue waits for work of another.
pub type onebuf_sync_method = u32;
/// Not requested, or unknown.
pub const ONEBUF_SYNC_ANY: onebuf_sync_method = 0;
/// One in-order queue, or work that was already done: nothing to do.
pub const ONEBUF_SYNC_SAME_QUEUE: onebuf_sync_method = 1;
/// A semaphore that the device waits on.
pub const ONEBUF_SYNC_SEMAPHORE: onebuf_sync_method = 2;
/// An event of the API that both queues belong to.
pub const ONEBUF_SYNC_EVENT: onebuf_sync_method = 3;
/// The queue waits for a value in shared memory.
pub const ONEBUF_SYNC_WAIT_VALUE: onebuf_sync_method = 4;
/// A completion callback releases a host signal that the other queue waits for.
pub const ONEBUF_SYNC_CALLBACK: onebuf_sync_method = 5;
/// The calling thread waits.
pub const ONEBUF_SYNC_HOST_WAIT: onebuf_sync_method = 6;

/// By number, which never changes: a new method comes last, wherever it stands in `SyncMethod::ALL`.
const SYNC_METHODS: [SyncMethod; SyncMethod::ALL.len()] = [
    SyncMethod::SameQueue,
    SyncMethod::Semaphore,
    SyncMethod::Event,
    SyncMethod::WaitValue,
    SyncMethod::Callback,
    SyncMethod::HostWait,
];

/// Converts a number to a choice.
fn choose<T: Copy>(what: &str, number: u32, choices: &[T]) -> Result<T> {
    let found = choices.get(number as usize).copied();
    found.ok_or_else(|| {
        Fault::invalid(format!("{what} {number}: choose one of 0 to {}", choices.len() - 1))
    })
}

/// Converts a number to a choice, where zero is none.
fn choose_if_given<T: Copy>(what: &str, number: u32, choices: &[T]) -> Result<Option<T>> {
    match number.checked_sub(1) {
        None => Ok(None),
        Some(index) if (index as usize) < choices.len() => Ok(Some(choices[index as usize])),
        Some(_) => {
            Err(Fault::invalid(format!("{what} {number}: choose one of 0 to {}", choices.len())))
        }
    }
}

pub(crate) fn access(number: onebuf_access) -> Result<Access> {
    choose("access", number, &[Access::ReadWrite, Access::Read, Access::Write])
}

pub(crate) fn host_access(number: onebuf_host_access) -> Result<HostAccess> {
    let all = [HostAccess::ReadWrite, HostAccess::Read, HostAccess::Write, HostAccess::None];
    choose("host access", number, &all)
}

pub(crate) fn copies(number: onebuf_copies) -> Result<CopyPolicy> {
    choose("copies", number, &[CopyPolicy::Allow, CopyPolicy::Warn, CopyPolicy::Forbid])
}

pub(crate) fn copies_number(policy: CopyPolicy) -> onebuf_copies {
    match policy {
        CopyPolicy::Allow => ONEBUF_COPIES_ALLOW,
        CopyPolicy::Warn => ONEBUF_COPIES_WARN,
        CopyPolicy::Forbid => ONEBUF_COPIES_FORBID,
    }
}

pub(crate) fn hint(number: onebuf_hint) -> Result<Option<Hint>> {
    let all = [Hint::CpuPreferred, Hint::GpuPreferred, Hint::Coherent, Hint::Streaming];
    choose_if_given("hint", number, &all)
}

/// In the order of their numbers, which never change.
const MEMORY_KINDS: [MemoryKind; MemoryKind::ALL.len()] = [
    MemoryKind::HostPages,
    MemoryKind::FineSvm,
    MemoryKind::CoarseSvm,
    MemoryKind::MappedDevice,
    MemoryKind::OnChip,
    MemoryKind::Device,
    MemoryKind::Exportable,
    MemoryKind::Managed,
];

pub(crate) fn memory_kind(number: onebuf_memory_kind) -> Result<Option<MemoryKind>> {
    choose_if_given("memory_kind", number, &MEMORY_KINDS)
}

pub(crate) fn memory_kind_number(memory_kind: MemoryKind) -> onebuf_memory_kind {
    let at = MEMORY_KINDS.iter().position(|known| *known == memory_kind);
    at.map_or(ONEBUF_MEMORY_KIND_ANY, |at| at as u32 + 1)
}

pub(crate) fn route(number: onebuf_route) -> Result<Option<RouteKind>> {
    choose_if_given("route", number, &RouteKind::ALL)
}

pub(crate) fn route_number(route: RouteKind) -> onebuf_route {
    let at = RouteKind::ALL.iter().position(|known| *known == route);
    at.map_or(ONEBUF_ROUTE_ANY, |at| at as u32 + 1)
}

pub(crate) fn access_number(access: Access) -> onebuf_access {
    match access {
        Access::Read => ONEBUF_READ,
        Access::Write => ONEBUF_WRITE,
        _ => ONEBUF_READ_WRITE,
    }
}

pub(crate) fn host_access_number(access: HostAccess) -> onebuf_host_access {
    match access {
        HostAccess::Read => ONEBUF_HOST_READ,
        HostAccess::Write => ONEBUF_HOST_WRITE,
        HostAccess::None => ONEBUF_HOST_NONE,
        _ => ONEBUF_HOST_READ_WRITE,
    }
}

pub(crate) fn sync_method(number: onebuf_sync_method) -> Result<Option<SyncMethod>> {
    choose_if_given("sync_method", number, &SYNC_METHODS)
}

pub(crate) fn sync_method_number(sync_method: SyncMethod) -> onebuf_sync_method {
    SYNC_METHODS
        .iter()
        .position(|known| *known == sync_method)
        .map_or(ONEBUF_SYNC_ANY, |at| at as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_words_they_are_named_by() {
        let is = |found: Result<Option<MemoryKind>>, want| assert_eq!(found.ok(), Some(Some(want)));
        is(memory_kind(ONEBUF_MEMORY_KIND_HOST_PAGES), MemoryKind::HostPages);
        is(memory_kind(ONEBUF_MEMORY_KIND_FINE_SVM), MemoryKind::FineSvm);
        is(memory_kind(ONEBUF_MEMORY_KIND_COARSE_SVM), MemoryKind::CoarseSvm);
        is(memory_kind(ONEBUF_MEMORY_KIND_MAPPED_DEVICE), MemoryKind::MappedDevice);
        is(memory_kind(ONEBUF_MEMORY_KIND_ON_CHIP), MemoryKind::OnChip);
        is(memory_kind(ONEBUF_MEMORY_KIND_DEVICE), MemoryKind::Device);
        is(memory_kind(ONEBUF_MEMORY_KIND_EXPORTABLE), MemoryKind::Exportable);
        is(memory_kind(ONEBUF_MEMORY_KIND_MANAGED), MemoryKind::Managed);
        assert_eq!(route(ONEBUF_ROUTE_SVM_POINTER).ok(), Some(Some(RouteKind::SvmPointer)));
        assert_eq!(route(ONEBUF_ROUTE_API_SHARE).ok(), Some(Some(RouteKind::ApiShare)));
        assert_eq!(route(ONEBUF_ROUTE_STAGED).ok(), Some(Some(RouteKind::Staged)));
        assert_eq!(hint(ONEBUF_HINT_STREAMING).ok(), Some(Some(Hint::Streaming)));
        assert_eq!(host_access(ONEBUF_HOST_NONE).ok(), Some(HostAccess::None));
        assert_eq!(copies(ONEBUF_COPIES_FORBID).ok(), Some(CopyPolicy::Forbid));
        assert_eq!(access(ONEBUF_WRITE).ok(), Some(Access::Write));
        for number in ONEBUF_SYNC_SAME_QUEUE..=ONEBUF_SYNC_HOST_WAIT {
            let sync_method = sync_method(number).ok().flatten().map(sync_method_number);
            assert_eq!(sync_method, Some(number));
        }
        for number in ONEBUF_ROUTE_SAME..=ONEBUF_ROUTE_STAGED {
            assert_eq!(route(number).ok().flatten().map(route_number), Some(number));
        }
        for number in ONEBUF_HOST_READ_WRITE..=ONEBUF_HOST_NONE {
            assert_eq!(host_access(number).ok().map(host_access_number), Some(number));
        }
        for number in ONEBUF_READ_WRITE..=ONEBUF_WRITE {
            assert_eq!(access(number).ok().map(access_number), Some(number));
        }
        for wrong in
            [access(3).is_ok(), memory_kind(9).is_ok(), route(11).is_ok(), sync_method(7).is_ok()]
        {
            assert!(!wrong);
        }
    }
}
