//! Plain data: descriptions of devices, and the terms in which memory and work are requested.

use super::printable;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How *kernels* access a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Kernels only read.
    Read = 1,
    /// Kernels only write.
    Write = 2,
    /// Kernels do both.
    #[default]
    ReadWrite = 3,
}

impl Access {
    /// Whether kernels may read.
    #[inline]
    pub fn reads(self) -> bool {
        self != Access::Write
    }

    /// Whether kernels may write.
    #[inline]
    pub fn writes(self) -> bool {
        self != Access::Read
    }

    /// Whether `self` allows every access that `other` allows.
    #[inline]
    pub fn allows(self, other: Access) -> bool {
        // One bit each, because every launch checks it for every view.
        other as u8 & !(self as u8) == 0
    }
}

/// How the *host* accesses a buffer after it was created. Drivers can skip cache maintenance for restricted access;
/// onebuf enforces it for reads, writes and maps on every driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostAccess {
    /// The host reads and writes.
    #[default]
    ReadWrite,
    /// The host only reads.
    Read,
    /// The host only writes.
    Write,
    /// The host does neither.
    None,
}

impl HostAccess {
    /// Whether the host may read.
    pub fn reads(self) -> bool {
        matches!(self, HostAccess::ReadWrite | HostAccess::Read)
    }

    /// Whether the host may write.
    pub fn writes(self) -> bool {
        matches!(self, HostAccess::ReadWrite | HostAccess::Write)
    }
}

/// The expected use of a buffer. A hint: it breaks ties and forbids nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// Mostly used by the CPU.
    CpuPreferred,
    /// Mostly used by kernels.
    GpuPreferred,
    /// Used by both at a fine grain: memory that needs no hand-over calls is preferred.
    Coherent,
    /// Written once and read once, alternately.
    Streaming,
}

/// What to do about implied copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyPolicy {
    /// Make and count them.
    #[default]
    Allow,
    /// Make and count them, and log each.
    Warn,
    /// Refuse a plan that would need one.
    Forbid,
}

/// The kind of memory that a device allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Ordinary pages of this process.
    HostPages,
    /// Shared virtual memory that CPU and device access at the same time.
    FineSvm,
    /// Shared virtual memory that must be mapped for CPU access and unmapped for device access.
    CoarseSvm,
    /// Memory at one address for CPU and device, whose pages move to the side that takes over; these moves count as
    /// copies. Never chosen by a plan: opt-in by the hub's `managed_memory`, and requested by name.
    Managed,
    /// Device memory that the driver maps for the CPU.
    MappedDevice,
    /// Device memory that other APIs and processes can import by a file descriptor. A separate allocation, in large
    /// pages.
    Exportable,
    /// Memory on the chip itself, small and fast, if the platform has it. Never chosen by a plan, only by request.
    OnChip,
    /// Device memory that the CPU accesses only by enqueued copies.
    Device,
}

impl MemoryKind {
    /// Every memory kind, most widely visible first.
    pub const ALL: [MemoryKind; 8] = [
        MemoryKind::HostPages,
        MemoryKind::FineSvm,
        MemoryKind::CoarseSvm,
        MemoryKind::Managed,
        MemoryKind::MappedDevice,
        MemoryKind::Exportable,
        MemoryKind::OnChip,
        MemoryKind::Device,
    ];

    /// Whether memory of this kind is allocated only on request.
    pub fn is_asked_for(self) -> bool {
        matches!(self, MemoryKind::Managed | MemoryKind::OnChip)
    }
}

/// How one device accesses memory that is allocated on another, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteKind {
    /// The same device.
    Same,
    /// The same host pages.
    HostPointer,
    /// The same virtual address.
    SvmPointer,
    /// A device address that is valid in both APIs.
    RawAddress,
    /// An opaque file descriptor.
    OpaqueFd,
    /// A dma-buf.
    DmaBuf,
    /// A sharing call of one API for the other.
    ApiShare,
    /// Another chip's memory, accessed directly.
    Peer,
    /// Another process' memory.
    Ipc,
    /// A pinned, chunked, pipelined copy: always available, always counted.
    Staged,
}

impl RouteKind {
    /// Every kind, best first.
    pub const ALL: [RouteKind; 10] = [
        RouteKind::Same,
        RouteKind::HostPointer,
        RouteKind::SvmPointer,
        RouteKind::RawAddress,
        RouteKind::OpaqueFd,
        RouteKind::DmaBuf,
        RouteKind::ApiShare,
        RouteKind::Peer,
        RouteKind::Ipc,
        RouteKind::Staged,
    ];
}

/// The kind of file descriptor by which memory is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FdKind {
    /// An opaque descriptor, which only drivers of the same vendor understand.
    OpaqueFd,
    /// A dma-buf of the kernel, which cameras, codecs and displays understand too.
    DmaBuf,
}

impl FdKind {
    /// The kind of route that uses it.
    pub fn route(self) -> RouteKind {
        match self {
            FdKind::OpaqueFd => RouteKind::OpaqueFd,
            FdKind::DmaBuf => RouteKind::DmaBuf,
        }
    }
}

/// How one queue waits for the work of another, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncMethod {
    /// One in-order queue: nothing to do.
    SameQueue,
    /// A semaphore that the device waits on.
    Semaphore,
    /// An event of the API that both queues belong to.
    Event,
    /// The queue waits for a value in shared memory.
    WaitValue,
    /// A completion callback releases a host signal that the other queue waits for.
    Callback,
    /// The calling thread waits.
    HostWait,
}

impl SyncMethod {
    /// All methods, best first; each at the index that is its number as an integer.
    pub const ALL: [SyncMethod; 6] = [
        SyncMethod::SameQueue,
        SyncMethod::Semaphore,
        SyncMethod::Event,
        SyncMethod::WaitValue,
        SyncMethod::Callback,
        SyncMethod::HostWait,
    ];

    /// Whether it works by an API's contract, or without one. Every other method joins two queues only if an experiment has
    /// proven it, or if the caller vouches for it.
    pub const fn is_guaranteed(self) -> bool {
        matches!(self, SyncMethod::SameQueue | SyncMethod::Event | SyncMethod::HostWait)
    }
}

/// Prints the snake-case name that the JSON contracts use.
macro_rules! display_as_json {
    ($($type:ty),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )*};
}
display_as_json!(
    Access, HostAccess, Hint, CopyPolicy, MemoryKind, RouteKind, FdKind, SyncMethod, DeviceKind
);

/// The name of a compute API, as in device ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Api(pub &'static str);

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

/// The type of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A CPU.
    Cpu,
    /// A GPU.
    Gpu,
    /// A DSP, FPGA or similar.
    Accelerator,
    /// None of these, or unknown.
    Other,
}

/// The address of a chip on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciAddress {
    /// Domain; zero if the API does not report it.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Identifies the chip, so that devices of two APIs can be matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PhysicalId {
    /// The driver's device UUID.
    pub uuid: Option<[u8; 16]>,
    /// The bus address.
    pub pci: Option<PciAddress>,
}

impl PhysicalId {
    /// Whether both are known to be the same chip: by UUID if both have one, else by bus address.
    pub fn same_chip(&self, other: &PhysicalId) -> bool {
        match (self.uuid, other.uuid) {
            (Some(a), Some(b)) => a == b,
            _ => self.pci.is_some() && self.pci == other.pci,
        }
    }

    /// The UUID in the usual hexadecimal form.
    pub fn uuid_text(&self) -> Option<String> {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        self.uuid.map(|u| [&u[0..4], &u[4..6], &u[6..8], &u[8..10], &u[10..16]].map(hex).join("-"))
    }
}

/// Identifies the context of an object. Objects with equal domains can be used in one call of their API (one context, or host
/// memory of one process).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Domain(pub u64);

/// The address space of a device's kernels. If two devices of one chip have the same address space, an address is valid
/// for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressSpace {
    /// The process-wide address space of a vendor's runtime, per chip.
    Runtime(&'static str),
    /// The process' own: kernels run on the CPU.
    Process,
}

/// The capabilities of a device, read once. The default is none; a backend fills in what the device has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Caps {
    /// The memory kinds that it can allocate.
    pub memory_kinds: Vec<MemoryKind>,
    /// Whether it can use host pages that other code allocated.
    pub imports_host_pages: bool,
    /// The kinds of file descriptor as which it can export `Exportable` memory.
    pub exports: Vec<FdKind>,
    /// The kinds of file descriptor that it can import, according to its driver.
    pub imports: Vec<FdKind>,
    /// Whether its driver trusts the contents of such a file, or maps it unchecked, as drivers that run on the CPU do.
    /// A forged file then gives access to any memory of the process, so files of other processes are refused.
    pub parses_fds: bool,
    /// Whether imported descriptors have no calls that acquire and release them, so that only an experiment can show that another
    /// device's writes are seen.
    pub imports_without_acquire: bool,
    /// The APIs on the same chip whose objects it can import by dedicated sharing calls, according to its driver.
    pub shares_objects_of: Vec<Api>,
    /// The chips whose memory its kernels can access directly, in the same API.
    pub peers: Vec<PhysicalId>,
    /// Whether another process can open its plain `Device` memory, by a handle of the API.
    pub ipc: bool,
    /// Required alignment of its memory, in bytes.
    pub align_bytes: usize,
    /// Whether device and host use one physical memory.
    pub unified_memory: bool,
    /// Largest single allocation, in bytes.
    pub max_alloc_bytes: u64,
    /// Maximum local memory of one work-group, in bytes.
    pub local_memory_bytes: u64,
    /// Largest work-group.
    pub max_group_size: usize,
    /// Largest work-group per dimension.
    pub max_group_sizes: [usize; 3],
    /// The total number of iterations of all loops of one work-item after which the driver leaves them. It reports no
    /// error, and the results are wrong: longer launches must be split or refused. `None` if there is no such limit.
    pub max_loop_iterations: Option<u32>,
    /// Number of compute units.
    pub compute_units: u32,
    /// Whether queues can run out of order.
    pub out_of_order: bool,
    /// Whether its events support completion callbacks, so that another queue's host signal is released without a waiting
    /// thread.
    pub callbacks: bool,
    /// Whether its queues can wait for a host signal.
    pub host_signals: bool,
    /// Whether its queues can wait for a value in memory that another device writes.
    pub wait_values: bool,
    /// Whether it creates binary semaphores that other APIs can import by an opaque descriptor.
    pub exports_semaphores: bool,
    /// Whether its queues can signal such semaphores and wait on them.
    pub imports_semaphores: bool,
    /// Whether its driver is known to crash if two threads call it at once. Pipelines with a stage there run on one
    /// thread.
    pub one_thread: bool,
    /// Whether shared virtual memory supports atomics.
    pub svm_atomics: bool,
    /// Whether kernels can use any pointer of the process.
    pub svm_system: bool,
    /// The address space of its kernels, if another API may share it.
    pub address_space: Option<AddressSpace>,
    /// The id of the device that its runtime is built on, if both use one context: their queues can wait for each
    /// other's events.
    pub built_on: Option<String>,
    /// The intermediate languages that its driver accepts, such as `SPIR-V_1.2`.
    pub il_versions: Vec<String>,
}

impl Caps {
    /// The features that matter for sharing, one word each.
    pub fn words(&self) -> Vec<&'static str> {
        let has = |memory_kind| self.memory_kinds.contains(&memory_kind);
        let all = [
            ("host_pointer", self.imports_host_pages),
            ("svm_fine", has(MemoryKind::FineSvm)),
            ("svm_coarse", has(MemoryKind::CoarseSvm)),
            ("managed", has(MemoryKind::Managed)),
            ("svm_atomics", self.svm_atomics),
            ("svm_system", self.svm_system),
            ("export_opaque_fd", self.exports.contains(&FdKind::OpaqueFd)),
            ("export_dma_buf", self.exports.contains(&FdKind::DmaBuf)),
            ("import_opaque_fd", self.imports.contains(&FdKind::OpaqueFd)),
            ("import_dma_buf", self.imports.contains(&FdKind::DmaBuf)),
            ("api_share", !self.shares_objects_of.is_empty()),
            ("peers", !self.peers.is_empty()),
            ("ipc", self.ipc),
            ("unified_memory", self.unified_memory),
            ("out_of_order", self.out_of_order),
            ("callbacks", self.callbacks),
            ("user_events", self.host_signals),
            ("wait_values", self.wait_values),
            ("export_semaphores", self.exports_semaphores),
            ("import_semaphores", self.imports_semaphores),
            ("shared_events", self.built_on.is_some()),
        ];
        all.into_iter().filter(|(_, there)| *there).map(|(word, _)| word).collect()
    }
}

/// Everything that is known about a device without using it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// The API.
    pub api: Api,
    /// The device's own name.
    pub name: String,
    /// The vendor of the driver; for OpenCL the platform's name.
    pub platform: String,
    /// The API's version as the driver reports it.
    pub version: String,
    /// The driver's version.
    pub driver: String,
    /// Identifies the driver's library file: path, size, time.
    pub library: String,
    /// CPU, GPU or other.
    pub kind: DeviceKind,
    /// The chip.
    pub physical: PhysicalId,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// The extensions it declares, by their whole names.
    pub extensions: Vec<String>,
    /// What it can do.
    pub caps: Caps,
}

impl DeviceInfo {
    /// Makes the driver's texts safe for a terminal.
    pub fn printable(mut self) -> Self {
        for text in [&mut self.name, &mut self.platform, &mut self.version, &mut self.driver] {
            *text = printable(text);
        }
        self
    }

    /// Whether it declares the extension, by its whole name.
    pub fn declares(&self, extension: &str) -> bool {
        self.extensions.iter().any(|name| name == extension)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_reads_writes_or_does_both() {
        let of = |access: Access| [access.reads(), access.writes()];
        assert_eq!(
            [Access::Read, Access::Write, Access::ReadWrite].map(of),
            [[true, false], [false, true], [true, true]]
        );
        let all = [HostAccess::ReadWrite, HostAccess::Read, HostAccess::Write, HostAccess::None];
        assert_eq!(all.map(HostAccess::reads), [true, true, false, false]);
        assert_eq!(all.map(HostAccess::writes), [true, false, true, false]);
    }

    #[test]
    fn only_managed_and_on_chip_memory_must_be_asked_for() {
        let asked: Vec<_> =
            MemoryKind::ALL.into_iter().filter(|kind| kind.is_asked_for()).collect();
        assert_eq!(asked, [MemoryKind::Managed, MemoryKind::OnChip]);
    }

    #[test]
    fn chips_are_matched_by_uuid_and_else_by_address() {
        let pci = |bus| Some(PciAddress { domain: 1, bus, device: 2, function: 3 });
        let chip = |uuid: Option<u8>, pci| PhysicalId { uuid: uuid.map(|byte| [byte; 16]), pci };
        let same = |a: PhysicalId, b: PhysicalId| [a.same_chip(&b), b.same_chip(&a)];
        assert_eq!(
            same(chip(Some(1), pci(7)), chip(Some(1), pci(8))),
            [true; 2],
            "the UUID decides"
        );
        assert_eq!(same(chip(Some(1), pci(7)), chip(Some(2), pci(7))), [false; 2]);
        assert_eq!(same(chip(Some(1), pci(7)), chip(None, pci(7))), [true; 2]);
        assert_eq!(same(chip(None, pci(7)), chip(None, pci(8))), [false; 2]);
        assert_eq!(same(chip(None, None), chip(None, None)), [false; 2], "nothing is known");
        assert_eq!(pci(0xab).unwrap().to_string(), "0001:ab:02.3");
        let text = chip(Some(0x1f), None).uuid_text();
        assert_eq!(text.as_deref(), Some("1f1f1f1f-1f1f-1f1f-1f1f-1f1f1f1f1f1f"));
        assert_eq!(PhysicalId::default().uuid_text(), None);
        assert_eq!(format!("{:>7}|", Api("opencl")), " opencl|");
    }

    #[test]
    fn a_device_is_described_by_what_it_has() {
        assert!(Caps::default().words().is_empty());
        let caps = Caps {
            imports_host_pages: true,
            memory_kinds: vec![MemoryKind::FineSvm, MemoryKind::Device],
            imports: vec![FdKind::DmaBuf],
            shares_objects_of: vec![Api("gl")],
            ipc: true,
            ..Caps::default()
        };
        assert_eq!(
            caps.words(),
            ["host_pointer", "svm_fine", "import_dma_buf", "api_share", "ipc"]
        );
    }

    /// Tables are indexed by the number, and the last method is the one that always works.
    #[test]
    fn all_sync_methods_stand_at_their_numbers() {
        for (number, method) in SyncMethod::ALL.into_iter().enumerate() {
            assert_eq!(method as usize, number, "{method}");
        }
        assert_eq!(SyncMethod::ALL.last(), Some(&SyncMethod::HostWait));
        assert_eq!(SyncMethod::ALL.len(), SyncMethod::HostWait as usize + 1);
    }
}
