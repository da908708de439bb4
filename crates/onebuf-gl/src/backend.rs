//! The OpenGL backend.

use super::{
    device::Device, discover, event::Event, kernel::Kernel, memory::Memory, program::Program,
    queue::Queue, semaphore::Semaphore,
};
use onebuf_hal::{
    Api, Backend, ContextHandles, Discovered, DriverLibrary, PhysicalId, Search, Unavailable,
    locks::Arc, typed::ApiTypes,
};

/// The backend for EGL's devices.
#[derive(Clone, Copy, Debug)]
pub struct GlBackend;

// SAFETY: each file of this backend states how it keeps its part of the traits' contracts.
unsafe impl Backend for GlBackend {
    fn api(&self) -> Api {
        Api("gl")
    }

    fn libraries(&self) -> &'static [DriverLibrary] {
        &[DriverLibrary { name: "gl", variable: "ONEBUF_EGL_LIB" }]
    }

    fn discover(&self, search: &Search<'_>) -> Result<Discovered, Unavailable> {
        let mut next = search.next_domain;
        // SAFETY: `discover` calls it on the thread where the context is current.
        let chip_of =
            |context: ContextHandles, own: &PhysicalId| unsafe { search.chip_of(context, own) };
        let found = discover(search.library("gl"), search.probe.clone(), &mut next, &chip_of)?;
        let discovered = Discovered::new(found.devices, "an OpenGL device", found.problems);
        Ok(Discovered { library: Some(Arc::new(found.library)), ..discovered })
    }
}

impl ApiTypes for GlBackend {
    type Device = Device;
    type Memory = Memory;
    type Queue = Queue;
    type Event = Event;
    type Program = Program;
    type Kernel = Kernel;
    type Semaphore = Semaphore;
}
