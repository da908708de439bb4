//! The `cl_kernel`s behind one kernel.
//!
//! Arguments are the state of a `cl_kernel`, and setting them is the only OpenCL operation that two threads must not do
//! at once. So each launch has exclusive use of a `cl_kernel` from its first argument to its enqueue: the first free
//! one, or a new one. Every thread searches from the front, so there are never more of them than threads that
//! launched at the same time.

use super::{conv, device::Driver, program::RawProgram, storage::Place};
use onebuf_hal::{
    Error, Result,
    locks::{Arc, AtomicBool, Ordering},
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClKernel, ClMem, OpenCl},
};
use std::{
    cell::UnsafeCell,
    ffi::CString,
    fmt,
    ops::{Deref, DerefMut},
    ptr,
    sync::OnceLock,
};

/// The longest value that is remembered, in words; longer ones are set by every launch.
const VALUE_WORDS: usize = 3;

/// A `cl_kernel` that is released once.
#[derive(Debug)]
pub(super) struct RawKernel {
    program: Arc<RawProgram>,
    pub raw: ClKernel,
}

impl RawKernel {
    pub fn new(program: &Arc<RawProgram>, name: &str) -> Result<RawKernel> {
        let driver = &program.context.driver;
        let c_name = CString::new(name).map_err(|_| unknown(program, name))?;
        // SAFETY: a live program.
        let made = unsafe { driver.cl.create_kernel(program.raw, c_name.as_ptr()) };
        let raw = made.map_err(|status| match status {
            ClStatus::INVALID_KERNEL_NAME => unknown(program, name),
            _ => conv::status("clCreateKernel", status, &driver.info.name),
        })?;
        Ok(RawKernel { program: program.clone(), raw })
    }
}

impl Drop for RawKernel {
    fn drop(&mut self) {
        let driver = &self.program.context.driver;
        // SAFETY: this struct owns one reference.
        let released = unsafe { driver.cl.release_kernel(self.raw) };
        driver.note("clReleaseKernel", released);
    }
}

fn unknown(program: &RawProgram, name: &str) -> Error {
    match program.kernel_names() {
        Some(names) => Error::invalid(format!("no kernel `{name}` in the program; it has {names}")),
        None => Error::invalid(format!("no kernel `{name}` in the program")),
    }
}

/// The new value of an argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum Setting<'a> {
    /// A memory, with its id, which is unique within its context.
    Memory(u64, &'a Place),
    /// A value's bytes.
    Value(&'a [u8]),
    /// Group-local memory, in bytes.
    Local(usize),
}

impl Setting<'_> {
    /// The name of the OpenCL call that sets it.
    pub fn call(&self) -> &'static str {
        match self {
            Setting::Memory(_, Place::Svm { .. }) => "clSetKernelArgSVMPointer",
            _ => "clSetKernelArg",
        }
    }
}

/// The value that an argument was last set to. Only a memory's id is stored, so this keeps nothing alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// Never set, too long to remember, or undefined after a failed call.
    Unknown,
    Memory(u64),
    Value(usize, [u64; VALUE_WORDS]),
    Local(usize),
}

impl Last {
    fn of(setting: &Setting<'_>) -> Last {
        match setting {
            Setting::Memory(id, _) => Last::Memory(*id),
            Setting::Local(bytes) => Last::Local(*bytes),
            Setting::Value(value) => {
                words(value).map_or(Last::Unknown, |words| Last::Value(value.len(), words))
            }
        }
    }

    #[inline]
    fn is(&self, setting: &Setting<'_>) -> bool {
        match setting {
            Setting::Memory(id, _) => matches!(self, Last::Memory(last) if last == id),
            Setting::Local(bytes) => matches!(self, Last::Local(last) if last == bytes),
            Setting::Value(value) => match self {
                Last::Value(len, last) => *len == value.len() && is_value(last, value),
                _ => false,
            },
        }
    }
}

/// A value of four or eight bytes as one word, so that it is compared in a register. Reading bytes together is slow
/// right after they were written one by one.
#[inline]
fn word(value: &[u8]) -> Option<u64> {
    let four = <[u8; 4]>::try_from(value).map(|four| u32::from_ne_bytes(four).into());
    four.or_else(|_| <[u8; 8]>::try_from(value).map(u64::from_ne_bytes)).ok()
}

/// Whether a value equals the remembered one, which has the same length.
#[inline]
fn is_value(last: &[u64; VALUE_WORDS], value: &[u8]) -> bool {
    match word(value) {
        Some(word) => last[0] == word,
        None => words(value).is_some_and(|words| *last == words),
    }
}

/// A short value, padded with zeroes.
fn words(value: &[u8]) -> Option<[u64; VALUE_WORDS]> {
    if let Some(word) = word(value) {
        return Some([word, 0, 0]);
    }
    let mut words = [0; VALUE_WORDS];
    bytemuck::bytes_of_mut(&mut words).get_mut(..value.len())?.copy_from_slice(value);
    Some(words)
}

/// One `cl_kernel`, and the values of its arguments.
#[derive(Debug)]
pub(super) struct Slot {
    kernel: RawKernel,
    last: Box<[Last]>,
}

impl Slot {
    pub fn new(kernel: RawKernel, parameters: usize) -> Slot {
        Slot { kernel, last: vec![Last::Unknown; parameters].into_boxed_slice() }
    }

    pub fn raw(&self) -> ClKernel {
        self.kernel.raw
    }

    /// Whether an argument already has this value.
    #[inline]
    pub fn has(&self, index: usize, setting: &Setting<'_>) -> bool {
        self.last.get(index).is_some_and(|last| last.is(setting))
    }

    /// Sets an argument.
    ///
    /// # Safety
    /// An SVM pointer belongs to the kernel's context, and a memory lives until the kernel has been enqueued.
    pub unsafe fn set(
        &mut self,
        cl: &OpenCl,
        index: usize,
        to: &Setting<'_>,
    ) -> Result<(), ClStatus> {
        let last = self.last.get_mut(index).ok_or(ClStatus::INVALID_ARG_INDEX)?;
        // A failed call leaves the argument undefined.
        *last = Last::Unknown;
        // SAFETY: the caller's promise.
        unsafe { set(cl, self.kernel.raw, index as u32, to) }?;
        *last = Last::of(to);
        Ok(())
    }
}

impl Slot {
    /// Sets every argument that is this memory to null, so that the driver no longer references it.
    pub fn forget(&mut self, memory: u64, driver: &Driver) {
        for (at, last) in (0..).zip(&mut self.last) {
            if *last == Last::Memory(memory) {
                *last = Last::Unknown;
                let (none, size) = (ClMem::NULL, size_of::<ClMem>());
                // SAFETY: a live kernel that only this thread uses; a handle, which may be null.
                let set = unsafe {
                    driver.cl.set_kernel_arg(self.kernel.raw, at, size, (&raw const none).cast())
                };
                driver.note("clSetKernelArg", set);
            }
        }
    }
}

/// # Safety
/// As [`Slot::set`], and no other thread sets arguments of this kernel.
unsafe fn set(cl: &OpenCl, raw: ClKernel, at: u32, to: &Setting<'_>) -> Result<(), ClStatus> {
    // SAFETY: a live kernel, values of the stated lengths; the caller's promise for the rest.
    unsafe {
        match to {
            Setting::Value(bytes) => cl.set_kernel_arg(raw, at, bytes.len(), bytes.as_ptr().cast()),
            Setting::Local(bytes) => cl.set_kernel_arg(raw, at, *bytes, ptr::null()),
            Setting::Memory(_, Place::Svm { pointer, .. }) => {
                cl.set_kernel_arg_svm_pointer(raw, at, pointer.void())
            }
            Setting::Memory(_, Place::Object(mem)) => {
                cl.set_kernel_arg(raw, at, size_of_val(mem), (&raw const *mem).cast())
            }
        }
    }
}

/// The slots of a kernel, in the order of their creation. The list only grows, so searching it takes no lock.
pub(super) struct Slots(Node);

struct Node {
    /// Which arguments are SVM pointers, one bit each. NVIDIA refuses a launch (-52) when an argument that was an SVM
    /// pointer becomes a `cl_mem`, so each form has separate `cl_kernel`s.
    form: u64,
    taken: AtomicBool,
    slot: UnsafeCell<Slot>,
    next: OnceLock<Box<Node>>,
}

// SAFETY: only the guard that changed `taken` to true gives access to the slot, until it changes it back; any thread may
// use the slot's contents, one at a time.
unsafe impl Sync for Node {}

/// Exclusive use of a slot, until dropped.
pub(super) struct Taken<'n>(&'n Node);

impl Deref for Taken<'_> {
    type Target = Slot;

    #[inline]
    fn deref(&self) -> &Slot {
        // SAFETY: this guard set `taken`, so no other guard gives access to the slot.
        unsafe { &*self.0.slot.get() }
    }
}

impl DerefMut for Taken<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Slot {
        // SAFETY: this guard set `taken`, so no other guard gives access to the slot.
        unsafe { &mut *self.0.slot.get() }
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

impl Slots {
    /// Creates the list with a first slot, whose form has no SVM pointers.
    pub fn new(first: Slot) -> Slots {
        Slots(Node::new(0, first, false))
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        std::iter::successors(Some(&self.0), |node| node.next.get().map(|next| &**next))
    }

    /// Takes every free slot, one after the other.
    pub fn idle(&self) -> impl Iterator<Item = Taken<'_>> {
        self.nodes().filter_map(Node::take)
    }

    /// Takes a free slot of this form, or creates one.
    #[inline]
    pub fn take(&self, form: u64, make: impl FnOnce() -> Result<Slot>) -> Result<Taken<'_>> {
        let first = Some(&self.0).filter(|node| node.form == form);
        match first.and_then(Node::take) {
            Some(taken) => Ok(taken),
            None => self.take_other(form, make),
        }
    }

    #[inline(never)]
    fn take_other(&self, form: u64, make: impl FnOnce() -> Result<Slot>) -> Result<Taken<'_>> {
        let mut right = self.nodes().filter(|node| node.form == form);
        match right.find_map(Node::take) {
            Some(taken) => Ok(taken),
            // Created as taken, so that no other thread can take it first.
            None => Ok(Taken(self.push(Box::new(Node::new(form, make()?, true))))),
        }
    }

    fn push(&self, mut new: Box<Node>) -> &Node {
        let mut at = &self.0;
        loop {
            let full = at.next.set(new).err();
            at = at.next.get().map_or(at, |next| &**next);
            match full {
                None => return at,
                Some(back) => new = back,
            }
        }
    }
}

impl Node {
    fn new(form: u64, slot: Slot, taken: bool) -> Node {
        let (taken, slot) = (AtomicBool::new(taken), UnsafeCell::new(slot));
        Node { form, taken, slot, next: OnceLock::new() }
    }

    /// Takes the slot if it is free. Never waits, and costs half as much as a lock.
    #[inline]
    fn take(&self) -> Option<Taken<'_>> {
        // Not `then_some`: dropping an unused guard would release another thread's slot.
        (!self.taken.swap(true, Ordering::Acquire)).then(|| Taken(self))
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes().map(|node| node.form)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_known_by_kind_length_and_bytes() {
        let value = |bytes: &[u8]| Last::of(&Setting::Value(bytes));
        assert!(value(&[1, 2]).is(&Setting::Value(&[1, 2])));
        assert!(!value(&[1, 2]).is(&Setting::Value(&[1, 3])));
        assert!(!value(&[1, 0]).is(&Setting::Value(&[1])), "another length");
        assert!(!value(&[0; 8]).is(&Setting::Local(8)), "another kind");
        assert!(value(&[7; 4]).is(&Setting::Value(&[7; 4])));
        assert!(!value(&[7; 8]).is(&Setting::Value(&[7, 7, 7, 7, 7, 7, 7, 8])));
        assert!(!value(&[0; 4]).is(&Setting::Value(&[0; 8])), "another length");
        assert!(value(&[7; 24]).is(&Setting::Value(&[7; 24])));
        assert_eq!(value(&[7; 25]), Last::Unknown, "too long to remember");
        assert!(!Last::Unknown.is(&Setting::Value(&[])));
        assert!(Last::Local(64).is(&Setting::Local(64)));
        assert!(!Last::Local(64).is(&Setting::Local(65)));
    }
}
