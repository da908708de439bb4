//! The binaries of a program, onebuf's own or foreign.

use super::{conv, query};
use onebuf_hal::{Error, Result};
use onebuf_sys::{
    ClStatus,
    opencl::{ClProgram, OpenCl, consts as cl},
};
use std::{ffi::c_void, ptr};

/// Returns one binary for each device of the program, in the driver's order; empty if the device has none.
///
/// # Safety
/// `program` is a live program.
pub(super) unsafe fn of(cl: &OpenCl, program: ClProgram) -> Result<Vec<Vec<u8>>, ClStatus> {
    let ask = |what, n, at, len| {
        // SAFETY: the caller's promise; each use below passes a buffer of the stated length.
        unsafe { cl.get_program_info(program, what, n, at, len) }
    };
    let sizes = query::list::<usize>(|n, at, len| ask(cl::CL_PROGRAM_BINARY_SIZES, n, at, len))?;
    let mut binaries: Vec<Vec<u8>> = sizes.into_iter().map(|bytes| vec![0; bytes]).collect();
    if binaries.iter().all(Vec::is_empty) {
        return Ok(binaries);
    }
    // The driver skips entries whose pointer is null.
    let place = |binary: &mut Vec<u8>| match binary.is_empty() {
        true => ptr::null_mut(),
        false => binary.as_mut_ptr(),
    };
    let mut places: Vec<*mut u8> = binaries.iter_mut().map(place).collect();
    let bytes = size_of_val(&places[..]);
    ask(cl::CL_PROGRAM_BINARIES, bytes, places.as_mut_ptr().cast(), ptr::null_mut())?;
    Ok(binaries)
}

/// Returns the intermediate language that a foreign program was created from; `None` for other programs.
///
/// # Safety
/// `raw` is null or a live program.
pub unsafe fn intermediate(cl: &OpenCl, raw: usize) -> Result<Option<Vec<u8>>> {
    if raw == 0 {
        return Err(Error::invalid("a cl_program: null"));
    }
    let program = ClProgram(raw as *mut c_void);
    let il = query::list::<u8>(|n, at, len| {
        // SAFETY: the caller's promise; `query` passes a buffer of the stated length.
        unsafe { cl.get_program_info(program, cl::CL_PROGRAM_IL, n, at, len) }
    });
    match il {
        Ok(il) => Ok(Some(il).filter(|il| !il.is_empty())),
        // The driver does not support this query: before OpenCL 2.1 programs have no intermediate language.
        Err(ClStatus::INVALID_VALUE) => Ok(None),
        Err(status) => Err(failed(status)),
    }
}

/// Returns the binaries of a foreign program; empty for devices for which it is not built.
///
/// # Safety
/// `raw` is null or a live program.
pub unsafe fn foreign(cl: &OpenCl, raw: usize) -> Result<Vec<Vec<u8>>> {
    if raw == 0 {
        return Err(Error::invalid("a cl_program: null"));
    }
    // SAFETY: the caller's promise.
    unsafe { of(cl, ClProgram(raw as *mut c_void)) }.map_err(failed)
}

fn failed(status: ClStatus) -> Error {
    match status {
        ClStatus::INVALID_PROGRAM => Error::invalid(format!("a cl_program: {status}")),
        _ => conv::status("clGetProgramInfo", status, "a cl_program"),
    }
}
