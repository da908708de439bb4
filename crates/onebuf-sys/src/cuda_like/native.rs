//! The OpenCL objects behind HIP's objects, for the one runtime that is built on OpenCL.

use super::{CuEvent, CuStatus, CuStream, CudaLike, Refused};
use std::ptr;

/// The handles are: name of the underlying API, platform, device, context, queue.
const HANDLES: usize = 5;

/// The OpenCL handles of a stream. The runtime owns them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeStream {
    /// The device.
    pub device: usize,
    /// The context of all streams.
    pub context: usize,
    /// The stream's queue, constant for the lifetime of the stream.
    pub queue: usize,
}

impl CudaLike {
    /// Returns the OpenCL handles of a stream; the null stream is that of the current device.
    ///
    /// # Errors
    /// The call's errors; [`CuStatus::NULL_HANDLE`] if it returns an unexpected number of handles.
    ///
    /// # Safety
    /// `stream` is null or a live stream; its device is current.
    pub unsafe fn native_stream(&self, stream: CuStream) -> Result<NativeStream, Refused> {
        let (mut count, mut handles) = (0, [0; HANDLES]);
        // SAFETY: a valid pointer for the number; no handles are requested.
        unsafe { self.native_handles(0, ptr::null_mut(), &raw mut count)? };
        if count != HANDLES as i32 {
            return Err(unknown("hipGetBackendNativeHandles"));
        }
        let to = handles.as_mut_ptr();
        // SAFETY: room for the reported number; the caller guarantees the stream.
        unsafe { self.native_handles(stream.0 as usize, to, ptr::null_mut())? };
        let [_, _, device, context, queue] = handles;
        match [device, context, queue].contains(&0) {
            true => Err(unknown("hipGetBackendNativeHandles")),
            false => Ok(NativeStream { device, context, queue }),
        }
    }

    /// Returns the OpenCL event of a recorded event. No reference is added: it is valid until the event is destroyed or
    /// recorded again.
    ///
    /// # Errors
    /// [`CuStatus::NULL_HANDLE`] for an event that was not recorded.
    ///
    /// # Safety
    /// `event` is a live event.
    pub unsafe fn event_beneath(&self, event: CuEvent) -> Result<usize, Refused> {
        let at = self.enter(self.native_event, ["", "hipGetNativeEventFromHipEvent"])?;
        // SAFETY: guaranteed by the caller.
        let native = unsafe { (at.function)(event) };
        if native.is_null() { Err(unknown(at.name)) } else { Ok(native as usize) }
    }
}

fn unknown(call: &'static str) -> Refused {
    Refused { call, status: CuStatus::NULL_HANDLE }
}
