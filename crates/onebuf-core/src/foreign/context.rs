//! Foreign contexts as devices of a hub.

use super::registry::{ByHandle, Wrapped};
use crate::{
    device::Device,
    device_table::FOREIGN_MARK,
    hub::{Hub, WeakHub},
    plan::{Plan, Request, plan},
    topology::{DeviceIx, Node, Topology},
};
use onebuf_hal::{
    self as hal, DeviceEntries, Domain, Error, KnownAs, Result,
    locks::{Arc, Mutex, lock},
};
use std::{
    any::Any,
    collections::{BTreeMap, HashMap},
    fmt, slice,
    sync::{
        Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

/// The library of one API, for its foreign objects, and the index of its first device.
pub(crate) struct Loaded {
    pub library: Arc<dyn hal::Library>,
    pub first: usize,
}

/// A hub's foreign contexts, their devices, and wrapped memory.
#[derive(Default)]
#[doc(hidden)]
pub struct ForeignDevices {
    /// The loaded library of each API. There are few, and every wrap looks one up.
    loaded: Vec<(&'static str, Loaded)>,
    contexts: Mutex<ByHandle<Weak<Registration>>>,
    entries: Mutex<Vec<ForeignEntry>>,
    pub(crate) wrapped: Wrapped,
    /// The last plan for foreign memory, since successive wraps are usually alike.
    planned: Mutex<Option<(Request, Arc<Plan>)>>,
}

/// An entry of the device table for one device of a foreign context. It is reused after the context is gone.
struct ForeignEntry {
    ix: DeviceIx,
    device: Arc<dyn hal::Device>,
    taken: bool,
}

impl ForeignDevices {
    pub(crate) fn new(loaded: BTreeMap<&'static str, Loaded>) -> Self {
        Self { loaded: loaded.into_iter().collect(), ..Self::default() }
    }

    #[inline]
    fn loaded(&self, api: &str) -> Option<&Loaded> {
        self.loaded.iter().find(|(name, _)| *name == api).map(|(_, loaded)| loaded)
    }

    /// Returns an API's library and the index of its first device. `title` is the API's name for the error message.
    #[inline]
    pub fn library<L: hal::Library>(&self, api: &str, title: &str) -> Result<(&L, usize)> {
        let found = self.loaded(api).and_then(|one| {
            let library: &dyn Any = &*one.library;
            Some((library.downcast_ref()?, one.first))
        });
        found.ok_or_else(|| Error::Unavailable {
            what: format!("{title}, for foreign objects"),
            tried: Vec::new(),
            reason: "this hub found none; see `Hub::unavailable`".to_owned(),
        })
    }

    /// Plans how foreign memory is shared with devices outside its context. A cached plan stays valid: topologies only grow, and
    /// the request names the device that has the memory.
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

/// Frees its device entries when dropped, unless the context was registered.
struct Joining<'h> {
    hub: &'h Hub,
    entries: Vec<DeviceIx>,
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        self.hub.foreign_devices().free(&self.entries);
    }
}

impl DeviceEntries for Joining<'_> {
    fn new_domain(&self) -> Domain {
        self.hub.new_domain()
    }

    fn entry(
        &mut self,
        device: Arc<dyn hal::Device>,
        known: KnownAs,
        same: &dyn Fn(&dyn hal::Device) -> bool,
    ) -> Result<Arc<dyn hal::Device>> {
        let hub = self.hub;
        let mut entries = lock(&hub.foreign_devices().entries);
        if let Some(entry) = entries.iter_mut().find(|entry| !entry.taken && same(&*entry.device)) {
            entry.taken = true;
            self.entries.push(entry.ix);
            return Ok(entry.device.clone());
        }
        let ix = hub.device_table().add(device.clone(), &known_as(hub, device.info(), known))?;
        hub.ledger().name(ix, &hub.topology().node(ix).id);
        entries.push(ForeignEntry { ix, device: device.clone(), taken: true });
        self.entries.push(ix);
        Ok(device)
    }
}

/// Returns the hub's id for a device, or the API's name if there is none.
fn known_as(hub: &Hub, info: &hal::DeviceInfo, known: KnownAs) -> String {
    let api = info.api.0;
    let like = |node: &&Node| {
        let known = &node.info;
        let one = known.physical.same_chip(&info.physical) || known.name == info.name;
        known.api == info.api && one && !node.id.contains(FOREIGN_MARK)
    };
    let nodes = hub.topology().nodes();
    let node = match known {
        KnownAs::Found(number) => {
            let first = hub.foreign_devices().loaded(api).map_or(0, |loaded| loaded.first);
            nodes.get(first + number)
        }
        KnownAs::Like => nodes.iter().find(like),
        KnownAs::Unlisted => None,
    };
    node.map_or_else(|| api.to_owned(), |node| node.id.clone())
}

/// A registered foreign context. It holds the hub's only reference to the context, and lives while anything uses it.
#[doc(hidden)]
pub struct Registration {
    hub: WeakHub,
    raw: usize,
    /// The backend's object that keeps the context alive.
    foreign_device: Option<Arc<dyn Any + Send + Sync>>,
    /// Objects of the application that live at least as long.
    kept: Mutex<Vec<Box<dyn Any + Send + Sync>>>,
    /// The keys of wrapped memory, for APIs whose handles are not addresses.
    keys: Mutex<HashMap<(u64, u64), usize>>,
    /// The indices of its devices in the device table, in the context's order.
    devices: Vec<DeviceIx>,
}

impl Registration {
    /// The context's first device.
    pub fn first(&self) -> DeviceIx {
        self.devices[0]
    }

    /// Returns the backend's object that keeps the context alive.
    pub fn foreign_device<G: Any>(&self) -> Result<&G> {
        let device = self.foreign_device.as_ref().and_then(|device| device.downcast_ref());
        device.ok_or_else(|| Error::invalid("the context belongs to another API"))
    }

    /// Keeps an object of the application until the registration ends, after all of the backend's objects.
    pub fn keep(&self, object: Box<dyn Any + Send + Sync>) {
        lock(&self.kept).push(object);
    }

    /// Returns the key of wrapped memory, for APIs whose handles are numbers: two devices may use the same number.
    pub fn key(&self, handle: u64, start: u64) -> usize {
        // Counts down from the top, where no user-space address lies.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mut keys = lock(&self.keys);
        let next = || usize::MAX - NEXT.fetch_add(1, Ordering::Relaxed);
        *keys.entry((handle, start)).or_insert_with(next)
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
        // Another thread may have registered the context again in the meantime.
        if contexts.get(&self.raw).is_some_and(|weak| weak.strong_count() == 0) {
            contexts.remove(&self.raw);
        }
        drop(contexts);
        self.foreign_device = None;
        // Another thread may have opened a queue of the device in the meantime.
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

/// The owner of a context.
#[derive(Clone)]
#[doc(hidden)]
pub enum Whose {
    /// The hub's own context of that device.
    Own(DeviceIx),
    /// A foreign context.
    ForeignDevice(Arc<Registration>),
}

impl Whose {
    /// The devices of the context.
    pub fn devices(&self) -> &[DeviceIx] {
        match self {
            Whose::Own(ix) => slice::from_ref(ix),
            Whose::ForeignDevice(registration) => &registration.devices,
        }
    }

    /// The context's registration, if it is a foreign context.
    pub fn registration(self) -> Option<Arc<Registration>> {
        match self {
            Whose::Own(_) => None,
            Whose::ForeignDevice(registration) => Some(registration),
        }
    }
}

/// The backend's object that keeps a foreign context alive.
type Adopted = Result<Arc<dyn Any + Send + Sync>>;

impl Hub {
    /// The hub's foreign contexts and wrapped memory.
    #[doc(hidden)]
    #[inline]
    pub fn foreign_devices(&self) -> &ForeignDevices {
        self.extensions().get()
    }

    /// Finds the owner of a context by its handle. `own` returns the device if the context is the hub's. If the context is
    /// unknown, `adopt` enters its devices in the device table, and the context is registered.
    #[doc(hidden)]
    pub fn whose(
        &self,
        raw: usize,
        own: impl FnOnce() -> Option<DeviceIx>,
        adopt: impl FnOnce(&mut dyn DeviceEntries) -> Adopted,
    ) -> Result<Whose> {
        let mut contexts = lock(&self.foreign_devices().contexts);
        if let Some(registered) = contexts.get(&raw).and_then(Weak::upgrade) {
            return Ok(Whose::ForeignDevice(registered));
        }
        if let Some(own) = own() {
            return Ok(Whose::Own(own));
        }
        let registered = Arc::new(self.register(raw, adopt)?);
        contexts.insert(raw, Arc::downgrade(&registered));
        let context: Arc<dyn Any + Send + Sync> = registered.clone();
        registered.devices.iter().for_each(|ix| self.device_table().set_context(*ix, &context));
        Ok(Whose::ForeignDevice(registered))
    }

    /// Returns the registration of a context that is not the hub's, by its handle. Registers it if necessary.
    #[doc(hidden)]
    pub fn registered(
        &self,
        raw: usize,
        adopt: impl FnOnce(&mut dyn DeviceEntries) -> Adopted,
    ) -> Result<Arc<Registration>> {
        let whose = self.whose(raw, || None, adopt)?;
        whose
            .registration()
            .ok_or_else(|| Error::invalid("the context is the hub's own, not a foreign one"))
    }

    fn register(
        &self,
        raw: usize,
        adopt: impl FnOnce(&mut dyn DeviceEntries) -> Adopted,
    ) -> Result<Registration> {
        let mut joining = Joining { hub: self, entries: Vec::new() };
        let foreign_device = Some(adopt(&mut joining)?);
        if joining.entries.is_empty() {
            return Err(Error::invalid("the context has no devices"));
        }
        let devices = std::mem::take(&mut joining.entries);
        let (hub, kept, keys) = (self.downgrade(), Mutex::default(), Mutex::default());
        Ok(Registration { hub, raw, foreign_device, kept, keys, devices })
    }

    /// Opens the device in a second context, as another library would.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a device without contexts; [`Error::Busy`] if no device entry is free.
    #[doc(hidden)]
    pub fn second_device(&self, device: &Device) -> Result<Device> {
        let (_, registration) = self.second_registration(device)?;
        Ok(Device::new(self, registration.first()))
    }

    /// Creates a second context of a device. Returns its handle and registration.
    #[doc(hidden)]
    pub fn second_registration(&self, device: &Device) -> Result<(usize, Arc<Registration>)> {
        if !device.hub().is(self) {
            return Err(Error::invalid(format!("device {device} belongs to another hub")));
        }
        let none = || {
            let needs = "a device whose API has contexts";
            Error::unsupported(format!("a second context on {device}"), needs)
        };
        let loaded = self.foreign_devices().loaded(device.info().api.0).ok_or_else(none)?;
        let at = device.index().get().checked_sub(loaded.first).ok_or_else(none)?;
        let context = loaded.library.second_context(at)?;
        let raw = context.raw();
        // SAFETY: the context lives until it is dropped below.
        let adopt = |entries: &mut dyn DeviceEntries| unsafe { loaded.library.adopt(raw, entries) };
        let registration = self.registered(raw, adopt)?;
        drop(context);
        Ok((raw, registration))
    }
}
