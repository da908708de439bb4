//! Frames and callbacks
//!
//! What a pipeline gives to functions of the caller, and what those give back.
//!
//! Each callback returns a status: another than ONEBUF_OK stops the pipeline, and onebuf_pipeline_run() returns it with
//! the message of the thread that failed (see onebuf_set_error_message()), and with where it was. They may call
//! everything of onebuf's but run the same pipeline; they must not throw, and free nothing that they are given.

use crate::{buffer::onebuf_buffer, queue::onebuf_queue, status::onebuf_status};
use std::ffi::c_void;

/// What a source did with a slot.
pub type onebuf_filled = u32;
/// It holds the next frame.
pub const ONEBUF_FILLED_FRAME: onebuf_filled = 0;
/// Something of the frame is missing: it is counted, and not passed on.
pub const ONEBUF_FILLED_INCOMPLETE: onebuf_filled = 1;
/// Nothing came for a while: the source is asked again, unless the pipeline is to stop.
pub const ONEBUF_FILLED_IDLE: onebuf_filled = 2;
/// There are no more.
pub const ONEBUF_FILLED_END: onebuf_filled = 3;

/// A frame, as a callback gets it. Valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_frame {
    /// Its number, from zero. Those of frames that were dropped or incomplete are left out.
    pub number: u64,
    /// The slot's buffers. The pipeline owns them, and no other stage uses them now.
    pub buffers: *const onebuf_buffer,
    /// How many buffers.
    pub buffer_count: usize,
    /// The stage's queue, the pipeline's; null for sources and sinks.
    pub queue: onebuf_queue,
}

/// Fills a slot with the frame of this number, and says what it did; it holds a frame when nothing is said.
pub type onebuf_source_function = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        frame: *const onebuf_frame,
        filled: *mut onebuf_filled,
    ) -> onebuf_status,
>;

/// Enqueues one frame's work on its queue, and waits for nothing; or takes a result, as a sink.
pub type onebuf_frame_function =
    Option<unsafe extern "C" fn(user: *mut c_void, frame: *const onebuf_frame) -> onebuf_status>;
