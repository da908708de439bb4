//! Contexts that somebody else made, as devices of a hub.

use super::{
    ForeignContextInfo, UserEvent,
    other::{EntryDevice, Newcomer, Other, Others},
    registry::{ByHandle, Wrapped},
};
use crate::{
    Error, Hub, Queue, Result,
    backend::opencl::{self, OpenCl, foreign},
    device::Device,
    hal::{self, AllocSpec},
    hub::WeakHub,
    plan::{Plan, Request, plan},
    queue::QueueState,
    sync::{Arc, Mutex, lock},
    topology::{DeviceIx, Topology},
};
use std::{ffi::c_void, fmt, slice, sync::Weak};

/// The OpenCL devices that were found.
pub(crate) struct Known {
    pub cl: Arc<OpenCl>,
    pub devices: Vec<Arc<opencl::Device>>,
    /// The index of the first.
    pub first: usize,
}

/// What a hub knows of foreign objects.
pub(crate) struct ForeignDevices {
    known: Option<Known>,
    pub(super) others: Others,
    /// How many devices were found: those of foreign devices come after them.
    found: usize,
    contexts: Mutex<ByHandle<Weak<Registration>>>,
    entries: Mutex<Vec<ForeignEntry>>,
    pub wrapped: Arc<Wrapped>,
    /// The last plan for memory of others: who wraps one memory wraps more like it.
    planned: Mutex<Option<(Request, Arc<Plan>)>>,
}

/// A place of the device table for one device of a foreign context. It stays when the context goes.
struct ForeignEntry {
    ix: DeviceIx,
    device: EntryDevice,
    taken: bool,
    /// Whose it is while it is taken.
    registration: Weak<Registration>,
}

impl ForeignDevices {
    pub fn new(known: Option<Known>, others: Others, found: usize) -> Self {
        let (contexts, entries) = (Mutex::default(), Mutex::default());
        let (wrapped, planned) = (Arc::default(), Mutex::default());
        Self { known, others, found, contexts, entries, wrapped, planned }
    }

    pub fn known(&self) -> Result<&Known> {
        self.known.as_ref().ok_or_else(|| Error::Unavailable {
            what: "OpenCL, for foreign objects".to_owned(),
            tried: Vec::new(),
            reason: "this hub found none; see `Hub::unavailable`".to_owned(),
        })
    }

    /// What keeps the context of a foreign device's device; nothing for a device that was found.
    pub fn of(&self, device: DeviceIx) -> Option<Arc<Registration>> {
        // Device entries are taken into the list in the order of their indices.
        let entry = device.get().checked_sub(self.found)?;
        lock(&self.entries).get(entry)?.registration.upgrade()
    }

    /// The device entries of a context are whose it is.
    fn assign_all(&self, registered: &Arc<Registration>) {
        let mut entries = lock(&self.entries);
        for entry in entries.iter_mut().filter(|entry| registered.devices.contains(&entry.ix)) {
            entry.registration = Arc::downgrade(registered);
        }
    }

    /// How memory of others is shared with devices beside its own. What was planned once stays right: topologies only grow,
    /// and the request says who has the memory.
    pub fn plan(&self, topology: &Topology, beside: &Request) -> Result<Arc<Plan>> {
        if let Some((asked, plan)) = &*lock(&self.planned)
            && asked == beside
        {
            return Ok(plan.clone());
        }
        let plan = Arc::new(plan(topology, &beside.with_home())?);
        *lock(&self.planned) = Some((beside.clone(), plan.clone()));
        Ok(plan)
    }

    fn free(&self, entries: &[DeviceIx]) {
        let mut all = lock(&self.entries);
        all.iter_mut()
            .filter(|entry| entries.contains(&entry.ix))
            .for_each(|entry| entry.taken = false);
    }
}

impl Known {
    /// Whose own context it is.
    fn owner_of(&self, context: usize) -> Option<DeviceIx> {
        let at = self.devices.iter().position(|device| device.owns(context))?;
        Some(DeviceIx((self.first + at) as u16))
    }
}

/// Members that leave their device entries again, unless all of them have one.
struct Joining<'g> {
    foreign_devices: &'g ForeignDevices,
    members: Vec<Member>,
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        let entries: Vec<_> = self.members.drain(..).map(|member| member.ix).collect();
        self.foreign_devices.free(&entries);
    }
}

/// A foreign context while anybody uses it: the one reference that the hub has to it.
pub(crate) struct Registration {
    hub: WeakHub,
    raw: usize,
    members: Vec<Member>,
    /// What it is where it is not OpenCL's.
    other: Option<Other>,
    /// Their places in the hub's list.
    devices: Vec<DeviceIx>,
}

/// One device of a foreign context.
struct Member {
    /// The driver's handle.
    raw: usize,
    ix: DeviceIx,
    device: Arc<opencl::Device>,
    /// Keeps the context.
    registration: foreign::ForeignDevice,
}

impl Registration {
    fn at(&self, device: DeviceIx) -> Option<&Member> {
        self.members.iter().find(|member| member.ix == device)
    }

    /// What it is, of an API other than OpenCL.
    pub(super) fn other(&self) -> Option<&Other> {
        self.other.as_ref()
    }

    /// Its first device.
    pub(super) fn first(&self) -> DeviceIx {
        self.devices[0]
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(hub) = self.hub.upgrade() else { return };
        let entries = std::mem::take(&mut self.devices);
        for ix in &entries {
            hub.programs().forget(*ix);
            hub.entry(*ix).clear();
        }
        let foreign_devices = hub.foreign_devices();
        let mut contexts = lock(&foreign_devices.contexts);
        // Somebody may have registered it again meanwhile.
        if contexts.get(&self.raw).is_some_and(|weak| weak.strong_count() == 0) {
            contexts.remove(&self.raw);
        }
        drop(contexts);
        self.members.clear();
        self.other = None;
        // Somebody may have opened a queue there meanwhile.
        entries.iter().for_each(|ix| hub.entry(*ix).clear());
        foreign_devices.free(&entries);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({:#x}, ", self.raw)?;
        f.debug_list().entries(&self.devices).finish()?;
        f.write_str(")")
    }
}

/// Whose context something belongs to.
#[derive(Clone)]
pub(super) enum Whose {
    /// This hub's, of that device.
    Own(DeviceIx),
    /// Somebody else's.
    ForeignDevice(Arc<Registration>),
}

impl Whose {
    /// Every device of it.
    pub fn devices(&self) -> &[DeviceIx] {
        match self {
            Whose::Own(ix) => slice::from_ref(ix),
            Whose::ForeignDevice(registration) => &registration.devices,
        }
    }

    pub fn registration(&self) -> Option<Arc<Registration>> {
        match self {
            Whose::Own(_) => None,
            Whose::ForeignDevice(registration) => Some(registration.clone()),
        }
    }

    /// One of its devices.
    pub fn device<'a>(&'a self, hub: &'a Hub, ix: DeviceIx) -> Result<&'a opencl::Device> {
        let known = hub.foreign_devices().known()?;
        let device = match self {
            Whose::Own(_) => known.devices.get(ix.get() - known.first).map(|device| &**device),
            Whose::ForeignDevice(registration) => registration.at(ix).map(|member| &*member.device),
        };
        device.ok_or_else(|| Error::invalid("a device that is not of this context"))
    }

    /// Memory of this context, at home on its first device.
    ///
    /// # Safety
    /// A live buffer of this context that is no part of another.
    pub unsafe fn wrap_memory(
        &self,
        hub: &Hub,
        raw: usize,
        spec: &AllocSpec,
        flags: u64,
    ) -> Result<Arc<dyn hal::Memory>> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Whose::Own(ix) => self.device(hub, *ix)?.wrap_memory(raw, spec, flags),
                Whose::ForeignDevice(registration) => {
                    registration.members[0].registration.wrap_memory(raw, spec, flags)
                }
            }
        }
    }

    /// The device that the driver knows by this handle.
    pub fn index_of(&self, device: usize) -> Result<DeviceIx> {
        let found = match self {
            Whose::Own(ix) => Some(*ix),
            Whose::ForeignDevice(registration) => {
                registration.members.iter().find(|member| member.raw == device).map(|m| m.ix)
            }
        };
        found.ok_or_else(|| Error::invalid("a queue whose device is not of its context"))
    }
}

/// A context that somebody else made, registered with a hub while this, or anything made in it, lives.
/// Cheap to clone.
#[derive(Clone)]
pub struct ForeignContext {
    hub: Hub,
    raw: usize,
    pub(super) whose: Whose,
}

impl Hub {
    /// Registers a context that somebody else made. Its devices become devices of the hub: queues and
    /// programs of ours can be made in it, buffers shared with it. The same context again is the same
    /// registration; it is given up when everything that was made in it is gone.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what the driver knows to be none; [`Error::Busy`] when the hub has
    /// no device entry left for another device; [`Error::Unavailable`] for a hub without OpenCL.
    ///
    /// # Safety
    /// Null, or a live `cl_context` of the OpenCL library that this hub has loaded.
    pub unsafe fn foreign_context(&self, context: *mut c_void) -> Result<ForeignContext> {
        let raw = context.addr();
        // SAFETY: the caller's promise.
        let whose = unsafe { self.whose(raw) }?;
        Ok(ForeignContext { hub: self.clone(), raw, whose })
    }

    /// A queue that somebody else made, in their context, to be used like one of ours. What its owner
    /// enqueues there is in order with what we do; [`Queue::fence`] covers both.
    ///
    /// # Errors
    /// As for [`Hub::foreign_context`].
    ///
    /// # Safety
    /// Null, or a live `cl_command_queue` of the OpenCL library that this hub has loaded.
    pub unsafe fn wrap_queue(&self, queue: *mut c_void) -> Result<Queue> {
        let (cl, raw) = (&self.foreign_devices().known()?.cl, queue.addr());
        // SAFETY: the caller's promise.
        let facts = unsafe { foreign::queue(cl, raw) }?;
        // SAFETY: a live queue has a live context.
        let whose = unsafe { self.whose(facts.context) }?;
        let ix = whose.index_of(facts.device)?;
        // SAFETY: as above; its device and context are these.
        let native = unsafe { whose.device(self, ix)?.wrap_queue(raw, facts.spec) }?;
        let queue_state =
            QueueState::of(ix, native, self.hal(ix), facts.spec, whose.registration());
        let queue_state = queue_state.traced(self.tracer()).foreign();
        Ok(Queue { hub: self.clone(), queue_state: Arc::new(queue_state) })
    }

    /// The device in a second context, as if somebody else had made it: for finding out how foreign
    /// buffers on it can be shared, and for libraries that must stay apart.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a device without contexts; [`Error::Busy`] when no device entry is left.
    pub fn second_context(&self, device: &Device) -> Result<ForeignContext> {
        let known = self.foreign_devices().known()?;
        if !device.hub().is(self) {
            return Err(Error::invalid(format!("device {device} belongs to another hub")));
        }
        let at = device.index().get().checked_sub(known.first);
        let own = at.and_then(|at| known.devices.get(at)).ok_or_else(|| {
            Error::unsupported(format!("a second context on {device}"), "an OpenCL device")
        })?;
        let context = own.second_context()?;
        // SAFETY: it lives until it is dropped, here.
        unsafe { self.foreign_context(context.raw() as *mut c_void) }
    }

    /// Whose context it is; registers it if it is nobody's yet.
    ///
    /// # Safety
    /// Null, or a live context.
    pub(super) unsafe fn whose(&self, context: usize) -> Result<Whose> {
        let known = self.foreign_devices().known()?;
        let mut contexts = lock(&self.foreign_devices().contexts);
        if let Some(registered) = contexts.get(&context).and_then(Weak::upgrade) {
            return Ok(Whose::ForeignDevice(registered));
        }
        if let Some(own) = known.owner_of(context) {
            return Ok(Whose::Own(own));
        }
        // SAFETY: the caller's promise.
        let registered = Arc::new(unsafe { self.register(known, context) }?);
        contexts.insert(context, Arc::downgrade(&registered));
        self.foreign_devices().assign_all(&registered);
        Ok(Whose::ForeignDevice(registered))
    }

    /// A context of one device, of another API than OpenCL: registered by its handle if it is not yet.
    pub(super) fn registered(
        &self,
        raw: usize,
        adopt: impl FnOnce() -> Result<Newcomer>,
    ) -> Result<Arc<Registration>> {
        let mut contexts = lock(&self.foreign_devices().contexts);
        if let Some(registered) = contexts.get(&raw).and_then(Weak::upgrade) {
            return Ok(registered);
        }
        let Newcomer { device, other, known_as } = adopt()?;
        let ix = self.entry_for(&device, &other, &known_as)?;
        let (hub, members, devices) = (self.downgrade(), Vec::new(), vec![ix]);
        let registered = Arc::new(Registration { hub, raw, members, other: Some(other), devices });
        contexts.insert(raw, Arc::downgrade(&registered));
        self.foreign_devices().assign_all(&registered);
        Ok(registered)
    }

    /// A device entry for it: one that was left by another of the same device, or a new one.
    fn entry_for(&self, device: &EntryDevice, other: &Other, known_as: &str) -> Result<DeviceIx> {
        let mut entries = lock(&self.foreign_devices().entries);
        let same = |entry: &&mut ForeignEntry| {
            !entry.taken && self.topology().node(entry.ix).info == *device.hal().info()
        };
        if let Some(entry) = entries.iter_mut().find(same) {
            other.sit(&entry.device);
            entry.taken = true;
            return Ok(entry.ix);
        }
        other.sit(device);
        let ix = self.device_table().add(device.hal(), known_as)?;
        self.ledger().name(ix, &self.topology().node(ix).id);
        entries.push(ForeignEntry {
            ix,
            device: device.clone(),
            taken: true,
            registration: Weak::new(),
        });
        Ok(ix)
    }

    /// # Safety
    /// Null, or a live context.
    unsafe fn register(&self, known: &Known, context: usize) -> Result<Registration> {
        // SAFETY: the caller's promise.
        let facts = unsafe { foreign::context(&known.cl, context) }?;
        let (domain, ids) = (self.new_domain(), Arc::default());
        let mut joining = Joining { foreign_devices: self.foreign_devices(), members: Vec::new() };
        for raw in facts.devices {
            let (ix, device) = self.foreign_entry(known, raw)?;
            // SAFETY: a live context, and one of its devices.
            let registration = unsafe { device.host_foreign_device(raw, context, domain, &ids) };
            let registration = registration.inspect_err(|_| self.foreign_devices().free(&[ix]))?;
            joining.members.push(Member { raw, ix, device, registration });
        }
        let members = std::mem::take(&mut joining.members);
        if members.is_empty() {
            return Err(Error::invalid("a cl_context without devices"));
        }
        let devices = members.iter().map(|member| member.ix).collect();
        let (hub, other) = (self.downgrade(), None);
        Ok(Registration { hub, raw: context, members, other, devices })
    }

    /// A device entry for one more context of a device: one that was left, or a new one.
    fn foreign_entry(&self, known: &Known, raw: usize) -> Result<(DeviceIx, Arc<opencl::Device>)> {
        let at = known.devices.iter().position(|device| device.is(raw));
        let (device, id) = match at {
            Some(at) => {
                let id = &self.topology().nodes()[known.first + at].id;
                (known.devices[at].another(), id.as_str())
            }
            None => (opencl::Device::unlisted(&known.cl, raw)?, opencl::API.0),
        };
        let mut entries = lock(&self.foreign_devices().entries);
        // Parts of devices come and go under new handles: one is as good as another that is the same.
        let same = |entry: &ForeignEntry, own: &opencl::Device| match at {
            Some(_) => own.is(raw),
            None => self.topology().node(entry.ix).info == *hal::Device::info(&device),
        };
        for entry in entries.iter_mut().filter(|entry| !entry.taken) {
            if let Some(own) = entry.device.opencl().filter(|own| same(entry, own)).cloned() {
                entry.taken = true;
                return Ok((entry.ix, own));
            }
        }
        let device = Arc::new(device);
        let ix = self.device_table().add(device.clone(), id)?;
        self.ledger().name(ix, &self.topology().node(ix).id);
        let entry_device = EntryDevice::OpenCl(device.clone());
        entries.push(ForeignEntry {
            ix,
            device: entry_device,
            taken: true,
            registration: Weak::new(),
        });
        Ok((ix, device))
    }
}

impl ForeignContext {
    /// Its devices, as devices of the hub.
    pub fn devices(&self) -> Vec<Device> {
        self.whose.devices().iter().map(|ix| Device::new(&self.hub, *ix)).collect()
    }

    /// Its first device; most contexts have but one.
    pub fn device(&self) -> Device {
        Device::new(&self.hub, self.whose.devices()[0])
    }

    /// What the driver says of it now.
    pub fn info(&self) -> Result<ForeignContextInfo> {
        // SAFETY: it is held by the registration, or our own.
        unsafe { ForeignContextInfo::query(&self.hub, self.raw()) }
    }

    /// The `cl_context`.
    pub fn raw(&self) -> *mut c_void {
        self.raw as *mut c_void
    }

    /// The hub that it is registered with.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// An event of this context that the host completes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the driver cannot wait for the host.
    pub fn user_event(&self) -> Result<UserEvent> {
        UserEvent::new(&self.hub, &self.whose)
    }
}

impl fmt::Debug for ForeignContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForeignContext").field(&self.devices()).finish()
    }
}
