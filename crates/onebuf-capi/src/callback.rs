//! Callbacks of a pipeline: the arguments they get, and how their return values are handled.

use crate::{
    buffer::{onebuf_buffer, onebuf_buffer_free},
    entry::{message_count, message_since},
    fault::{Fault, Result},
    frame::{
        ONEBUF_FILLED_END, ONEBUF_FILLED_FRAME, ONEBUF_FILLED_IDLE, ONEBUF_FILLED_INCOMPLETE,
        onebuf_filled, onebuf_frame,
    },
    handle::Noun,
    kept::Kept,
    queue::{onebuf_queue, onebuf_queue_free},
    status::{ONEBUF_OK, onebuf_status, onebuf_status_name},
};
use onebuf::{
    Buffer, Error,
    pipeline::{Failure, Filled},
};
use std::{
    ffi::{CStr, c_void},
    sync::{Arc, Mutex, PoisonError},
};

/// The buffers of one slot, and the handles that callbacks get for them.
#[derive(Default)]
pub(crate) struct Ring {
    handles: Vec<onebuf_buffer>,
    kept: Vec<Arc<Kept>>,
}

impl Ring {
    pub fn add(&mut self, made: Buffer<u8>) -> Result<()> {
        let handle = onebuf_buffer::put(made.into())?;
        self.handles.push(handle);
        self.kept.push(handle.get()?);
        Ok(())
    }

    /// The buffer at this index, which must exist.
    pub fn buffer(&self, index: usize) -> &Buffer<u8> {
        self.kept[index].whole().0
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A buffer that the program freed against the rules is no error here.
        for buffer in &self.handles {
            onebuf_buffer_free(*buffer);
        }
    }
}

/// Statuses of callbacks that failed. The library reports its own errors, not C's numbers.
#[derive(Default)]
pub(crate) struct Said(Mutex<Vec<(String, u64, onebuf_status)>>);

impl Said {
    /// Calls a callback and converts its status.
    fn ask(
        &self,
        at: &str,
        frame: u64,
        call: impl FnOnce() -> onebuf_status,
    ) -> onebuf::Result<()> {
        let before = message_count();
        let status = call();
        if status == ONEBUF_OK {
            return Ok(());
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((at.to_owned(), frame, status));
        Err(Error::invalid(message_since(before).unwrap_or_else(|| {
            // SAFETY: a string that this crate created.
            let name = unsafe { CStr::from_ptr(onebuf_status_name(status)) }.to_string_lossy();
            format!("its function returned {status} ({name})")
        })))
    }

    /// The failure as a C status. Resets it for the next run.
    pub fn fault(&self, failure: Failure) -> Fault {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mine =
            |(at, frame, _): &&(String, u64, _)| (at, *frame) == (&failure.at, failure.frame);
        match (all.iter().find(mine), &failure.error) {
            (Some((.., status)), Error::InvalidArgument(why)) => Fault::Callback(
                *status,
                format!("{} at frame {}: {why}", failure.at, failure.frame),
            ),
            _ => Fault::Callback(Fault::from(failure.error.clone()).status(), failure.to_string()),
        }
    }
}

/// A callback and its first argument.
pub(crate) struct Callback<F> {
    pub run: F,
    pub user: *mut c_void,
    pub said: Arc<Said>,
}

// SAFETY: the caller guarantees that any thread may call the function with this argument, one at a time.
unsafe impl<F> Send for Callback<F> {}

pub(crate) type SourceFn =
    unsafe extern "C" fn(*mut c_void, *const onebuf_frame, *mut onebuf_filled) -> onebuf_status;
pub(crate) type FrameFn = unsafe extern "C" fn(*mut c_void, *const onebuf_frame) -> onebuf_status;

/// A slot as a C callback gets it.
pub(crate) fn frame(slot: &Ring, number: u64, queue: onebuf_queue) -> onebuf_frame {
    onebuf_frame { number, buffers: slot.handles.as_ptr(), buffer_count: slot.handles.len(), queue }
}

pub(crate) const NO_QUEUE: onebuf_queue = onebuf_queue { id: 0 };

impl Callback<SourceFn> {
    pub fn fill(&self, slot: &Ring, number: u64) -> onebuf::Result<Filled> {
        let (frame, mut filled) = (frame(slot, number, NO_QUEUE), ONEBUF_FILLED_FRAME);
        // SAFETY: the caller's function; its arguments outlive the call.
        let fill = || unsafe { (self.run)(self.user, &frame, &mut filled) };
        self.said.ask("source", number, fill)?;
        match filled {
            ONEBUF_FILLED_FRAME => Ok(Filled::Frame),
            ONEBUF_FILLED_INCOMPLETE => Ok(Filled::Incomplete),
            ONEBUF_FILLED_IDLE => Ok(Filled::Idle),
            ONEBUF_FILLED_END => Ok(Filled::End),
            other => Err(Error::invalid(format!("filled {other}: choose one of 0 to 3"))),
        }
    }
}

impl Callback<FrameFn> {
    pub fn take(&self, at: &str, frame: &onebuf_frame) -> onebuf::Result<()> {
        // SAFETY: the caller's function; its arguments outlive the call.
        self.said.ask(at, frame.number, || unsafe { (self.run)(self.user, frame) })
    }
}

/// The handle of a stage's queue, created with the stage's first frame.
#[derive(Default)]
pub(crate) struct QueueHandle(Option<onebuf_queue>);

impl QueueHandle {
    pub fn of(&mut self, queue: &onebuf::Queue) -> onebuf::Result<onebuf_queue> {
        match self.0 {
            Some(handle) => Ok(handle),
            None => {
                let made = onebuf_queue::put(queue.clone())
                    .map_err(|fault| Error::invalid(fault.to_string()))?;
                Ok(*self.0.insert(made))
            }
        }
    }
}

impl Drop for QueueHandle {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            onebuf_queue_free(queue);
        }
    }
}
