//! The structures of DLPack 1.x, and of the versions before.

use std::ffi::c_void;

/// Where memory is.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DlDevice {
    pub kind: i32,
    pub number: i32,
}

/// The type of an element.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DlType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// A strided array. Strides are in elements; null means C order.
#[repr(C)]
pub(crate) struct DlTensor {
    pub data: *mut c_void,
    pub device: DlDevice,
    pub ndim: i32,
    pub dtype: DlType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// A tensor with its owner, before version 1.
#[repr(C)]
pub(crate) struct Managed {
    pub tensor: DlTensor,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DlVersion {
    pub major: u32,
    pub minor: u32,
}

/// A tensor with its owner, since version 1.
#[repr(C)]
pub(crate) struct ManagedVersioned {
    pub version: DlVersion,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    pub flags: u64,
    pub tensor: DlTensor,
}

/// Bits of `flags`.
pub(crate) const READ_ONLY: u64 = 1;
pub(crate) const IS_COPIED: u64 = 2;

// The layouts of the C header on 64-bit machines.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<DlTensor>() == 48);
    assert!(size_of::<Managed>() == 64);
    assert!(size_of::<ManagedVersioned>() == 80);
    assert!(std::mem::offset_of!(ManagedVersioned, tensor) == 32);
};
