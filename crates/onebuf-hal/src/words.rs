//! Plain data: what devices are, and the words in which memory and work are asked for.

use super::printable;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What *kernels* do with a buffer.
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

    /// Whether everything `other` does is allowed by `self`.
    #[inline]
    pub fn allows(self, other: Access) -> bool {
        // One bit each, since every launch asks it of every view.
        other as u8 & !(self as u8) == 0
    }
}

/// What the *host* does with a buffer after it was made, where that is less than everything. Drivers
/// skip cache maintenance by it; onebuf holds reads, writes and maps to it on every driver.
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

/// What the caller expects of a buffer's life. A wish: it breaks ties, it forbids nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// Mostly used by the CPU.
    CpuPreferred,
    /// Mostly used by kernels.
    GpuPreferred,
    /// Used by both at a fine grain: prefer memory that needs no hand-over calls.
    Coherent,
    /// Written once, read once, in turn.
    Streaming,
}

/// What to do about copies that nobody asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyPolicy {
    /// Make them, count them.
    #[default]
    Allow,
    /// Make them, count them, log each.
    Warn,
    /// Refuse a plan that would need one.
    Forbid,
}

/// In what form a device allocates memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Ordinary pages of this process.
    HostPages,
    /// Shared virtual memory that CPU and device use at once.
    FineSvm,
    /// Shared virtual memory that is mapped and unmapped in turn.
    CoarseSvm,
    /// Memory at one address for CPU and device, whose pages are moved to whoever takes over: copies, which are counted. Never
    /// chosen, only asked for, of a hub that was built with `managed_memory`.
    Managed,
    /// Device memory that the driver maps for the CPU.
    MappedDevice,
    /// Device memory that other APIs and processes can import, by a file descriptor. An allocation of its
    /// own, in large pages.
    Exportable,
    /// Memory on the chip itself, small and fast, where the platform has such. Never chosen, only asked
    /// for.
    OnChip,
    /// Device memory that the CPU reaches only by enqueued copies.
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

    /// Whether memory has this form only where the caller says so.
    pub fn is_asked_for(self) -> bool {
        matches!(self, MemoryKind::Managed | MemoryKind::OnChip)
    }
}

/// How memory that lives on one device is seen on another, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteKind {
    /// One device.
    Same,
    /// One set of host pages.
    HostPointer,
    /// One virtual address.
    SvmPointer,
    /// A device address that is valid in both.
    RawAddress,
    /// An opaque file descriptor.
    OpaqueFd,
    /// A dma-buf.
    DmaBuf,
    /// A sharing call that one API has for the other.
    ApiShare,
    /// Another chip's memory, accessed directly.
    Peer,
    /// Another process' memory.
    Ipc,
    /// A pinned, chunked, pipelined copy: always there, always counted.
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

/// What sort of file descriptor memory is passed on as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FdKind {
    /// One that only drivers of the chip's own vendor understand.
    OpaqueFd,
    /// The kernel's own, which cameras, codecs and displays understand too.
    DmaBuf,
}

impl FdKind {
    /// The kind of route that goes by it.
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
    /// A completion callback opens a host signal in the other queue.
    Callback,
    /// The calling thread waits.
    HostWait,
}

impl SyncMethod {
    /// Whether it works by the contract of an API, or of none. Every other method joins two queues only where an experiment has
    /// proven it, or the caller vouches for it.
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

/// What sort of chip a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A CPU.
    Cpu,
    /// A GPU.
    Gpu,
    /// A DSP, FPGA or the like.
    Accelerator,
    /// None of these, or unknown.
    Other,
}

/// Where a chip sits on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciAddress {
    /// Domain; zero where the API does not say.
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

/// What tells that two APIs speak of one chip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PhysicalId {
    /// The driver's device UUID.
    pub uuid: Option<[u8; 16]>,
    /// The bus address.
    pub pci: Option<PciAddress>,
}

impl PhysicalId {
    /// Whether both are known to be the same chip: by UUID where both have one, else by address.
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

/// Objects with equal domains may meet in one call of their API (one context, one process' pages).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Domain(pub u64);

/// In which address space a device's kernels work. What is an address for one device of a chip is the same address for
/// another of it, where both say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressSpace {
    /// The one that this runtime makes for all of the process, of each of its chips.
    Runtime(&'static str),
    /// The process' own: kernels run on the CPU.
    Process,
}

/// What a device can do, read once.
#[derive(Clone, Debug, PartialEq)]
pub struct Caps {
    /// The forms in which it allocates.
    pub memory_kinds: Vec<MemoryKind>,
    /// Whether it can use host pages that somebody else allocated.
    pub imports_host_pages: bool,
    /// The file descriptors that it can export its `Exportable` memory as.
    pub exports: Vec<FdKind>,
    /// The file descriptors of others' memory that it says it imports.
    pub imports: Vec<FdKind>,
    /// Whether its driver believes what such a file says, or maps it unchecked, as drivers do that run on the CPU. A forged
    /// file then reaches any memory of the process, so files of other processes are refused.
    pub parses_fds: bool,
    /// The APIs whose objects on the same chip it says it shares, by calls for just that.
    pub shares_objects_of: Vec<Api>,
    /// The chips whose memory its kernels can reach where that lies, by the same API.
    pub peers: Vec<PhysicalId>,
    /// Whether another process can open its plain `Device` memory, by a handle of the API's.
    pub ipc: bool,
    /// Alignment that its memory needs, in bytes.
    pub align_bytes: usize,
    /// Device and host use one physical memory.
    pub unified_memory: bool,
    /// Largest single allocation, in bytes.
    pub max_alloc_bytes: u64,
    /// Memory of one work-group, in bytes.
    pub local_memory_bytes: u64,
    /// Largest work-group.
    pub max_group_size: usize,
    /// Largest work-group per dimension.
    pub max_group_sizes: [usize; 3],
    /// How many iterations all loops of one work-item may have together, where the driver ends them there. It reports no
    /// error, and the results are wrong: launches that need more have to be divided, or refused. `None` where there is no
    /// such limit.
    pub max_loop_iterations: Option<u32>,
    /// Parallel units.
    pub compute_units: u32,
    /// Whether queues can run out of order.
    pub out_of_order: bool,
    /// Whether its events can call back, so that another queue's host signal opens without a waiting thread.
    pub callbacks: bool,
    /// Whether its queues can wait at a host signal that the host opens.
    pub host_signals: bool,
    /// Whether its queues can wait for a number in memory, which another device writes.
    pub wait_values: bool,
    /// Whether it makes binary semaphores that others import by an opaque descriptor.
    pub exports_semaphores: bool,
    /// Whether its queues signal such semaphores and wait on them.
    pub imports_semaphores: bool,
    /// Whether its driver is known to crash when two threads call it at once. Pipelines with a stage there run on one thread.
    pub one_thread: bool,
    /// Whether shared virtual memory has atomics.
    pub svm_atomics: bool,
    /// Whether any pointer of the process can be used by kernels.
    pub svm_system: bool,
    /// In which address space its kernels work, where another API may work in it too.
    pub address_space: Option<AddressSpace>,
    /// The id of the device that its runtime is built on, where both work in one context: their queues wait for each
    /// other's events.
    pub built_on: Option<String>,
    /// The intermediate languages that its driver takes programs in, such as `SPIR-V_1.2`.
    pub il_versions: Vec<String>,
}

impl Caps {
    /// What matters for sharing, in one word each.
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

/// Everything that is known of a device without using it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Which API.
    pub api: Api,
    /// The device's own name.
    pub name: String,
    /// Who makes the driver; for OpenCL, the platform.
    pub platform: String,
    /// The API's version as the driver gives it.
    pub version: String,
    /// The driver's version.
    pub driver: String,
    /// What tells this driver's library file from another: path, size, time.
    pub library: String,
    /// CPU, GPU or other.
    pub kind: DeviceKind,
    /// Which chip.
    pub physical: PhysicalId,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Names of the extensions it declares, whole.
    pub extensions: Vec<String>,
    /// What it can do.
    pub caps: Caps,
}

impl DeviceInfo {
    /// The driver's words, as a terminal can show them.
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
