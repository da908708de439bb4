//! Sources and sinks. A pipeline has exclusive use of one until the pipeline is freed.

use crate::{
    fault::{Fault, Result},
    handle::Noun,
};
use onebuf::{
    Error,
    pipeline::{Filled, sink::Sink, source::FrameSource},
};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

/// Fills the bytes of a slot.
pub(crate) type Feed = dyn FrameSource<u8> + Send;
/// Consumes the bytes of a slot.
pub(crate) type Drain = dyn Sink<u8> + Send;

/// An object that a pipeline can claim.
pub(crate) struct Claimable<T: ?Sized> {
    claimed: AtomicBool,
    inner: Mutex<Box<T>>,
}

impl<T: ?Sized> Claimable<T> {
    pub fn new(inner: Box<T>) -> Arc<Self> {
        Arc::new(Self { claimed: AtomicBool::new(false), inner: Mutex::new(inner) })
    }
}

/// A claim, held until this is dropped.
pub(crate) struct Claim<T: ?Sized>(Arc<Claimable<T>>);

impl<T: ?Sized> Claim<T> {
    pub fn new(of: &Arc<Claimable<T>>, noun: &str) -> Result<Self> {
        if of.claimed.swap(true, Ordering::Acquire) {
            let what = format!("another pipeline has this {noun}: free that first");
            return Err(Error::Busy { what }.into());
        }
        Ok(Self(of.clone()))
    }
}

impl<T: ?Sized> Drop for Claim<T> {
    fn drop(&mut self) {
        self.0.claimed.store(false, Ordering::Release);
    }
}

/// One end of a pipeline: a callback, or a source or sink of the library with the index of the slot's buffer that it
/// uses.
pub(crate) enum PipelineEnd<F, C> {
    Function(F),
    Claim(C, usize),
}

impl<F, C> PipelineEnd<F, C> {
    /// Exactly one of the two must be given.
    pub fn choose<N: Noun>(
        noun: &'static str,
        function: Option<F>,
        handle: N,
        claim: impl FnOnce(&N::Object) -> Result<C>,
    ) -> Result<Self> {
        match (function, handle.id()) {
            (Some(function), 0) => Ok(PipelineEnd::Function(function)),
            (Some(_), _) => {
                Err(Fault::invalid(format!("two {noun}s: give the function, or the handle")))
            }
            (None, 0) => Err(Fault::Null(noun)),
            (None, _) => Ok(PipelineEnd::Claim(claim(&*handle.get()?)?, 0)),
        }
    }

    /// Checks the index of the buffer against the number of buffers.
    pub fn of(self, buffer: usize, count: usize) -> Result<Self> {
        match self {
            PipelineEnd::Claim(..) if buffer >= count => {
                Err(Fault::invalid(format!("buffer {buffer} of a slot that has {count}")))
            }
            PipelineEnd::Claim(claim, _) => Ok(PipelineEnd::Claim(claim, buffer)),
            PipelineEnd::Function(function) => Ok(PipelineEnd::Function(function)),
        }
    }
}

impl FrameSource<u8> for Claim<Feed> {
    fn fill(&mut self, frame: &mut [u8]) -> onebuf::Result<Filled> {
        lock(&self.0.inner).fill(frame)
    }
}

impl Sink<u8> for Claim<Drain> {
    fn take(&mut self, frame: &[u8], number: u64) -> onebuf::Result<()> {
        lock(&self.0.inner).take(frame, number)
    }
}

pub(crate) fn lock<T: ?Sized>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
