//! Helpers for tests of several crates: memory and time of a parser, hostile inputs, invalid arguments for devices, and running
//! one test at a time.
//!
//! # Safety
//! The environment is changed before drivers are loaded and start threads.

#![allow(unsafe_code)]

pub mod fuzz;
pub mod meter;
pub mod misuse;

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Serialises tests that use drivers: the drivers of one process share LLVM and llvmpipe, and not all of them are thread-safe
/// at start. Sets the environment variables for the drivers before the first test.
pub fn drivers_alone(environment: &[(&str, &str)]) -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static SET: Once = Once::new();
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    SET.call_once(|| {
        let missing = environment.iter().filter(|(name, _)| std::env::var_os(name).is_none());
        for (name, value) in missing {
            // SAFETY: no driver has been loaded here yet, and tests set no other variables.
            unsafe { std::env::set_var(name, value) };
        }
    });
    guard
}
