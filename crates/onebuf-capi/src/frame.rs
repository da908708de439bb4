//! Frames and callbacks
//!
//! The arguments and return values of pipeline callbacks.
//!
//! Each callback returns a status. Any status but ONEBUF_OK stops the pipeline; onebuf_pipeline_run() then returns that
//! status, with the error message of the thread that failed (see onebuf_set_error_message()) and the place of the
//! failure. Callbacks may call every function of onebuf except running the same pipeline. They must not throw, and must
//! not free what they are given.

use crate::{
    buffer::onebuf_buffer,
    entry::entry,
    handle::Noun,
    input::{Slot, bytes, bytes_mut, out},
    queue::onebuf_queue,
    sink::onebuf_sink,
    source::onebuf_source,
    status::onebuf_status,
};
use onebuf::pipeline::{Filled, sink::Sink, source::FrameSource};
use std::ffi::c_void;

/// The result of a source callback.
pub type onebuf_filled = u32;
/// The slot holds the next frame.
pub const ONEBUF_FILLED_FRAME: onebuf_filled = 0;
/// The frame is incomplete: it is counted and not passed on.
pub const ONEBUF_FILLED_INCOMPLETE: onebuf_filled = 1;
/// No data came for a while. The source is called again unless the pipeline is stopping.
pub const ONEBUF_FILLED_IDLE: onebuf_filled = 2;
/// There are no more frames.
pub const ONEBUF_FILLED_END: onebuf_filled = 3;

/// A frame, as callbacks get it. Valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_frame {
    /// The frame's number, from zero. Frames that were dropped or incomplete leave a gap.
    pub number: u64,
    /// The slot's buffers. The pipeline owns them; no other stage uses them during the call.
    pub buffers: *const onebuf_buffer,
    /// Number of buffers.
    pub buffer_count: usize,
    /// The stage's queue, owned by the pipeline; null for sources and sinks.
    pub queue: onebuf_queue,
}

/// Fills a slot with the frame of this number and sets `filled`. The default is that the slot holds a frame.
pub type onebuf_source_function = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        frame: *const onebuf_frame,
        filled: *mut onebuf_filled,
    ) -> onebuf_status,
>;

/// The callback of a stage or a sink. A stage enqueues the work of one frame on its queue, without waiting; a sink consumes a
/// result.
pub type onebuf_frame_function =
    Option<unsafe extern "C" fn(user: *mut c_void, frame: *const onebuf_frame) -> onebuf_status>;

/// Fills one frame of `bytes` bytes by a source of the library, without a pipeline: inside a source callback, for example. A
/// network source waits for a frame up to its timeout, and also fills in what came of an incomplete one. ONEBUF_BUSY while a
/// pipeline has the source.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_fill(
    source: onebuf_source,
    data: *mut c_void,
    bytes: usize,
    filled: Slot<'_, onebuf_filled>,
) -> onebuf_status {
    entry(|| {
        let filled = out(filled, "filled")?;
        // SAFETY: guaranteed by the caller.
        let frame = unsafe { bytes_mut(data, bytes, "data")? };
        *filled = match source.get()?.claim()?.fill(frame)? {
            Filled::Frame => ONEBUF_FILLED_FRAME,
            Filled::Incomplete => ONEBUF_FILLED_INCOMPLETE,
            Filled::Idle => ONEBUF_FILLED_IDLE,
            Filled::End => ONEBUF_FILLED_END,
        };
        Ok(())
    })
}

/// Gives one frame of `bytes` bytes to a sink of the library, without a pipeline. ONEBUF_BUSY while a pipeline has the sink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_sink_take(
    sink: onebuf_sink,
    data: *const c_void,
    bytes: usize,
    number: u64,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller.
        let frame = unsafe { self::bytes(data, bytes, "data")? };
        Ok(sink.get()?.claim()?.take(frame, number)?)
    })
}
