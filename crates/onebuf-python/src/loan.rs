//! A buffer that is lent to a device: other libraries' streams use it there.
//!
//! A CUDA or HIP device has at most one guard of a buffer, on a queue of onebuf's. Its users are DLPack consumers and views, each with its own
//! stream. A user's stream waits for that queue when the use begins, and that queue waits for the user's stream when it ends, on
//! whatever thread that happens, with or without the interpreter. Both waits happen on the device. The last user's end is left for later if its
//! stream exists as long as the process, or is kept: the loan rests, until anything else uses the buffer.
//!
//! # Safety
//! A guard borrows the queue and the buffer. The queue is kept beside it, and the buffer belongs to the `Root` that has the loan and drops it
//! first.

use crate::{
    error::Result,
    stream::{self, Borrower},
};
use onebuf::{Buffer, Device, Error, Queue, ReadView, WriteView, hal::RawHandle};
use std::{collections::BTreeMap, sync::Arc};

/// What a device has of a buffer, and its users by number.
pub(crate) struct Loan {
    /// Dropped first.
    #[expect(dead_code, reason = "kept for its drop")]
    guard: LoanGuard,
    queue: Arc<Queue>,
    device: Device,
    address: usize,
    writable: bool,
    users: BTreeMap<u64, User>,
    /// Without users: the last one, whose work is waited for when another comes. A library that gets the buffer again, in the same stream,
    /// waits for nothing.
    rests: Option<Borrower>,
    /// The stream that waited for the loan's queue last, if nothing was enqueued there since.
    level: Option<usize>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.awake();
    }
}

struct User {
    who: &'static str,
    borrower: Borrower,
}

/// A view whose lifetime is extended: see the head of this file.
enum LoanGuard {
    Read(ReadView<'static, u8>),
    Write(WriteView<'static, u8>),
}

impl LoanGuard {
    /// # Safety
    /// The guard is dropped before the queue and the buffer, which do not move.
    unsafe fn take(buffer: &Buffer<u8>, queue: &Arc<Queue>, write: bool) -> Result<(Self, usize)> {
        // SAFETY: both stay in place, and outlive the guard as the caller promises.
        let (queue, buffer): (&'static Queue, &'static Buffer<u8>) =
            unsafe { (&*Arc::as_ptr(queue), &*std::ptr::from_ref(buffer)) };
        let guard = match write {
            true => LoanGuard::Write(buffer.write_on(queue)?),
            false => LoanGuard::Read(buffer.read_on(queue)?),
        };
        let raw = match &guard {
            LoanGuard::Read(view) => view.raw()?,
            LoanGuard::Write(view) => view.raw()?,
        };
        match raw {
            RawHandle::Address(address) => Ok((guard, address)),
            RawHandle::Object(_) => Err(Error::unsupported(
                "an address of this buffer",
                "memory that the device addresses",
            )
            .into()),
        }
    }
}

impl Loan {
    /// Opens a loan.
    ///
    /// # Safety
    /// The buffer does not move, and is dropped after the loan.
    pub unsafe fn open(
        buffer: &Buffer<u8>,
        device: &Device,
        queue: Option<Queue>,
        write: bool,
    ) -> Result<Self> {
        let queue = Arc::new(queue.map_or_else(|| device.lending_queue(), Ok)?);
        // SAFETY: the fields of a loan are dropped in order; the caller's promise.
        let (guard, address) = unsafe { LoanGuard::take(buffer, &queue, write)? };
        let (device, users, rests, level) = (device.clone(), BTreeMap::new(), None, None);
        Ok(Self { guard, queue, device, address, writable: write, users, rests, level })
    }

    /// The first byte, at the address that the device uses.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Whether nothing has to be done when a user comes.
    pub fn is_over(&self) -> bool {
        self.users.is_empty() && self.rests.is_none()
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn writable(&self) -> bool {
        self.writable
    }

    pub fn users(&self) -> usize {
        self.users.len()
    }

    /// Who has the buffer.
    pub fn said(&self) -> String {
        let mut names: Vec<_> = self.users.values().map(|user| user.who).collect();
        names.sort_unstable();
        names.dedup();
        format!("the buffer is lent to {} ({})", self.device.id(), names.join(", "))
    }

    /// Whether it has no users, and only waits for the next one.
    pub fn is_at_rest(&self) -> bool {
        self.users.is_empty()
    }

    /// Adds a user, whose stream waits for the work before it.
    pub fn begin(&mut self, number: u64, who: &'static str, borrower: Borrower) -> Result<()> {
        let goes_on = borrower.handle.is_some() && borrower.handle == self.level;
        match self.rests.take() {
            // Its own work is all that the stream would wait for.
            Some(rests) if goes_on && rests.handle == borrower.handle => {}
            rests => {
                self.rests = rests;
                self.awake();
                if let Some(queue) = &borrower.queue {
                    queue.wait_for(&self.queue.fence())?;
                    queue.flush()?;
                    self.level = borrower.handle;
                }
            }
        }
        self.users.insert(number, User { who, borrower });
        Ok(())
    }

    /// Ends a use: the loan's queue waits for the user's stream, now or when another user comes.
    pub fn end(&mut self, number: u64) -> Result<()> {
        let Some(User { borrower, .. }) = self.users.remove(&number) else { return Ok(()) };
        if self.users.is_empty() && borrower.stays {
            self.rests = Some(borrower);
            return Ok(());
        }
        self.ended(borrower)
    }

    /// Makes the loan's queue wait for the last user, if that was left for later.
    fn awake(&mut self) {
        if let Some(borrower) = self.rests.take()
            && let Err(why) = self.ended(borrower)
        {
            why.log("the work of a lent buffer's borrower cannot be waited for");
        }
    }

    fn ended(&mut self, borrower: Borrower) -> Result<()> {
        self.level = None;
        if borrower.by_default {
            return self.wait_for(&stream::default(&self.device)?);
        }
        let Some(queue) = borrower.queue else { return Ok(()) };
        // A stream that takes no event any more: the default stream may cover its work.
        self.wait_for(&queue).or_else(|_| self.wait_for(&stream::default(&self.device)?))
    }

    fn wait_for(&self, queue: &Queue) -> Result<()> {
        self.queue.wait_for(&queue.fence())?;
        Ok(self.queue.flush()?)
    }

    /// Makes the loan's queue, and so its next users, wait for what a queue does so far.
    pub fn comes_after(&mut self, queue: &Queue) -> Result<()> {
        self.level = None;
        self.wait_for(queue)
    }

    /// Makes a queue wait for what the users' streams do so far.
    pub fn follow(&self, queue: &Queue) -> Result<()> {
        self.streams().try_for_each(|theirs| Ok(queue.wait_for(&theirs?.fence()).map(drop)?))
    }

    /// Makes the users' streams wait for what a queue does so far.
    pub fn lead(&self, queue: &Queue) -> Result<()> {
        self.streams().try_for_each(|theirs| Ok(theirs?.wait_for(&queue.fence()).map(drop)?))
    }

    /// The streams of the users; the default stream for one that this thread cannot use.
    fn streams(&self) -> impl Iterator<Item = Result<Queue>> {
        self.users.values().map(|user| match &user.borrower.queue {
            Some(queue) if !user.borrower.by_default => Ok(queue.clone()),
            _ => stream::default(&self.device),
        })
    }
}
