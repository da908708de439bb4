//! Events: points in a queue that can be waited for.

#![allow(unsafe_code)] // See the head of `lib.rs`.

use crate::API;
use onebuf_hal::{Callback, Domain, Error, Event, Profile, Result, locks::lock};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// An event that its queue completes once and any number of threads can wait for.
#[derive(Clone, Debug)]
pub struct ToyEvent {
    domain: Domain,
    end: Arc<(Mutex<Option<End>>, Condvar)>,
}

/// The result of the event's work, and its times if the queue was opened for profiling.
type End = (Result<()>, Option<Profile>);

impl ToyEvent {
    pub(crate) fn new(domain: Domain) -> Self {
        Self { domain, end: Arc::default() }
    }

    pub(crate) fn complete(&self, outcome: Result<()>, profile: Option<Profile>) {
        *lock(&self.end.0) = Some((outcome, profile));
        self.end.1.notify_all();
    }
}

// SAFETY: the event is completed once, after its work and all earlier work of the queue has ended.
unsafe impl Event for ToyEvent {
    fn domain(&self) -> Domain {
        self.domain
    }

    fn poll(&self) -> Result<bool> {
        lock(&self.end.0).clone().map_or(Ok(false), |(outcome, _)| outcome.map(|()| true))
    }

    fn is_over(&self) -> bool {
        lock(&self.end.0).is_some()
    }

    fn wait(&self, timeout: Duration) -> Result<()> {
        let waited = self.end.1.wait_timeout_while(lock(&self.end.0), timeout, |end| end.is_none());
        let (end, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        let late = || Err(Error::timeout(format!("an event of {API}"), timeout));
        end.as_ref().map_or_else(late, |(outcome, _)| outcome.clone())
    }

    fn profile(&self) -> Result<Profile> {
        let busy = || Error::Busy { what: "the work is not done: wait for it first".into() };
        let (_, profile) = lock(&self.end.0).clone().ok_or_else(busy)?;
        profile.ok_or_else(|| Error::unsupported("a profile", "a queue opened with profiling"))
    }

    fn on_complete(&self, callback: Callback) -> Result<(), (Error, Callback)> {
        Err((Error::unsupported(format!("a callback on {API}"), "`Caps::callbacks`"), callback))
    }
}
