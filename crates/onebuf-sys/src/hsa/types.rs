//! ROCr's statuses, and what it says of a pointer.

use std::fmt;

/// A status of ROCr's. A newtype and not an `enum`: extensions have codes that the header does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct HsaStatus(pub i32);

macro_rules! codes {
    ($($name:ident = $code:literal;)*) => {
        #[allow(missing_docs)] // The names are ROCr's own.
        impl HsaStatus {
            /// Not from ROCr: the library does not export this call.
            pub const NOT_LOADED: Self = Self(i32::MIN);
            /// Not from ROCr: it reported success, but gave no file descriptor.
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

/// A call that was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HsaRefused {
    /// Which call.
    pub call: &'static str,
    /// What it answered.
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

/// `hsa_amd_pointer_type_t`, a newtype for the same reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct PointerType(pub i32);

impl PointerType {
    /// Not ROCr's: ordinary memory, or none at all. The other fields say nothing then.
    pub const UNKNOWN: Self = Self(0);
    /// From ROCr's allocators: what `hipMalloc` and coarse `clSVMAlloc` give.
    pub const HSA: Self = Self(1);
    /// Ordinary memory that is pinned for an agent.
    pub const LOCKED: Self = Self(2);
    /// From a graphics API, or another import of a dma-buf.
    pub const GRAPHICS: Self = Self(3);
    /// From another process.
    pub const IPC: Self = Self(4);
}

/// `hsa_amd_pointer_info_t`. Addresses are numbers here: nobody follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PointerInfo {
    /// In: the bytes of this structure. Out: how many of them the runtime knows.
    pub size: u32,
    /// What kind of memory it is.
    pub kind: PointerType,
    /// Where the allocation begins for agents, which GPUs are.
    pub agent_base: u64,
    /// Where it begins for the host.
    pub host_base: u64,
    /// The bytes of the whole allocation.
    pub bytes: usize,
    /// What `hsa_amd_pointer_info_set_userdata` left.
    pub user_data: u64,
    /// The agent in whose pool it lies.
    pub owner: u64,
    /// Fine grain or coarse, and the like.
    pub global_flags: u32,
    /// A `bool`, in the latest runtimes; before, padding.
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
