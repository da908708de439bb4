//! The observers of a hub and of a buffer.

use super::{BufferObserver, NewBuffer, Observer, Tracer, guarded::Guarded};
use crate::topology::DeviceIx;
use onebuf_hal::{
    SyncMethod,
    locks::{Arc, Mutex, lock},
};
use std::{
    any::Any,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

/// The observers of a hub, one of each type. Only grows.
pub(crate) struct Observers {
    /// Whether there are any; read without the lock.
    any: AtomicBool,
    all: Mutex<Vec<Arc<Guarded<dyn Observer>>>>,
}

impl Observers {
    /// Creates the list of a new hub's observers, and the tracer for those that want events.
    pub fn built(observers: Vec<Arc<dyn Observer>>, device_times: bool) -> (Self, Tracer) {
        let all: Vec<_> = observers.into_iter().map(|one| Arc::new(Guarded::new(one))).collect();
        let wants =
            |one: &&Arc<Guarded<dyn Observer>>| one.call(|observer| observer.wants_events());
        let told = all.iter().filter(wants).cloned().collect();
        let any = AtomicBool::new(!all.is_empty());
        (Self { any, all: Mutex::new(all) }, Tracer::new(told, device_times))
    }

    /// The observer of this type.
    pub fn find<T: Observer>(&self) -> Option<Arc<T>> {
        find(&lock(&self.all))
    }

    /// Returns the observer of this type, and installs one if there is none. An observer that is installed now sees buffers
    /// created from now on, and no events: queues that are already open carry the tracer of when the hub was built.
    pub fn find_or_add<T: Observer>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut all = lock(&self.all);
        find(&all).unwrap_or_else(|| {
            let new = Arc::new(make());
            all.push(Arc::new(Guarded::new(new.clone())));
            self.any.store(true, Ordering::Release);
            new
        })
    }

    /// The observers of a new buffer.
    #[inline]
    pub fn of_buffer(&self, describe: impl FnOnce() -> NewBuffer) -> BufferObservers {
        match self.any.load(Ordering::Acquire) {
            true => self.ask(&describe()),
            false => BufferObservers::default(),
        }
    }

    #[cold]
    fn ask(&self, buffer: &NewBuffer) -> BufferObservers {
        // The observers are called without the lock.
        let all = lock(&self.all).clone();
        let each = all.iter().filter_map(|one| one.call(|observer| observer.buffer_made(buffer)));
        BufferObservers(each.map(Guarded::new).collect())
    }
}

fn find<T: Observer>(all: &[Arc<Guarded<dyn Observer>>]) -> Option<Arc<T>> {
    all.iter().find_map(|one| {
        let any: Arc<dyn Any + Send + Sync> = one.observer().clone();
        any.downcast().ok()
    })
}

/// The observers of one buffer; usually none.
#[derive(Default)]
pub(crate) struct BufferObservers(Vec<Guarded<dyn BufferObserver>>);

impl BufferObservers {
    /// Whether there are any.
    #[inline]
    pub fn is_on(&self) -> bool {
        !self.0.is_empty()
    }

    #[inline]
    pub fn handed_over(&self, from: DeviceIx, to: DeviceIx, sync_method: SyncMethod) {
        self.0
            .iter()
            .for_each(|one| one.call(|observer| observer.handed_over(from, to, sync_method)));
    }

    #[inline]
    pub fn copied_implicitly(&self, bytes: u64) {
        self.0.iter().for_each(|one| one.call(|observer| observer.copied_implicitly(bytes)));
    }

    pub fn route_failed(&self, route: usize) {
        self.0.iter().for_each(|one| one.call(|observer| observer.route_failed(route)));
    }
}

impl fmt::Debug for BufferObservers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferObservers({})", self.0.len())
    }
}
