//! CLBlast, opened at run time: a library that is given a queue and memory, class A's or onebuf's.
//!
//! # Safety
//!
//! The prototypes are those of CLBlast 1's C header, where enumerations are `int`s. It is given handles of one
//! context, and checks the sizes of buffers itself.

use super::{Own, guest};
use onebuf::Complex32;
use onebuf_sys::opencl::{ClEvent, ClMem, ClQueue};

const ROW_MAJOR: i32 = 101;
const AS_IT_IS: i32 = 111;

guest::functions! { Table:
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

/// CLBlast. Dropping it gives back the programs that it keeps, and with them its references to contexts.
#[derive(Debug)]
pub struct ClBlast(Table);

/// Its status, or OpenCL's.
#[track_caller]
fn made(call: &str, status: i32, event: ClEvent) -> Own<ClEvent> {
    assert_eq!(status, 0, "CLBlast: {call}");
    // SAFETY: made by a call that succeeded.
    unsafe { Own::new(event) }
}

impl ClBlast {
    /// Opens it; `None`, after a printed skip, where it is missing.
    ///
    /// # Panics
    /// In strict mode, where it is missing; where it is another version.
    pub fn open() -> Option<Self> {
        let hint = "on Debian or Ubuntu: apt install libclblast1";
        let library = guest::open("CLBlast", "ONEBUF_CLBLAST_LIB", "libclblast.so.1", hint)?;
        Some(Self(Table::find(&library).unwrap_or_else(|name| panic!("CLBlast lacks {name}"))))
    }

    /// Enqueues `c = a b` for square matrices of `n` rows.
    pub fn sgemm(&self, mut queue: ClQueue, n: usize, [a, b, c]: [ClMem; 3]) -> Own<ClEvent> {
        let (row, no, mut event) = (ROW_MAJOR, AS_IT_IS, ClEvent::NULL);
        let gemm = self.0.sgemm;
        // SAFETY: handles of one context, as the caller says; sizes are checked by the library.
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
        // SAFETY: it takes nothing, and nothing of it runs.
        let status = unsafe { (self.0.clear_cache)() };
        assert!(std::thread::panicking() || status == 0, "CLBlast: CLBlastClearCache: {status}");
    }
}
