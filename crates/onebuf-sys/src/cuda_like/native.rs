//! What HIP's objects are in OpenCL, for the one runtime that is built on it.

use super::{CuEvent, CuStatus, CuStream, CudaLike, Refused};
use std::ptr;

/// The name of the API beneath, platform, device, context, queue.
const HANDLES: usize = 5;

/// What a stream is beneath, by the handles there. The runtime keeps them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeStream {
    /// The device.
    pub device: usize,
    /// The context of all streams.
    pub context: usize,
    /// This stream's queue, the same for as long as the stream lives.
    pub queue: usize,
}

impl CudaLike {
    /// What a stream is beneath; the null stream is the current device's own.
    ///
    /// # Errors
    /// Those of the call; [`CuStatus::NULL_HANDLE`] where it gives others than are known.
    ///
    /// # Safety
    /// Null, or a live stream; its device is current.
    pub unsafe fn native_stream(&self, stream: CuStream) -> Result<NativeStream, Refused> {
        let (mut count, mut handles) = (0, [0; HANDLES]);
        // SAFETY: a place for the number, and no handles are asked for.
        unsafe { self.native_handles(0, ptr::null_mut(), &raw mut count)? };
        if count != HANDLES as i32 {
            return Err(unknown("hipGetBackendNativeHandles"));
        }
        let to = handles.as_mut_ptr();
        // SAFETY: room for as many as were said; the caller's promise of the stream.
        unsafe { self.native_handles(stream.0 as usize, to, ptr::null_mut())? };
        let [_, _, device, context, queue] = handles;
        match [device, context, queue].contains(&0) {
            true => Err(unknown("hipGetBackendNativeHandles")),
            false => Ok(NativeStream { device, context, queue }),
        }
    }

    /// What a recorded event is beneath. No reference is added: it is there while the event is, and is not recorded again.
    ///
    /// # Errors
    /// [`CuStatus::NULL_HANDLE`] for an event that was not recorded.
    ///
    /// # Safety
    /// A live event.
    pub unsafe fn event_beneath(&self, event: CuEvent) -> Result<usize, Refused> {
        let at = self.enter(self.native_event, ["", "hipGetNativeEventFromHipEvent"])?;
        // SAFETY: the caller's promise.
        let native = unsafe { (at.function)(event) };
        if native.is_null() { Err(unknown(at.name)) } else { Ok(native as usize) }
    }
}

fn unknown(call: &'static str) -> Refused {
    Refused { call, status: CuStatus::NULL_HANDLE }
}
