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

/// The object that keeps pages mapped.
pub(super) type Owner = Arc<dyn Any + Send + Sync>;

/// Holds the owner of imported pages until the driver has destroyed the memory object and onebuf has released it.
pub(super) struct Custody(Mutex<CustodyState>);

struct CustodyState {
    owner: Option<Owner>,
    /// The driver has destroyed the memory object.
    destroyed: bool,
    /// onebuf has released the memory object.
    released: bool,
}

impl Custody {
    /// Keeps `owner` until the driver destroys `mem`. On failure nothing is registered.
    pub fn register(context: &Context, mem: ClMem, owner: Owner) -> Result<Arc<Custody>> {
        let state = CustodyState { owner: Some(owner), destroyed: false, released: false };
        let custody = Arc::new(Custody(Mutex::new(state)));
        let user = Box::into_raw(Box::new(custody.clone()));
        let driver = &context.driver;
        // SAFETY: a live memory object; `destroyed` takes the box back, once.
        let set = unsafe {
            driver.cl.set_mem_object_destructor_callback(mem, Some(destroyed), user.cast())
        };
        if set.is_err() {
            // SAFETY: registration failed, so the callback never takes the box.
            drop(unsafe { Box::from_raw(user) });
        }
        driver.check("clSetMemObjectDestructorCallback", set)?;
        Ok(custody)
    }

    /// Records onebuf's release. Drops the owner here if the driver has already destroyed the object.
    pub fn released(&self) {
        drop(self.step(|state| state.released = true));
    }

    /// Changes the state, and returns the owner once the object is both released and destroyed.
    fn step(&self, change: impl FnOnce(&mut CustodyState)) -> Option<Owner> {
        let mut state = lock(&self.0);
        change(&mut state);
        if state.released && state.destroyed { state.owner.take() } else { None }
    }
}

/// # Safety
/// `user` is a `Box<Arc<Custody>>` that is not taken elsewhere.
unsafe extern "system" fn destroyed(_mem: ClMem, user: *mut c_void) {
    // SAFETY: the caller's promise; `Custody::register` created the box.
    let custody = unsafe { Box::from_raw(user.cast::<Arc<Custody>>()) };
    if let Some(owner) = custody.step(|state| state.destroyed = true) {
        // `released` has already returned, so another thread must drop the owner.
        drop_elsewhere(owner);
    }
}

/// Drops the owner on a new thread. If no thread can be spawned, leaks it: dropping it under a driver's locks could
/// deadlock.
fn drop_elsewhere(owner: Owner) {
    let owner = ManuallyDrop::new(owner);
    let drop_it = thread::Builder::new().spawn(move || drop(ManuallyDrop::into_inner(owner)));
    if let Err(why) = drop_it {
        tracing::error!("the owner of imported memory is leaked: {why}");
    }
}

/// Drops the owner of another API's memory after the work of the queues that used it: this driver does not track that
/// memory, so it cannot delay the free.
pub(super) fn part_from(owner: Owner, users: &[Arc<RawQueue>]) {
    let parting = Arc::new(Parting(Some(owner)));
    users.iter().for_each(|queue| queue.hold(parting.clone()));
    if let Ok(mut last) = Arc::try_unwrap(parting) {
        // No queue holds it: dropped here, on a thread that is not a driver's.
        drop(last.0.take());
    }
}

/// An owner that is dropped when the last queue's work has completed, on a driver's thread.
struct Parting(Option<Owner>);

impl Drop for Parting {
    fn drop(&mut self) {
        if let Some(owner) = self.0.take() {
            drop_elsewhere(owner);
        }
    }
}
