//! ROCr's statuses, and its description of a pointer.

use std::fmt;

/// A status of ROCr. A newtype and not an `enum`: extensions have codes that the header does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct HsaStatus(pub i32);

macro_rules! codes {
    ($($name:ident = $code:literal;)*) => {
        #[allow(missing_docs)] // The names are ROCr's own.
        impl HsaStatus {
            /// Not from ROCr: the library does not export this call.
            pub const NOT_LOADED: Self = Self(i32::MIN);
            /// Not from ROCr: it reported success, but returned no file descriptor.
            pub const NO_FD: Self = Self(i32::MIN + 1);
            $(pub const $name: Self = Self($code);)*

            /// The name in ROCr's headers.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(concat!("HSA_STATUS_", stringify!($name))),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0;
    ERROR = 0x1000;
    ERROR_INVALID_ARGUMENT = 0x1001;
    ERROR_INVALID_ALLOCATION = 0x1003;
    ERROR_INVALID_AGENT = 0x1004;
    ERROR_OUT_OF_RESOURCES = 0x1008;
    ERROR_NOT_INITIALIZED = 0x100B;
    ERROR_REFCOUNT_OVERFLOW = 0x100C;
}

impl fmt::Display for HsaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.name()) {
            (Self::NOT_LOADED, _) => f.write_str("call not exported by the library"),
            (Self::NO_FD, _) => f.write_str("no file descriptor from a call that succeeded"),
            (Self(code), Some(name)) => write!(f, "{name} ({code:#x})"),
            (Self(code), None) => write!(f, "status {code:#x}"),
        }
    }
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HsaRefused {
    /// The name of the call.
    pub call: &'static str,
    /// Its status.
    pub status: HsaStatus,
}

impl HsaRefused {
    pub(super) fn unless_ok(call: &'static str, status: i32) -> Result<(), Self> {
        match HsaStatus(status) {
            HsaStatus::SUCCESS => Ok(()),
            status => Err(Self { call, status }),
        }
    }
}

impl fmt::Display for HsaRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.status)
    }
}

impl std::error::Error for HsaRefused {}

/// `hsa_amd_pointer_type_t`. A newtype and not an `enum`, like `HsaStatus`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct PointerType(pub i32);

impl PointerType {
    /// Not known to ROCr: ordinary or unmapped memory. The other fields are then meaningless.
    pub const UNKNOWN: Self = Self(0);
    /// From ROCr's allocators, such as `hipMalloc` and coarse-grained `clSVMAlloc`.
    pub const HSA: Self = Self(1);
    /// Ordinary memory that is pinned for an agent.
    pub const LOCKED: Self = Self(2);
    /// From a graphics API, or another import of a dma-buf.
    pub const GRAPHICS: Self = Self(3);
    /// From another process.
    pub const IPC: Self = Self(4);
}

/// `hsa_amd_pointer_info_t`. Addresses are numbers here and never dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PointerInfo {
    /// In: the size of this structure. Out: the number of bytes that the runtime supports.
    pub size: u32,
    /// The kind of memory.
    pub kind: PointerType,
    /// The allocation's base address for agents, such as GPUs.
    pub agent_base: u64,
    /// The allocation's base address for the host.
    pub host_base: u64,
    /// The size of the whole allocation.
    pub bytes: usize,
    /// The value set by `hsa_amd_pointer_info_set_userdata`.
    pub user_data: u64,
    /// The agent that owns the memory.
    pub owner: u64,
    /// Fine or coarse grain, and similar flags.
    pub global_flags: u32,
    /// A `bool` in the latest runtimes; padding before.
    pub registered: u8,
}

impl Default for PointerInfo {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            kind: PointerType::UNKNOWN,
            agent_base: 0,
            host_base: 0,
            bytes: 0,
            user_data: 0,
            owner: 0,
            global_flags: 0,
            registered: 0,
        }
    }
}
