//! clFFT, loaded at run time: the established FFT library of OpenCL.
//!
//! # Safety
//! The prototypes are those of clFFT 2's header, where enumerations are `int`s. Its state is global: it is set up and
//! torn down by one value at a time, on one thread.

use super::RawQueue;
use onebuf::{Error, Queue, Result};
use onebuf_sys::{
    Loaded, loader,
    opencl::{ClContext, ClEvent, ClMem, ClQueue},
};
use std::{
    ffi::{CString, c_void},
    ptr::{null, null_mut},
};

const ONE_DIMENSION: i32 = 1;
const SINGLE: i32 = 1;
const COMPLEX_INTERLEAVED: i32 = 1;
const IN_PLACE: i32 = 1;
const FORWARD: i32 = -1;

/// `clfftSetupData`.
#[derive(Default)]
#[repr(C)]
struct SetupData {
    major: u32,
    minor: u32,
    patch: u32,
    debug_flags: u64,
}

/// Each line is a C prototype of a function that returns a status.
macro_rules! functions {
    ($($name:ident = $symbol:literal($($ty:ty),*);)*) => {
        struct Table { $($name: unsafe extern "C" fn($($ty),*) -> i32,)* }

        impl Table {
            fn find(library: &Loaded) -> Result<Self> {
                Ok(Self { $($name: {
                    let at = address(library, $symbol)?;
                    // SAFETY: clFFT's header declares this prototype for the function of that name.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> i32>(at) }
                },)* })
            }
        }
    };
}

functions! {
    get_version = "clfftGetVersion"(*mut u32, *mut u32, *mut u32);
    setup = "clfftSetup"(*const SetupData);
    teardown = "clfftTeardown"();
    create_plan = "clfftCreateDefaultPlan"(*mut usize, ClContext, i32, *const usize);
    set_precision = "clfftSetPlanPrecision"(usize, i32);
    set_layout = "clfftSetLayout"(usize, i32, i32);
    set_location = "clfftSetResultLocation"(usize, i32);
    set_batch = "clfftSetPlanBatchSize"(usize, usize);
    bake = "clfftBakePlan"(usize, u32, *const ClQueue, *const c_void, *mut c_void);
    destroy = "clfftDestroyPlan"(*mut usize);
    enqueue = "clfftEnqueueTransform"(usize, i32, u32, *const ClQueue, u32, *const ClEvent, *mut ClEvent, *const ClMem, *const ClMem, ClMem);
}

fn address(library: &Loaded, name: &str) -> Result<*mut c_void> {
    let symbol = CString::new(name).ok().and_then(|name| library.symbol(&name));
    symbol
        .map(|at| at.as_ptr())
        .ok_or_else(|| unavailable(vec![library.name.clone()], format!("it lacks {name}")))
}

fn unavailable(tried: Vec<String>, reason: String) -> Error {
    Error::Unavailable { what: "clFFT".into(), tried, reason }
}

/// clFFT between its set-up and its tear-down.
struct Library(Table);

impl Library {
    fn open() -> Result<Self> {
        let hint = "on Debian or Ubuntu: apt install libclfft2";
        let found = loader::open("clFFT", None, "ONEBUF_CLFFT_LIB", &["libclFFT.so.2"], hint);
        let missing = |missing: onebuf_sys::Missing| {
            unavailable(missing.tried, format!("{}; {}", missing.reason, missing.hint))
        };
        let table = Table::find(&found.map_err(missing)?)?;
        let mut data = SetupData::default();
        // SAFETY: three numbers to be written, and the structure that contains them.
        unsafe {
            let version = (table.get_version)(&mut data.major, &mut data.minor, &mut data.patch);
            check("clfftGetVersion", version)?;
            check("clfftSetup", (table.setup)(&data))?;
        }
        Ok(Self(table))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the library was set up, and its plans are destroyed. A benchmark ignores errors here.
        let _ = unsafe { (self.0.teardown)() };
    }
}

fn check(call: &'static str, status: i32) -> Result<()> {
    match status {
        0 => Ok(()),
        code => Err(Error::Driver { api: "clFFT", call, code, name: "see clFFT.h".into() }),
    }
}

/// Forward transforms in place on foreign memory.
pub struct RawClFft {
    plan: usize,
    mem: ClMem,
    on: RawQueue,
    library: Library,
}

impl RawClFft {
    /// Plans this many transforms of this length, stored one after another.
    ///
    /// # Safety
    /// As for [`RawQueue::new`]; `mem` is a live `cl_mem` of the queue's context with room for all samples, and nothing
    /// else uses it while a transform runs.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is not installed; clFFT's own errors.
    pub unsafe fn new(
        queue: &Queue,
        mem: *mut c_void,
        length: usize,
        batch: usize,
    ) -> Result<Self> {
        let library = Library::open()?;
        // SAFETY: guaranteed by the caller.
        let on = unsafe { RawQueue::new(queue)? };
        let mut made = Self { plan: 0, mem: ClMem(mem), on, library };
        made.bake(length, batch)?;
        Ok(made)
    }

    fn bake(&mut self, length: usize, batch: usize) -> Result<()> {
        let Self { plan, on: RawQueue { context, queue, .. }, library: Library(table), .. } = self;
        // SAFETY: the context is live, and the queue belongs to it; one length for one dimension.
        unsafe {
            let made = (table.create_plan)(plan, *context, ONE_DIMENSION, &length);
            check("clfftCreateDefaultPlan", made)?;
            check("clfftSetPlanPrecision", (table.set_precision)(*plan, SINGLE))?;
            let [from, to] = [COMPLEX_INTERLEAVED; 2];
            check("clfftSetLayout", (table.set_layout)(*plan, from, to))?;
            check("clfftSetResultLocation", (table.set_location)(*plan, IN_PLACE))?;
            check("clfftSetPlanBatchSize", (table.set_batch)(*plan, batch))?;
            check("clfftBakePlan", (table.bake)(*plan, 1, queue, null(), null_mut()))
        }
    }

    /// Enqueues all transforms.
    ///
    /// # Errors
    /// clFFT's errors.
    pub fn transform(&self) -> Result<()> {
        self.enqueue(null_mut())
    }

    fn enqueue(&self, event: *mut ClEvent) -> Result<()> {
        let Self { plan, mem, on: RawQueue { queue, .. }, library: Library(table) } = self;
        // SAFETY: the queue and the memory belong to the plan's context, and the memory holds all points.
        let status = unsafe {
            (table.enqueue)(*plan, FORWARD, 1, queue, 0, null(), event, mem, null(), ClMem::NULL)
        };
        check("clfftEnqueueTransform", status)
    }

    /// Enqueues all transforms and waits.
    ///
    /// # Errors
    /// clFFT's errors and the driver's.
    pub fn turn(&self) -> Result<()> {
        let mut event = ClEvent::NULL;
        self.enqueue(&raw mut event)?;
        self.on.wait_for(event)
    }
}

impl Drop for RawClFft {
    fn drop(&mut self) {
        // SAFETY: the plan was created here, if at all, and is no longer used; the library is torn down after it.
        let _ = unsafe { (self.library.0.destroy)(&mut self.plan) };
    }
}
