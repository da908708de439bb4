//! Reports each call and each object to the probe.

use super::API;
use crate::{Error, Result, locks::Arc};
use onebuf_sys::Probe;

/// The probe, if there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch(Option<Arc<Probe>>);

impl Watch {
    pub(super) fn new(probe: Option<Arc<Probe>>) -> Self {
        Watch(probe)
    }

    /// Reports a call; an error if the probe makes it fail.
    pub(super) fn call(&self, call: &'static str) -> Result<()> {
        if onebuf_sys::fork::is_child() {
            return Err(Error::forked(API.0));
        }
        let Some(probe) = &self.0 else { return Ok(()) };
        probe.enter(call).map_err(|code| Error::Driver {
            api: API.0,
            call,
            code,
            name: "INJECTED".to_owned(),
        })
    }

    /// Reports a call that does its work even if the probe makes it fail, as a release must.
    pub(super) fn call_regardless(&self, call: &'static str) {
        if let Err(error) = self.call(call) {
            tracing::debug!("{error}");
        }
    }

    /// Reports an object for as long as the result lives; `release` is the call that ends it.
    pub(super) fn object(&self, kind: &'static str, release: &'static str) -> Live {
        if let Some(probe) = &self.0 {
            probe.count(kind, 1);
        }
        Live { watch: self.clone(), kind, release }
    }
}

/// An object that the probe counts as live.
#[derive(Debug)]
pub(super) struct Live {
    watch: Watch,
    kind: &'static str,
    release: &'static str,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.watch.call_regardless(self.release);
        if let Some(probe) = &self.watch.0 {
            probe.count(self.kind, -1);
        }
    }
}
