//! clFFT, loaded at run time: a library that uses class A's context, queue and memory.
//!
//! # Safety
//!
//! The prototypes are those of clFFT 2's header, in which enumerations are `int`s.

use super::{ClassA, Own, third_party, work::wait_list};
use onebuf_sys::opencl::{ClContext, ClEvent, ClMem, ClQueue};
use std::{
    ffi::c_void,
    ptr::{null, null_mut},
};

const ONE_DIMENSION: i32 = 1;
const SINGLE: i32 = 1;
const COMPLEX_INTERLEAVED: i32 = 1;
const IN_PLACE: i32 = 1;
const FORWARD: i32 = -1;
const BACKWARD: i32 = 1;

/// `clfftSetupData`.
#[derive(Debug, Default)]
#[repr(C)]
struct SetupData {
    major: u32,
    minor: u32,
    patch: u32,
    debug_flags: u64,
}

third_party::functions! { Table:
    get_version = clfftGetVersion(*mut u32, *mut u32, *mut u32);
    setup = clfftSetup(*const SetupData);
    teardown = clfftTeardown();
    create_default_plan = clfftCreateDefaultPlan(*mut usize, ClContext, i32, *const usize);
    set_plan_precision = clfftSetPlanPrecision(usize, i32);
    set_layout = clfftSetLayout(usize, i32, i32);
    set_result_location = clfftSetResultLocation(usize, i32);
    bake_plan = clfftBakePlan(usize, u32, *const ClQueue, *const c_void, *mut c_void);
    destroy_plan = clfftDestroyPlan(*mut usize);
    enqueue_transform = clfftEnqueueTransform(
        usize, i32, u32, *const ClQueue, u32, *const ClEvent, *mut ClEvent, *const ClMem,
        *const ClMem, ClMem,
    );
}

/// clFFT between set-up and tear-down. Its state is global, so a process may have one at a time.
#[derive(Debug)]
pub struct ClFft(Table);

/// Asserts that a call succeeded.
#[track_caller]
fn check(call: &str, status: i32) {
    assert_eq!(status, 0, "clFFT: {call}");
}

impl ClFft {
    /// Loads and sets up the library; `None`, after a printed skip, if it is missing.
    ///
    /// # Panics
    /// If it is missing in strict mode, or does not start.
    pub fn open() -> Option<Self> {
        let hint = "on Debian or Ubuntu: apt install libclfft2";
        let library = third_party::open("clFFT", "ONEBUF_CLFFT_LIB", "libclFFT.so.2", hint)?;
        let table = Table::find(&library).unwrap_or_else(|name| panic!("clFFT lacks {name}"));
        let mut data = SetupData::default();
        // SAFETY: the pointers are to three writable numbers, and to the structure that contains them.
        unsafe {
            let version = (table.get_version)(&mut data.major, &mut data.minor, &mut data.patch);
            check("clfftGetVersion", version);
            check("clfftSetup", (table.setup)(&data));
        }
        Some(Self(table))
    }

    /// Creates a plan for in-place, single-precision complex transforms of `n` points, ready for that queue.
    pub fn plan(&self, owner: &ClassA, queue: &Own<ClQueue>, n: usize) -> Plan<'_> {
        let Self(table) = self;
        let mut plan = 0;
        let queue = queue.get();
        // SAFETY: a live context and a queue of it; one length for one dimension.
        unsafe {
            let made =
                (table.create_default_plan)(&mut plan, owner.context.get(), ONE_DIMENSION, &n);
            check("clfftCreateDefaultPlan", made);
            check("clfftSetPlanPrecision", (table.set_plan_precision)(plan, SINGLE));
            let [from, to] = [COMPLEX_INTERLEAVED; 2];
            check("clfftSetLayout", (table.set_layout)(plan, from, to));
            check("clfftSetResultLocation", (table.set_result_location)(plan, IN_PLACE));
            check("clfftBakePlan", (table.bake_plan)(plan, 1, &queue, null(), null_mut()));
        }
        Plan { table, plan }
    }
}

impl Drop for ClFft {
    fn drop(&mut self) {
        // SAFETY: the library was set up, and every plan borrows `self`, so none is left.
        let status = unsafe { (self.0.teardown)() };
        assert!(std::thread::panicking() || status == 0, "clFFT: clfftTeardown: {status}");
    }
}

/// A clFFT plan.
#[derive(Debug)]
pub struct Plan<'t> {
    table: &'t Table,
    plan: usize,
}

impl Plan<'_> {
    /// Enqueues the forward transform, not normalised.
    pub fn forward(&self, queue: ClQueue, mem: ClMem, waits: &[ClEvent]) -> Own<ClEvent> {
        self.transform(FORWARD, queue, mem, waits)
    }

    /// Enqueues the inverse transform, which divides by the number of points.
    pub fn backward(&self, queue: ClQueue, mem: ClMem, waits: &[ClEvent]) -> Own<ClEvent> {
        self.transform(BACKWARD, queue, mem, waits)
    }

    fn transform(&self, way: i32, queue: ClQueue, mem: ClMem, waits: &[ClEvent]) -> Own<ClEvent> {
        let (count, list) = wait_list(waits);
        let mut event = ClEvent::NULL;
        // SAFETY: the queue and the memory are of the plan's context, and the memory holds all points.
        let status = unsafe {
            let (plan, enqueue) = (self.plan, self.table.enqueue_transform);
            enqueue(plan, way, 1, &queue, count, list, &mut event, &mem, null(), ClMem::NULL)
        };
        check("clfftEnqueueTransform", status);
        // SAFETY: the call created the event.
        unsafe { Own::new(event) }
    }
}

impl Drop for Plan<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `ClFft::plan`, destroyed once.
        let status = unsafe { (self.table.destroy_plan)(&mut self.plan) };
        assert!(std::thread::panicking() || status == 0, "clFFT: clfftDestroyPlan: {status}");
    }
}
