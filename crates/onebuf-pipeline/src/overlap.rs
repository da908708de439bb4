//! Parts that work on several frames at a time.
//!
//! A function of a source, stage or sink handles one slot and returns. That is too little for a part whose work goes on by
//! itself, such as a transfer over a network: the next one could begin only after the last has ended. An [`Overlapped`] part
//! begins with each slot as it becomes available, and reports later that the oldest is done. Frames keep their order.
//!
//! ```text
//!   source:  free slot ─► begin … poll: filled ─► first stage
//!   stage:   frame ─► begin … poll: done ─► next stage
//!   sink:    frame ─► begin … poll: done ─► free slot
//! ```

use crate::Filled;
use onebuf_hal::Result;
use std::task::Waker;

/// A source, stage or sink that works on several frames at a time: see [`Builder::source_overlapped`],
/// [`Builder::stage_overlapped`] and [`Builder::sink_overlapped`](crate::Builder::sink_overlapped).
///
/// [`Builder::source_overlapped`]: crate::Builder::source_overlapped
/// [`Builder::stage_overlapped`]: crate::Builder::stage_overlapped
pub trait Overlapped<S> {
    /// Begins a run of the pipeline. The waker is to be woken whenever [`Flight::poll`] may have another answer; any thread may
    /// do so.
    ///
    /// # Errors
    /// The part's own errors. They stop the pipeline.
    fn open<'r>(&'r mut self, slots: &'r [S], waker: &Waker) -> Result<Box<dyn Flight + 'r>>;

    /// Describes how frames come or go, for [`Pipeline::explain`](crate::Pipeline::explain).
    fn explain(&self, _slot: &S) -> Option<String> {
        None
    }
}

/// One run of an [`Overlapped`] part. Dropping it ends what is under way: afterwards the part uses no slot any more.
pub trait Flight {
    /// Begins with a slot. A source begins to fill it with its next frame; `frame` is the number that this will have. A stage or
    /// a sink begins with the frame of this number in it. The part has the slot until it has reported it.
    ///
    /// # Errors
    /// The part's own errors. They stop the pipeline.
    fn begin(&mut self, slot: usize, frame: u64) -> Result<()>;

    /// How the oldest slot has ended that was begun and not reported yet; `None` while it is under way, and if there is none.
    /// Called often: it must not wait. [`Filled::Incomplete`] drops and counts the frame. [`Filled::End`] is for sources: the
    /// slots that they have begun since are free again.
    ///
    /// # Errors
    /// The part's own errors. They stop the pipeline.
    fn poll(&mut self) -> Result<Option<Filled>>;

    /// Ends the run, after every slot was reported. Not called after a failure. `stopped` tells a source that it ends before it
    /// has reported [`Filled::End`]; slots that it has begun are then still under way.
    ///
    /// # Errors
    /// The part's own errors.
    fn end(&mut self, stopped: bool) -> Result<()>;
}
