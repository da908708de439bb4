//! Helpers for backends whose kernels are functions of this process: finding them, calling them, and moving bytes
//! within bounds.
//!
//! # Safety
//!
//! The functions here that take raw pointers state their contracts. This file itself guarantees that a native kernel
//! never gets two overlapping slices of which one is writable, whatever memory the caller passed.

#![allow(unsafe_code)]

use crate::{
    Domain, Error, Grid, Kernel, NativeArg, NativeArgs, NativeKernel, Program, Result, Source,
    checks, locks::Arc,
};
use std::{
    any::Any,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
};

/// The native kernels of a source, as a program of one device.
#[derive(Debug)]
pub struct NativeProgram {
    domain: Domain,
    kernels: Vec<NativeKernel>,
}

impl NativeProgram {
    /// Creates a program from the native kernels of a source; `api` is only for the error message.
    pub fn new(domain: Domain, api: &str, source: &Source) -> Result<Self> {
        if source.native.is_empty() {
            return Err(Error::unsupported(format!("program on {api}"), "a native kernel"));
        }
        Ok(NativeProgram { domain, kernels: source.native.clone() })
    }

    /// The kernel of that name.
    pub fn find(&self, name: &str, parameters: usize) -> Result<NativeCode> {
        match self.kernels.iter().find(|kernel| kernel.name == name) {
            Some(kernel) => {
                Ok(NativeCode { domain: self.domain, kernel: kernel.clone(), parameters })
            }
            None => Err(Error::invalid(format!(
                "no native kernel `{name}`; the program has {}",
                self.names().join(", ")
            ))),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.kernels.iter().map(|kernel| kernel.name.as_ref()).collect()
    }
}

impl Program for NativeProgram {
    fn kernel(&self, name: &str, parameters: usize) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(self.find(name, parameters)?))
    }
}

/// A native kernel and how many arguments it takes.
#[derive(Clone, Debug)]
pub struct NativeCode {
    domain: Domain,
    kernel: NativeKernel,
    parameters: usize,
}

impl Kernel for NativeCode {
    fn domain(&self) -> Domain {
        self.domain
    }

    fn name(&self) -> &str {
        &self.kernel.name
    }

    fn parameters(&self) -> usize {
        self.parameters
    }
}

impl NativeCode {
    /// Checks a launch before it is enqueued.
    pub fn check(&self, grid: &Grid) -> Result<()> {
        let used = grid.global.get(..grid.dims).unwrap_or_default();
        if used.is_empty() || used.contains(&0) {
            return Err(Error::invalid(format!(
                "a grid has 1 to 3 dimensions and no empty one, not {} of {:?}",
                grid.dims, grid.global
            )));
        }
        Ok(())
    }

    /// Calls the function once for the whole grid. A panic becomes an error.
    ///
    /// # Safety
    /// The bytes of each buffer argument are alive. During this call no other code writes them, and no other code reads those
    /// of an argument with `writes`.
    pub unsafe fn run(&self, grid: &Grid, args: &[NativeArg<'_>]) -> Result<()> {
        check_overlap(args)?;
        let mut args = NativeArgs { grid: unused_are_one(*grid), args };
        catch_unwind(AssertUnwindSafe(|| (self.kernel.run)(&mut args))).unwrap_or_else(|panic| {
            let text = panic_text(&*panic);
            Err(Error::invalid(format!("native kernel `{}` panicked: {text}", self.kernel.name)))
        })
    }
}

/// Sets unused dimensions to 1, as `NativeArgs` guarantees.
fn unused_are_one(mut grid: Grid) -> Grid {
    grid.global.iter_mut().skip(grid.dims).for_each(|size| *size = 1);
    grid
}

/// Rejects overlapping arguments if one is writable: their slices would be undefined behaviour in safe kernel code.
fn check_overlap(args: &[NativeArg<'_>]) -> Result<()> {
    for (index, first) in args.iter().enumerate() {
        for (other, second) in args.iter().enumerate().skip(index + 1) {
            if collide(first, second) {
                return Err(Error::invalid(format!(
                    "arguments {index} and {other} overlap, and one of them is written"
                )));
            }
        }
    }
    Ok(())
}

fn collide(a: &NativeArg<'_>, b: &NativeArg<'_>) -> bool {
    let (NativeArg::Buffer { .. }, NativeArg::Buffer { .. }) = (a, b) else { return false };
    let ((a, a_writes), (b, b_writes)) = (extent(a), extent(b));
    (a_writes || b_writes) && overlaps(&a, &b)
}

fn extent(arg: &NativeArg<'_>) -> (Range<usize>, bool) {
    match arg {
        NativeArg::Buffer { pointer, bytes, writes } => {
            let start = pointer.addr();
            (start..start.saturating_add(*bytes), *writes)
        }
        NativeArg::Value(_) => (0..0, false),
    }
}

/// Whether two ranges have a byte in common.
pub fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Writes the initial contents of new memory.
///
/// # Safety
/// `bytes` bytes at `to` are valid for writes, and no other code uses them yet.
pub unsafe fn initialise(to: NonNull<u8>, bytes: usize, contents: &[u8]) -> Result<()> {
    checks::contents(bytes, contents)?;
    // SAFETY: the caller vouches for as many bytes as there are contents.
    unsafe { to.copy_from_nonoverlapping(NonNull::from(contents).cast(), bytes) };
    Ok(())
}

/// Fills the bytes with a repeated pattern.
///
/// # Safety
/// `bytes` bytes at `to` are valid for writes, and the pattern does not overlap them.
pub unsafe fn fill(to: NonNull<u8>, bytes: usize, pattern: &[u8]) {
    let mut done = 0;
    while done < bytes {
        let step = pattern.len().min(bytes - done);
        // SAFETY: `done + step <= bytes`, and the caller vouches for `bytes` bytes at `to`.
        unsafe { to.add(done).copy_from_nonoverlapping(NonNull::from(pattern).cast(), step) };
        done += step.max(1);
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn writable_arguments_must_not_overlap() {
        let mut bytes = [0_u8; 8];
        let pointer = bytes.as_mut_ptr();
        let buffer = |start, bytes, writes| NativeArg::Buffer {
            pointer: pointer.wrapping_add(start),
            bytes,
            writes,
        };
        assert!(check_overlap(&[buffer(0, 8, false), buffer(0, 8, false)]).is_ok());
        assert!(check_overlap(&[buffer(0, 4, true), buffer(4, 4, true)]).is_ok());
        assert!(check_overlap(&[buffer(0, 5, false), buffer(4, 4, true)]).is_err());
        assert!(check_overlap(&[NativeArg::Value(&[1]), buffer(0, 8, true)]).is_ok());
    }
}
