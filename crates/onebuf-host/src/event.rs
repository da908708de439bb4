//! Events of work that is already done.
//!
//! # Safety
//! The event keeps `hal`'s contract by construction: see the `SAFETY` comment.

#![allow(unsafe_code)]

use onebuf_hal::{Callback, Domain, Error, Event, Profile, Result};
use std::time::Duration;

/// An event that is complete when it is created.
#[derive(Debug)]
pub struct Done {
    pub(super) domain: Domain,
    /// When its work ran, on a queue opened with profiling.
    pub(super) profile: Option<Profile>,
}

// SAFETY: it is created when its work is over.
unsafe impl Event for Done {
    fn domain(&self) -> Domain {
        self.domain
    }

    fn poll(&self) -> Result<bool> {
        Ok(true)
    }

    fn is_over(&self) -> bool {
        true
    }

    fn wait(&self, _timeout: Duration) -> Result<()> {
        Ok(())
    }

    fn profile(&self) -> Result<Profile> {
        let needs = "a queue opened with profiling";
        self.profile.ok_or_else(|| Error::unsupported("the time of work on host", needs))
    }

    fn on_complete(&self, callback: Callback) -> Result<(), (Error, Callback)> {
        callback(Ok(()));
        Ok(())
    }
}
