//! Work that was over before anybody could ask.

use crate::{
    Error, Result,
    hal::{Callback, Domain, Event},
};
use std::{any::Any, time::Duration};

/// An event that was reached when it was made.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) domain: Domain,
}

impl Event for Done {
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

    fn on_complete(&self, callback: Callback) -> Result<(), (Error, Callback)> {
        callback(Ok(()));
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
