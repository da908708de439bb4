//! Lending a buffer to a device, and giving it back.

use crate::{
    ending::detached,
    error::{Fault, Result},
    known,
    loan::Loan,
    root::{Root, read_only},
    stream::Borrower,
};
use onebuf::{Device, Error, Queue};
use pyo3::prelude::*;
use std::sync::Arc;

impl Root {
    /// Lends the buffer to a device, or adds a user to the loan. `queue` is the loan's queue, if it is a new one.
    pub fn lend_to(
        self: &Arc<Self>,
        py: Python<'_>,
        device: &Device,
        queue: Option<Queue>,
        write: bool,
        who: &'static str,
        borrower: Borrower,
    ) -> Result<DeviceUse> {
        if write && self.read_only {
            return Err(read_only());
        }
        if self.lent_to().is_none() {
            self.settle_for(py, device.index(), write)?;
        }
        detached(py, || self.lend_to_now(device, queue, write, who, borrower))
    }

    /// Lends the buffer, without waits that a signal ends.
    pub fn lend_to_now(
        self: &Arc<Self>,
        device: &Device,
        queue: Option<Queue>,
        write: bool,
        who: &'static str,
        borrower: Borrower,
    ) -> Result<DeviceUse> {
        let mut side = self.side();
        let goes_on = |loan: &Loan| {
            loan.is_at_rest() && loan.device().index() == device.index() && loan.writable() == write
        };
        if !side.loan.as_ref().is_some_and(goes_on) {
            side.check(device, write)?;
        }
        let mut loan = match side.loan.take() {
            Some(loan) if write && !loan.writable() => {
                let said = loan.said();
                side.loan = Some(loan);
                return Err(Fault::busy(format!("{said}: it has it for reading only")));
            }
            Some(loan) => loan,
            // SAFETY: the root has both, behind an `Arc`, and drops the loan first.
            None => unsafe { Loan::open(&self.buffer, device, queue, write)? },
        };
        let number = side.next;
        side.next += 1;
        let begun = loan.begin(number, who, borrower);
        let address = loan.address();
        // Without users nothing would end it.
        side.loan = Some(loan).filter(|loan| !loan.is_over());
        drop(side);
        begun?;
        if !self.is_wrapped {
            known::add(self, address);
        }
        Ok(DeviceUse { root: Some(self.clone()), number, address })
    }

    /// The device that has the buffer.
    pub fn lent_to(&self) -> Option<Device> {
        let side = self.side();
        let loan = side.loan.as_ref().filter(|loan| !loan.is_at_rest());
        loan.map(|loan| loan.device().clone())
    }

    /// Ends a loan without users, so that the buffer's fences cover the work of the last one.
    pub fn awake(&self) {
        self.side().awake();
    }

    /// Orders a queue with the users' streams, for a launch on the device that has the buffer: `before` it the queue waits for their work
    /// so far, and after it they wait for the queue's.
    pub fn order(&self, queue: &Queue, before: bool) -> Result<()> {
        match &self.side().loan {
            Some(loan) if before => loan.follow(queue),
            Some(loan) => loan.lead(queue),
            None => Ok(()),
        }
    }

    /// Orders the next users of wrapped memory after what its owner has enqueued in a queue so far.
    pub fn goes_on_after(&self, queue: &Queue) -> Result<()> {
        let mut side = self.side();
        side.awake();
        if let Some(loan) = &mut side.loan {
            return loan.comes_after(queue);
        }
        match self.buffer.written_until(&queue.fence()) {
            // The host or another device has it: the owner must not have written it.
            Ok(()) | Err(Error::Busy { .. }) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }

    fn end_use(&self, number: u64) -> Result<()> {
        let mut side = self.side();
        let Some(loan) = &mut side.loan else { return Ok(()) };
        let ended = loan.end(number);
        if loan.is_over() {
            // With the lock held: the next user's guard must not meet this one.
            side.loan = None;
        }
        ended
    }
}

/// A user of a device's loan. Dropping it ends the use, on any thread.
pub(crate) struct DeviceUse {
    /// Empty after the end.
    root: Option<Arc<Root>>,
    number: u64,
    pub address: usize,
}

impl DeviceUse {
    pub fn root(&self) -> Option<&Arc<Root>> {
        self.root.as_ref()
    }
}

impl Drop for DeviceUse {
    fn drop(&mut self) {
        if let Some(root) = self.root.take()
            && let Err(why) = root.end_use(self.number)
        {
            // Neither the consumer nor the interpreter can be told here.
            why.log("a lent buffer was given back, and its borrower's work cannot be waited for");
        }
    }
}
