//! "Class A": code that does not use onebuf, has its own context, queues and buffers, and passes them to a
//! library. It is raw OpenCL with every call checked; [`ClFft`] and [`ClBlast`] work on its memory.
//!
//! # Safety
//!
//! Every handle is alive as long as its [`Own`], and belongs to the library that [`cl`] loads. Arguments of
//! methods must be of the same [`ClassA`]. A driver's error is a panic.

mod clblast;
mod clfft;
mod counts;
mod image;
mod objects;
mod third_party;
mod visit;
mod work;

pub use clblast::ClBlast;
pub use clfft::{ClFft, Plan};
pub use counts::{Counts, assert_restored};
pub use objects::{Handle, Own};
pub use visit::{Handed, visit};
pub use work::{Svm, spin_model};

use onebuf_sys::{
    ClStatus,
    opencl::{
        ClContext, ClDevice, ClKernel, ClMem, ClPlatform, ClProgram, ClQueue, OpenCl,
        consts::{
            CL_DEVICE_NAME, CL_DEVICE_TYPE_ALL, CL_PLATFORM_NAME,
            CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, CL_QUEUE_PROPERTIES,
        },
    },
};
use std::{
    ffi::c_void,
    ptr::{null, null_mut},
    sync::{Mutex, OnceLock},
};

/// The OpenCL library that every class A of this process uses, which is the one that onebuf loads.
///
/// # Panics
/// Without OpenCL; in that case [`ClassA::all`] is empty.
pub fn cl() -> &'static OpenCl {
    library().expect("OpenCL, without which there is no class A")
}

fn library() -> Option<&'static OpenCl> {
    static CL: OnceLock<Option<OpenCl>> = OnceLock::new();
    CL.get_or_init(|| OpenCl::load(None, None).ok()).as_ref()
}

/// Panics if a driver's call failed.
#[track_caller]
pub(crate) fn check<T>(call: &str, result: Result<T, ClStatus>) -> T {
    result.unwrap_or_else(|status| panic!("class A: {call}: {status}"))
}

/// A program with a context and an in-order queue on one platform.
#[derive(Debug)]
pub struct ClassA {
    /// The platform's name.
    pub platform: String,
    /// The devices of the context.
    pub devices: Vec<ClDevice>,
    /// Its own queue, on the first device.
    pub queue: Own<ClQueue>,
    /// Kernels of launches that may be pending: clover uses a kernel after its last reference is released.
    kernels: Mutex<Vec<Own<ClKernel>>>,
    /// The program, with the kernels `a_step`, as [`crate::step_model`], and `a_spin`; each takes a buffer and three words.
    pub program: Own<ClProgram>,
    /// The context. The last field, because all others depend on it.
    pub context: Own<ClContext>,
}

impl ClassA {
    /// Returns one for each platform that has a device, with its first device.
    pub fn all() -> Vec<Self> {
        let platforms = library().map_or(vec![], platforms);
        let owner = |platform| Some(Self::over(platform, devices(platform).get(..1)?));
        platforms.into_iter().filter_map(owner).collect()
    }

    /// Returns the one of that platform.
    pub fn of(platform: &str) -> Option<Self> {
        Self::all().into_iter().find(|a| a.platform == platform)
    }

    /// Returns the first platform with several devices, all in one context.
    pub fn of_many_devices() -> Option<Self> {
        let all = library().map_or(vec![], platforms).into_iter().map(|p| (p, devices(p)));
        let (platform, devices) = all.into_iter().find(|(_, devices)| devices.len() > 1)?;
        Some(Self::over(platform, &devices))
    }

    /// Returns one context with all devices of that platform, in the order of its list or reversed.
    pub fn of_all_devices(platform: &str, backwards: bool) -> Option<Self> {
        let found =
            library().map_or(vec![], platforms).into_iter().find(|p| name(*p) == platform)?;
        let mut devices = devices(found);
        if backwards {
            devices.reverse();
        }
        Some(Self::over(found, &devices))
    }

    /// Creates another with the same devices and a new context.
    pub fn sibling(&self) -> Self {
        let named = |p: &ClPlatform| name(*p) == self.platform;
        let platform = platforms(cl()).into_iter().find(named).expect("it was there before");
        Self::over(platform, &self.devices)
    }

    fn over(platform: ClPlatform, devices: &[ClDevice]) -> Self {
        let count = devices.len() as u32;
        // SAFETY: devices of one platform; no properties, no callback.
        let context =
            unsafe { cl().create_context(null(), count, devices.as_ptr(), None, null_mut()) };
        // SAFETY: just created, so the reference is ours.
        let context = unsafe { Own::new(check("clCreateContext", context)) };
        let queue = check("a queue", new_queue(&context, devices[0], 0));
        let program = work::program(&context);
        let (platform, devices, kernels) = (name(platform), devices.to_vec(), Mutex::default());
        Self { platform, devices, queue, kernels, program, context }
    }

    /// Creates a further queue on the first device with `cl_command_queue_properties`, which the driver may not support.
    pub fn queue_with(&self, properties: u64) -> Result<Own<ClQueue>, ClStatus> {
        new_queue(&self.context, self.devices[0], properties)
    }

    /// Creates a further in-order queue on one of the devices.
    pub fn queue_on(&self, device: usize) -> Own<ClQueue> {
        check("a queue", new_queue(&self.context, self.devices[device], 0))
    }

    /// Creates a further out-of-order queue on one of the devices.
    pub fn unordered_queue_on(&self, device: usize) -> Own<ClQueue> {
        let made =
            new_queue(&self.context, self.devices[device], CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
        check("an out-of-order queue", made)
    }

    /// Returns the driver's name of one of the devices.
    pub fn device_name(&self, device: usize) -> String {
        let mut name = [0u8; 256];
        let (size, to) = (name.len(), name.as_mut_ptr().cast());
        // SAFETY: a live device, and `name` has `size` bytes.
        let asked = unsafe {
            cl().get_device_info(self.devices[device], CL_DEVICE_NAME, size, to, null_mut())
        };
        check("clGetDeviceInfo", asked);
        text(&name)
    }

    /// Creates a buffer with raw flags.
    ///
    /// # Safety
    /// `host` must match the flags: null, or `bytes` bytes that live as long as a driver may use them.
    pub unsafe fn buffer(&self, flags: u64, bytes: usize, host: *mut c_void) -> Own<ClMem> {
        // SAFETY: the caller's guarantee about `host`.
        let made = unsafe { cl().create_buffer(self.context.get(), flags, bytes, host) };
        // SAFETY: just created, so the reference is ours.
        unsafe { Own::new(check("clCreateBuffer", made)) }
    }

    /// Creates a sub-buffer.
    pub fn sub_buffer(
        &self,
        of: &Own<ClMem>,
        flags: u64,
        origin: usize,
        size: usize,
    ) -> Own<ClMem> {
        let region = onebuf_sys::opencl::ClBufferRegion { origin, size };
        let kind = onebuf_sys::opencl::consts::CL_BUFFER_CREATE_TYPE_REGION;
        // SAFETY: a live buffer, and a region of the named type.
        let made = unsafe { cl().create_sub_buffer(of.get(), flags, kind, &region) };
        // SAFETY: just created, so the reference is ours.
        unsafe { Own::new(check("clCreateSubBuffer", made)) }
    }

    /// Queries one of the devices for a number of 64 bits or fewer.
    pub fn device_number(&self, device: usize, name: u32) -> Option<u64> {
        let mut number = 0u64;
        let (size, to) = (size_of::<u64>(), (&raw mut number).cast());
        // SAFETY: a live device, and `number` has `size` bytes.
        let asked =
            unsafe { cl().get_device_info(self.devices[device], name, size, to, null_mut()) };
        asked.is_ok().then_some(number)
    }
}

fn new_queue(
    context: &Own<ClContext>,
    device: ClDevice,
    properties: u64,
) -> Result<Own<ClQueue>, ClStatus> {
    let cl = cl();
    let list = [u64::from(CL_QUEUE_PROPERTIES), properties, 0];
    // SAFETY: a device of that context; the list ends with zero.
    let made = unsafe {
        match cl.has_create_command_queue() {
            true => cl.create_command_queue(context.get(), device, properties),
            false => cl.create_command_queue_with_properties(context.get(), device, list.as_ptr()),
        }
    };
    // SAFETY: just created, so the reference is ours.
    made.map(|queue| unsafe { Own::new(queue) })
}

/// Returns the devices of all platforms, with the platforms' names.
pub(crate) fn all_devices() -> Vec<(String, ClDevice)> {
    let platforms = library().map_or(vec![], platforms).into_iter();
    platforms
        .flat_map(|one| devices(one).into_iter().map(move |device| (name(one), device)))
        .collect()
}

/// Returns the driver's answer about a device; empty if it has none.
pub(crate) fn device_bytes(device: ClDevice, what: u32) -> Vec<u8> {
    let mut size = 0;
    // SAFETY: a live device; only the size is wanted.
    let sized = unsafe { cl().get_device_info(device, what, 0, null_mut(), &mut size) };
    let mut bytes = vec![0; if sized.is_ok() { size } else { 0 }];
    let (size, to) = (bytes.len(), bytes.as_mut_ptr().cast());
    // SAFETY: a live device, and `bytes` has `size` bytes.
    let asked = unsafe { cl().get_device_info(device, what, size, to, null_mut()) };
    if asked.is_ok() { bytes } else { Vec::new() }
}

fn platforms(cl: &OpenCl) -> Vec<ClPlatform> {
    let mut found = [ClPlatform::NULL; 32];
    let mut count = 0;
    // SAFETY: `found` has room for the given number of entries.
    match unsafe { cl.get_platform_ids(found.len() as u32, found.as_mut_ptr(), &mut count) } {
        Ok(()) => found.into_iter().take(count as usize).collect(),
        Err(_) => vec![], // An ICD loader without drivers.
    }
}

fn devices(platform: ClPlatform) -> Vec<ClDevice> {
    let mut found = [ClDevice::NULL; 32];
    let (mut count, room) = (0, found.len() as u32);
    // SAFETY: `found` has room for the given number of entries.
    let asked = unsafe {
        cl().get_device_ids(platform, CL_DEVICE_TYPE_ALL, room, found.as_mut_ptr(), &mut count)
    };
    match asked {
        Ok(()) => found.into_iter().take(count as usize).collect(),
        Err(_) => vec![], // Having no device is an error in OpenCL.
    }
}

fn name(platform: ClPlatform) -> String {
    let mut name = [0u8; 256];
    let (size, to) = (name.len(), name.as_mut_ptr().cast());
    // SAFETY: a platform of this library, and `name` has `size` bytes.
    let asked = unsafe { cl().get_platform_info(platform, CL_PLATFORM_NAME, size, to, null_mut()) };
    check("clGetPlatformInfo", asked);
    text(&name)
}

/// Returns a driver's text up to its terminating zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
