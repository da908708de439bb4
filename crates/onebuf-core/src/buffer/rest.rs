//! A core between two wraps of the same memory.
//!
//! A library that is handed a pointer wraps it, uses it and drops it, call after call. Making a core for each wrap would take longer than
//! asking the driver about the pointer. So the hub keeps the last cores, at rest: such a core has only the description of the memory, no
//! hub, no queue, no claim. The next wrap asks the driver again, and uses the core if the answer is the same.

use super::{
    Claim, Core, Few,
    alias::HOME,
    core::CoreHub,
    label::Label,
    make::describe,
    state::CoreState,
    transition::{Replica, Uses},
};
use crate::hub::Hub;
use onebuf_hal::{
    SyncMethod,
    locks::{Arc, AtomicU64},
};

impl Core {
    /// Returns the memory to its owner and lets go of everything else. `None` if the core must be dropped instead: it has a
    /// past that the next wrap must not see, or the memory could not be returned. Dropping the claims runs the release callbacks of
    /// the memory's former owners.
    pub(crate) fn rest(&mut self) -> Option<Vec<Claim>> {
        if !self.is_clean() {
            return None;
        }
        let returned = self.return_to_owner();
        if let Some(loan) = &mut self.loan {
            loan.returned = true;
        }
        if !(returned && self.is_clean()) {
            return None;
        }
        self.state_mut().rest();
        self.observers = Default::default();
        self.label.name = None;
        let claims = self.claims.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.hub = CoreHub(None);
        Some(std::mem::take(claims))
    }

    /// Makes the core at rest that of a new buffer.
    pub(crate) fn resume(&mut self, hub: &Hub, name: Option<Arc<str>>) {
        self.hub = CoreHub(Some(hub.clone()));
        if let Some(loan) = &mut self.loan {
            loan.returned = false;
        }
        self.implied = AtomicU64::new(0);
        self.label = Label::new(name);
        let Self { label, bytes, plan, aliases, .. } = &*self;
        self.observers = hub.buffer_observers(|| describe(label, *bytes, plan, aliases));
    }

    /// Whether one device alone has used the memory, and nothing but finished work is left of that.
    fn is_clean(&mut self) -> bool {
        let alone = matches!(&*self.aliases, [home] if home.registration.is_none() && home.spare.get().is_none());
        let tenants = self.tenants.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let empty = tenants.is_empty();
        let state = self.state_mut();
        let kept = state.guard_entries.any() || state.quarantined || state.detached;
        alone && empty && !(kept || state.offered || state.exposed)
    }
}

impl CoreState {
    /// Forgets all uses. The work on the memory is done, or its owner's.
    fn rest(&mut self) {
        self.uses = Uses::default();
        self.queue_states = Few::One(None);
        self.settled = None;
        self.sync_method = SyncMethod::SameQueue;
        self.buffer.replicas[HOME] = Replica::new(true);
    }
}
