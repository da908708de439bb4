//! Keeps imported host pages mapped until the driver has released them.
//!
//! Releasing a `cl_mem` does not destroy it while commands use it (nor, on rusticl, while a kernel has it as an
//! argument), so the owner of the pages is kept until the driver's destructor callback. It is not dropped *inside* that
//! callback: the owner may be another OpenCL memory, whose release would re-enter a driver that holds its locks.

use super::{device::Context, queue::RawQueue};
use onebuf_hal::{
    Result,
    locks::{Arc, Mutex, lock, thread},
};
use onebuf_sys::opencl::ClMem;
use std::{any::Any, ffi::c_void, mem::ManuallyDrop};

/// Whatever keeps pages mapped.
pub(super) type Owner = Arc<dyn Any + Send + Sync>;

/// An owner on its way back from the driver.
pub(super) struct Custody(Mutex<State>);

struct State {
    owner: Option<Owner>,
    /// The driver has destroyed the memory object.
    destroyed: bool,
    /// We have released it.
    released: bool,
}

impl Custody {
    /// Keeps `owner` until the driver destroys `mem`. On failure nothing is registered.
    pub fn register(context: &Context, mem: ClMem, owner: Owner) -> Result<Arc<Custody>> {
        let state = State { owner: Some(owner), destroyed: false, released: false };
        let custody = Arc::new(Custody(Mutex::new(state)));
        let user = Box::into_raw(Box::new(custody.clone()));
        let driver = &context.driver;
        // SAFETY: a live memory object; `destroyed` takes the box back, once.
        let set = unsafe {
            driver.cl.set_mem_object_destructor_callback(mem, Some(destroyed), user.cast())
        };
        if set.is_err() {
            // SAFETY: not registered, so nobody else takes the box.
            drop(unsafe { Box::from_raw(user) });
        }
        driver.check("clSetMemObjectDestructorCallback", set)?;
        Ok(custody)
    }

    /// To be called after the release: drops the owner here if the driver is done with it already.
    pub fn released(&self) {
        drop(self.step(|state| state.released = true));
    }

    /// The owner, once both sides are done.
    fn step(&self, change: impl FnOnce(&mut State)) -> Option<Owner> {
        let mut state = lock(&self.0);
        change(&mut state);
        if state.released && state.destroyed { state.owner.take() } else { None }
    }
}

/// # Safety
/// `user` is a `Box<Arc<Custody>>` that nobody else takes.
unsafe extern "system" fn destroyed(_mem: ClMem, user: *mut c_void) {
    // SAFETY: the caller's promise; `Custody::register` made it.
    let custody = unsafe { Box::from_raw(user.cast::<Arc<Custody>>()) };
    if let Some(owner) = custody.step(|state| state.destroyed = true) {
        // The driver was late: `released` is over, so another thread must drop the owner.
        drop_elsewhere(owner);
    }
}

/// Drops it on a thread of its own. Where none can be had it is leaked, which is better than dropping it under a
/// driver's locks.
fn drop_elsewhere(owner: Owner) {
    let owner = ManuallyDrop::new(owner);
    let drop_it = thread::Builder::new().spawn(move || drop(ManuallyDrop::into_inner(owner)));
    if let Err(why) = drop_it {
        tracing::error!("the owner of imported memory is leaked: {why}");
    }
}

/// Lets go of memory that another API allocated, behind the work of the queues that used it: no driver waits with
/// freeing what it does not know.
pub(super) fn part_from(owner: Owner, users: &[Arc<RawQueue>]) {
    let parting = Arc::new(Parting(Some(owner)));
    users.iter().for_each(|queue| queue.hold(parting.clone()));
    if let Ok(mut last) = Arc::try_unwrap(parting) {
        // Nobody is behind: dropped here, on a thread that is not a driver's.
        drop(last.0.take());
    }
}

/// An owner that goes with the last queue's work, on a driver's thread.
struct Parting(Option<Owner>);

impl Drop for Parting {
    fn drop(&mut self) {
        if let Some(owner) = self.0.take() {
            drop_elsewhere(owner);
        }
    }
}
