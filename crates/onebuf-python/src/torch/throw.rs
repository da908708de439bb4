//! Errors of the allocator, raised as PyTorch raises its own: as C++ exceptions of its class for exhausted memory.
//!
//! PyTorch does not look at the address that an allocator returns. The exception is made by the functions that PyTorch's own
//! libraries have for it; `onebuf._torch` looks their addresses up.
//!
//! # Safety
//! The exception passes through the frames that throw. They have no values to drop, so that no handler of Rust is asked about it:
//! it would ask the wrong unwinder in a module that has its own. The addresses come from PyTorch's and C++'s libraries, which stay loaded.

use std::{
    ffi::{CStr, c_char, c_void},
    sync::OnceLock,
};

/// The functions and the class, as addresses.
#[derive(Clone, Copy)]
pub(crate) struct Thrower {
    /// `__cxa_allocate_exception`
    pub allocate: usize,
    /// `__cxa_throw`
    pub throw: usize,
    /// `operator new`
    pub new: usize,
    /// `c10::Error::Error(SourceLocation, std::string)`
    pub construct: usize,
    /// The type information of `c10::OutOfMemoryError`, which adds nothing to `c10::Error`.
    pub class: usize,
}

static THROWER: OnceLock<Thrower> = OnceLock::new();

/// Sets the functions, once.
pub(crate) fn set(thrower: Thrower) {
    let _ = THROWER.set(thrower);
}

/// Memory for an exception object: more than any version of the class needs.
const ROOM: usize = 4096;

/// `c10::SourceLocation`.
#[repr(C)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// `std::string` of the C++11 ABI, with characters on the heap.
#[repr(C)]
struct CxxString {
    characters: *mut u8,
    length: usize,
    capacity: usize,
    _rest: usize,
}

const WHERE: &CStr = c"onebuf.torch_allocator";

/// Throws, unless the functions are not known. The message is copied.
///
/// # Safety
/// The caller's frame, and those up to PyTorch's, have nothing to drop.
pub(super) unsafe fn throw(message: *const u8, length: usize) {
    let Some(&Thrower { allocate, throw, new, construct, class }) = THROWER.get() else { return };
    // SAFETY: functions of these types, as the head of this file says.
    unsafe {
        let allocate: unsafe extern "C-unwind" fn(usize) -> *mut c_void =
            std::mem::transmute(allocate);
        let new: unsafe extern "C-unwind" fn(usize) -> *mut u8 = std::mem::transmute(new);
        let construct: unsafe extern "C-unwind" fn(*mut c_void, SourceLocation, *mut CxxString) =
            std::mem::transmute(construct);
        let throw: unsafe extern "C-unwind" fn(*mut c_void, usize, *const c_void) =
            std::mem::transmute(throw);
        // The constructor takes the characters over: longer than what a string has inside of itself, at least.
        let capacity = if length < 64 { 64 } else { length };
        let characters = new(capacity + 1);
        message.copy_to(characters, length);
        characters.add(length).write(0);
        let mut text = CxxString { characters, length, capacity, _rest: 0 };
        let location = SourceLocation { function: WHERE.as_ptr(), file: WHERE.as_ptr(), line: 0 };
        let exception = allocate(ROOM);
        exception.cast::<u8>().write_bytes(0, ROOM);
        construct(exception, location, &raw mut text);
        // The first virtual function is the destructor.
        let functions: *const *const c_void = exception.cast::<*const *const c_void>().read();
        throw(exception, class, functions.read());
    }
}
