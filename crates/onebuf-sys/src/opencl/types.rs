//! Handles, callbacks and the few structures that cross the C boundary.

use std::ffi::{c_char, c_void};

/// An object that the probe counts.
pub(super) trait Counted {
    const KIND: &'static str;
}

macro_rules! handles {
    ($($(#[doc = $doc:literal])* $name:ident $(counted $kind:literal)?;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// The null object.
            pub const NULL: Self = Self(std::ptr::null_mut());

            /// Whether it is null.
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        // SAFETY: a handle is never dereferenced here. OpenCL makes every function thread-safe except setting a
        // kernel's arguments, which is an `unsafe fn` with that in its contract.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        $(impl Counted for $name {
            const KIND: &'static str = $kind;
        })?
    )*};
}

handles! {
    /// `cl_platform_id`: one driver.
    ClPlatform;
    /// `cl_device_id`.
    ClDevice;
    /// `cl_context`.
    ClContext counted "context";
    /// `cl_command_queue`.
    ClQueue counted "queue";
    /// `cl_mem`.
    ClMem counted "mem";
    /// `cl_program`.
    ClProgram counted "program";
    /// `cl_kernel`. Two threads must not set arguments of one at the same time.
    ClKernel counted "kernel";
    /// `cl_event`.
    ClEvent counted "event";
    /// `cl_semaphore_khr`.
    ClSemaphore counted "semaphore";
}

/// Called with a context's errors: message, private information and its length, user data.
pub type ContextNotify =
    unsafe extern "system" fn(*const c_char, *const c_void, usize, *mut c_void);
/// Called when a program was built.
pub type BuildNotify = unsafe extern "system" fn(ClProgram, *mut c_void);
/// Called when an event reached a status (the `i32`); must not block.
pub type EventNotify = unsafe extern "system" fn(ClEvent, i32, *mut c_void);
/// Called when a memory object is being destroyed.
pub type MemNotify = unsafe extern "system" fn(ClMem, *mut c_void);
/// Called instead of freeing the pointers of `clEnqueueSVMFree`.
pub type SvmFreeNotify = unsafe extern "system" fn(ClQueue, u32, *mut *mut c_void, *mut c_void);

/// `cl_buffer_region`: a sub-buffer's range, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ClBufferRegion {
    /// Offset in the parent; a multiple of each device's `CL_DEVICE_MEM_BASE_ADDR_ALIGN` bits.
    pub origin: usize,
    /// Length.
    pub size: usize,
}

/// `cl_device_pci_bus_info_khr`, the value of [`CL_DEVICE_PCI_BUS_INFO_KHR`].
///
/// [`CL_DEVICE_PCI_BUS_INFO_KHR`]: super::consts::CL_DEVICE_PCI_BUS_INFO_KHR
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ClPciBusInfo {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u32,
    /// Device.
    pub device: u32,
    /// Function.
    pub function: u32,
}

/// `cl_device_topology_amd` in its PCIe form, the value of [`CL_DEVICE_TOPOLOGY_AMD`].
///
/// The header's chars are signed; these are bytes, because bus 0x80 would be negative otherwise.
///
/// [`CL_DEVICE_TOPOLOGY_AMD`]: super::consts::CL_DEVICE_TOPOLOGY_AMD
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ClTopologyAmd {
    /// 1 is PCIe; otherwise the fields below are meaningless.
    pub kind: u32,
    /// Not used.
    pub unused: [u8; 17],
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

const _: () = {
    assert!(size_of::<ClMem>() == size_of::<usize>());
    assert!(size_of::<Option<EventNotify>>() == size_of::<usize>());
    assert!(size_of::<ClBufferRegion>() == 2 * size_of::<usize>());
    assert!(size_of::<ClPciBusInfo>() == 16);
    assert!(size_of::<ClTopologyAmd>() == 24);
};
