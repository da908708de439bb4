//! Helpers for tests of several crates: memory and time of a parser, hostile inputs, wrong arguments for devices, and running one
//! test at a time.
//!
//! # Safety
//! The environment is changed before drivers and their threads are there.

#![allow(unsafe_code)]

pub mod fuzz;
pub mod meter;
pub mod misuse;

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Drivers of one process share LLVM and llvmpipe, which are not all sound when two of them start in
/// two threads; so one test at a time. What the drivers are told is set before the first one.
pub fn drivers_alone(environment: &[(&str, &str)]) -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static SET: Once = Once::new();
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    SET.call_once(|| {
        let missing = environment.iter().filter(|(name, _)| std::env::var_os(name).is_none());
        for (name, value) in missing {
            // SAFETY: before any driver was loaded here; tests set nothing else.
            unsafe { std::env::set_var(name, value) };
        }
    });
    guard
}
