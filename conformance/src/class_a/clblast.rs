//! CLBlast, loaded at run time: a library that uses a queue and memory of class A or of onebuf.
//!
//! # Safety
//!
//! The prototypes are those of CLBlast 1's C header, in which enumerations are `int`s. All handles of a call
//! are of one context. CLBlast checks the sizes of buffers itself.

use super::{Own, third_party};
use onebuf::Complex32;
use onebuf_sys::opencl::{ClEvent, ClMem, ClQueue};

const ROW_MAJOR: i32 = 101;
const AS_IT_IS: i32 = 111;

third_party::functions! { Table:
    sgemm = CLBlastSgemm(
        i32, i32, i32, usize, usize, usize, f32, ClMem, usize, usize, ClMem, usize, usize, f32, ClMem,
        usize, usize, *mut ClQueue, *mut ClEvent,
    );
    saxpy = CLBlastSaxpy(
        usize, f32, ClMem, usize, usize, ClMem, usize, usize, *mut ClQueue, *mut ClEvent,
    );
    caxpy = CLBlastCaxpy(
        usize, Complex32, ClMem, usize, usize, ClMem, usize, usize, *mut ClQueue, *mut ClEvent,
    );
    clear_cache = CLBlastClearCache();
}

/// CLBlast. Dropping it clears its program cache, and with it its references to contexts.
#[derive(Debug)]
pub struct ClBlast(Table);

/// Checks the status, which is CLBlast's or OpenCL's, and takes the event.
#[track_caller]
fn made(call: &str, status: i32, event: ClEvent) -> Own<ClEvent> {
    assert_eq!(status, 0, "CLBlast: {call}");
    // SAFETY: the event was created by a call that succeeded.
    unsafe { Own::new(event) }
}

impl ClBlast {
    /// Loads the library; `None`, after a printed skip, if it is missing.
    ///
    /// # Panics
    /// If it is missing in strict mode, or is another version.
    pub fn open() -> Option<Self> {
        let hint = "on Debian or Ubuntu: apt install libclblast1";
        let library = third_party::open("CLBlast", "ONEBUF_CLBLAST_LIB", "libclblast.so.1", hint)?;
        Some(Self(Table::find(&library).unwrap_or_else(|name| panic!("CLBlast lacks {name}"))))
    }

    /// Enqueues `c = a b` for square matrices of `n` rows.
    pub fn sgemm(&self, mut queue: ClQueue, n: usize, [a, b, c]: [ClMem; 3]) -> Own<ClEvent> {
        let (row, no, mut event) = (ROW_MAJOR, AS_IT_IS, ClEvent::NULL);
        let gemm = self.0.sgemm;
        // SAFETY: the caller passes handles of one context; the library checks sizes.
        let status = unsafe {
            let to = &mut event;
            gemm(row, no, no, n, n, n, 1.0, a, 0, n, b, 0, n, 0.0, c, 0, n, &mut queue, to)
        };
        made("CLBlastSgemm", status, event)
    }

    /// Enqueues `y = a x + y`.
    pub fn saxpy(&self, mut queue: ClQueue, n: usize, a: f32, x: ClMem, y: ClMem) -> Own<ClEvent> {
        let mut event = ClEvent::NULL;
        // SAFETY: as for `sgemm`.
        let status = unsafe { (self.0.saxpy)(n, a, x, 0, 1, y, 0, 1, &mut queue, &mut event) };
        made("CLBlastSaxpy", status, event)
    }

    /// Enqueues `y = a x + y` for complex numbers.
    pub fn caxpy(
        &self,
        mut queue: ClQueue,
        n: usize,
        a: Complex32,
        x: ClMem,
        y: ClMem,
    ) -> Own<ClEvent> {
        let mut event = ClEvent::NULL;
        // SAFETY: as for `sgemm`; a complex number and `cl_float2` are passed alike.
        let status = unsafe { (self.0.caxpy)(n, a, x, 0, 1, y, 0, 1, &mut queue, &mut event) };
        made("CLBlastCaxpy", status, event)
    }
}

impl Drop for ClBlast {
    fn drop(&mut self) {
        // SAFETY: the function takes no arguments, and no call of the library is running.
        let status = unsafe { (self.0.clear_cache)() };
        assert!(std::thread::panicking() || status == 0, "CLBlast: CLBlastClearCache: {status}");
    }
}
