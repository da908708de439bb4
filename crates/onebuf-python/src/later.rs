//! Objects of Python that are let go of under a lock. Their destructors may run code that comes back and asks for the same lock, so they are
//! dropped when the thread has left it.

use pyo3::prelude::*;
use std::{
    cell::{Cell, RefCell},
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, PoisonError},
};

thread_local! {
    /// How many such locks this thread has.
    static LOCKS: Cell<usize> = const { Cell::new(0) };
    /// What it has let go of meanwhile.
    static LEFT: RefCell<Vec<Py<PyAny>>> = const { RefCell::new(Vec::new()) };
}

/// An object that is kept. Dropping this under a [`Locked`] drops the object after it.
pub(crate) struct Kept(Option<Py<PyAny>>);

impl Kept {
    pub fn new(object: Py<PyAny>) -> Self {
        Self(Some(object))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if LOCKS.get() > 0
            && let Some(object) = self.0.take()
        {
            LEFT.with_borrow_mut(|left| left.push(object));
        }
    }
}

/// A lock under which objects are let go of.
pub(crate) struct Locked<'m, T>(Option<MutexGuard<'m, T>>);

impl<'m, T> Locked<'m, T> {
    pub fn new(mutex: &'m Mutex<T>) -> Self {
        let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        LOCKS.set(LOCKS.get() + 1);
        Self(Some(guard))
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        self.0 = None;
        LOCKS.set(LOCKS.get() - 1);
        if LOCKS.get() == 0 {
            drop(LEFT.take());
        }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(guard) => guard,
            None => unreachable!("locked until it is dropped"),
        }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            Some(guard) => guard,
            None => unreachable!("locked until it is dropped"),
        }
    }
}
