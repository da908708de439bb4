//! "Class A": code that knows nothing of onebuf, has a context, queues and buffers of its own, and hands them
//! to a library. Raw OpenCL, every call checked; [`ClFft`] and [`ClBlast`] do real work on its memory.
//!
//! # Safety
//!
//! Every handle here is alive as long as its [`Own`], and all are of the one library that [`cl`] loads.
//! What methods are given must be of the same [`ClassA`]; a driver's refusal is a panic.

mod clblast;
mod clfft;
mod counts;
mod guest;
mod image;
mod objects;
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

/// The OpenCL library that every class A of this process uses: the one onebuf loads.
///
/// # Panics
/// Without OpenCL; [`ClassA::all`] is empty then.
pub fn cl() -> &'static OpenCl {
    library().expect("OpenCL, without which there is no class A")
}

fn library() -> Option<&'static OpenCl> {
    static CL: OnceLock<Option<OpenCl>> = OnceLock::new();
    CL.get_or_init(|| OpenCl::load(None, None).ok()).as_ref()
}

/// A driver's refusal ends the test.
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
    /// Of launches that may still wait: clover uses a kernel after its last reference was given back.
    kernels: Mutex<Vec<Own<ClKernel>>>,
    /// Its kernels: `a_step`, as [`crate::step_model`], and `a_spin`, of a buffer and three words each.
    pub program: Own<ClProgram>,
    /// Its context. Last, because all else is made of it.
    pub context: Own<ClContext>,
}

impl ClassA {
    /// One for each platform that has a device, over its first device.
    pub fn all() -> Vec<Self> {
        let platforms = library().map_or(vec![], platforms);
        let owner = |platform| Some(Self::over(platform, devices(platform).get(..1)?));
        platforms.into_iter().filter_map(owner).collect()
    }

    /// The one of that platform.
    pub fn of(platform: &str) -> Option<Self> {
        Self::all().into_iter().find(|a| a.platform == platform)
    }

    /// The first platform with several devices, all of them in one context.
    pub fn of_many_devices() -> Option<Self> {
        let all = library().map_or(vec![], platforms).into_iter().map(|p| (p, devices(p)));
        let (platform, devices) = all.into_iter().find(|(_, devices)| devices.len() > 1)?;
        Some(Self::over(platform, &devices))
    }

    /// One context of all devices of that platform, in the order of its list, or the other way round.
    pub fn of_all_devices(platform: &str, backwards: bool) -> Option<Self> {
        let found =
            library().map_or(vec![], platforms).into_iter().find(|p| name(*p) == platform)?;
        let mut devices = devices(found);
        if backwards {
            devices.reverse();
        }
        Some(Self::over(found, &devices))
    }

    /// Another of the same kind, with a context of its own.
    pub fn sibling(&self) -> Self {
        let named = |p: &ClPlatform| name(*p) == self.platform;
        let platform = platforms(cl()).into_iter().find(named).expect("it was there before");
        Self::over(platform, &self.devices)
    }

    fn over(platform: ClPlatform, devices: &[ClDevice]) -> Self {
        let count = devices.len() as u32;
        // SAFETY: devices of one platform; no property, no callback.
        let context =
            unsafe { cl().create_context(null(), count, devices.as_ptr(), None, null_mut()) };
        // SAFETY: just made, so ours.
        let context = unsafe { Own::new(check("clCreateContext", context)) };
        let queue = check("a queue", new_queue(&context, devices[0], 0));
        let program = work::program(&context);
        let (platform, devices, kernels) = (name(platform), devices.to_vec(), Mutex::default());
        Self { platform, devices, queue, kernels, program, context }
    }

    /// A further queue on the first device, with `cl_command_queue_properties`; drivers may not have them.
    pub fn queue_with(&self, properties: u64) -> Result<Own<ClQueue>, ClStatus> {
        new_queue(&self.context, self.devices[0], properties)
    }

    /// A further in-order queue on one of the devices.
    pub fn queue_on(&self, device: usize) -> Own<ClQueue> {
        check("a queue", new_queue(&self.context, self.devices[device], 0))
    }

    /// A further out-of-order queue on one of the devices.
    pub fn unordered_queue_on(&self, device: usize) -> Own<ClQueue> {
        let made =
            new_queue(&self.context, self.devices[device], CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
        check("an out-of-order queue", made)
    }

    /// What the driver calls one of the devices.
    pub fn device_name(&self, device: usize) -> String {
        let mut name = [0u8; 256];
        let (size, to) = (name.len(), name.as_mut_ptr().cast());
        // SAFETY: a live device, and room for as many bytes as is said.
        let asked = unsafe {
            cl().get_device_info(self.devices[device], CL_DEVICE_NAME, size, to, null_mut())
        };
        check("clGetDeviceInfo", asked);
        text(&name)
    }

    /// A buffer, with flags by their numbers.
    ///
    /// # Safety
    /// `host` is what the flags say: null, or so many bytes, alive as long as a driver may use them.
    pub unsafe fn buffer(&self, flags: u64, bytes: usize, host: *mut c_void) -> Own<ClMem> {
        // SAFETY: the caller's promise about `host`.
        let made = unsafe { cl().create_buffer(self.context.get(), flags, bytes, host) };
        // SAFETY: just made, so ours.
        unsafe { Own::new(check("clCreateBuffer", made)) }
    }

    /// A part of a buffer.
    pub fn sub_buffer(
        &self,
        of: &Own<ClMem>,
        flags: u64,
        origin: usize,
        size: usize,
    ) -> Own<ClMem> {
        let region = onebuf_sys::opencl::ClBufferRegion { origin, size };
        let kind = onebuf_sys::opencl::consts::CL_BUFFER_CREATE_TYPE_REGION;
        // SAFETY: a live buffer, and a region of the kind that is named.
        let made = unsafe { cl().create_sub_buffer(of.get(), flags, kind, &region) };
        // SAFETY: just made, so ours.
        unsafe { Own::new(check("clCreateSubBuffer", made)) }
    }

    /// What the driver says of one of the devices, as a number of 64 bits or fewer.
    pub fn device_number(&self, device: usize, name: u32) -> Option<u64> {
        let mut number = 0u64;
        let (size, to) = (size_of::<u64>(), (&raw mut number).cast());
        // SAFETY: a live device; `number` has the room that `size` says.
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
    // SAFETY: a device of that context; a list that ends with zero.
    let made = unsafe {
        match cl.has_create_command_queue() {
            true => cl.create_command_queue(context.get(), device, properties),
            false => cl.create_command_queue_with_properties(context.get(), device, list.as_ptr()),
        }
    };
    // SAFETY: just made, so ours.
    made.map(|queue| unsafe { Own::new(queue) })
}

fn platforms(cl: &OpenCl) -> Vec<ClPlatform> {
    let mut found = [ClPlatform::NULL; 32];
    let mut count = 0;
    // SAFETY: room for as many as is said.
    match unsafe { cl.get_platform_ids(found.len() as u32, found.as_mut_ptr(), &mut count) } {
        Ok(()) => found.into_iter().take(count as usize).collect(),
        Err(_) => vec![], // An ICD loader without drivers.
    }
}

fn devices(platform: ClPlatform) -> Vec<ClDevice> {
    let mut found = [ClDevice::NULL; 32];
    let (mut count, room) = (0, found.len() as u32);
    // SAFETY: room for as many as is said.
    let asked = unsafe {
        cl().get_device_ids(platform, CL_DEVICE_TYPE_ALL, room, found.as_mut_ptr(), &mut count)
    };
    match asked {
        Ok(()) => found.into_iter().take(count as usize).collect(),
        Err(_) => vec![], // "None" is an error in OpenCL.
    }
}

fn name(platform: ClPlatform) -> String {
    let mut name = [0u8; 256];
    let (size, to) = (name.len(), name.as_mut_ptr().cast());
    // SAFETY: a platform of this library, and room for as many bytes as is said.
    let asked = unsafe { cl().get_platform_info(platform, CL_PLATFORM_NAME, size, to, null_mut()) };
    check("clGetPlatformInfo", asked);
    text(&name)
}

/// What a driver wrote, up to its zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
