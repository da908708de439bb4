//! Host signals, implemented as user events.
//!
//! Drivers differ in how waiting work observes a failed user event: rusticl 22.3 completes a marker after a failed user
//! event as if it had succeeded, and on PoCL a user event [must not
//! fail](super::quirks::Quirks::cannot_fail_host_signals) at all. So [events check](Behind) host signals themselves.

use super::{
    conv,
    event::{Event, RawEvent},
    queue::RawQueue,
};
use onebuf_hal::{
    self as hal, Error, Result,
    host_signals::{Behind, Outcome},
    locks::Arc,
};
use onebuf_sys::opencl::consts as cl;

/// A user event that a queue waits for. Completed exactly once: when opened or when dropped.
pub(super) struct HostSignal {
    event: RawEvent,
    outcome: Arc<Outcome>,
    settled: bool,
}

impl HostSignal {
    /// Creates a host signal and makes later work of the queue wait for it.
    pub fn new(queue: &Arc<RawQueue>) -> Result<HostSignal> {
        let mut host_signal = HostSignal::shut(queue)?;
        // Before the wait, so that every event after the wait has it.
        queue.host_signals.push(host_signal.outcome.clone());
        // If the call fails, the host signal is opened, in case the wait was enqueued after all.
        queue.wait_list(&[host_signal.event.raw]).inspect_err(|_| host_signal.settle(true))?;
        Ok(host_signal)
    }

    /// Creates a host signal that no queue waits for yet, and the event to wait for.
    pub fn apart(queue: &Arc<RawQueue>) -> Result<(HostSignal, Event)> {
        let host_signal = HostSignal::shut(queue)?;
        let behind = Behind::one(&host_signal.outcome);
        // SAFETY: a live event of the queue's context.
        let event = unsafe { Event::retained(queue.clone(), host_signal.event.raw, true, behind) }?;
        Ok((host_signal, event))
    }

    fn shut(queue: &Arc<RawQueue>) -> Result<HostSignal> {
        let driver = queue.driver();
        if !driver.info.caps.host_signals {
            let needs = "a driver whose commands can wait for the host";
            return Err(Error::unsupported(
                format!("a host signal on {}", driver.info.name),
                needs,
            ));
        }
        // SAFETY: a live context.
        let made = unsafe { driver.cl.create_user_event(queue.context.raw) };
        let raw = driver.check("clCreateUserEvent", made)?;
        let event = RawEvent { queue: queue.clone(), raw, behind: Behind::default() };
        Ok(HostSignal { event, outcome: Arc::default(), settled: false })
    }

    fn settle(&mut self, opened: bool) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        self.outcome.settle(opened);
        let driver = self.event.driver();
        let opens = opened || driver.quirks.cannot_fail_host_signals;
        let status = if opens { cl::CL_COMPLETE } else { conv::HOST_SIGNAL_FAILED };
        // SAFETY: a live user event whose status was not set before.
        let set = unsafe { driver.cl.set_user_event_status(self.event.raw, status) };
        driver.note("clSetUserEventStatus", set);
    }
}

impl hal::HostSignal for HostSignal {
    fn open(mut self: Box<Self>, outcome: Result<()>) {
        self.settle(outcome.is_ok());
    }
}

impl Drop for HostSignal {
    fn drop(&mut self) {
        self.settle(false);
    }
}
