//! OpenCL as a backend.

use super::{
    API, Device, OPENCL_C, discover, discover::NO_DEVICE_HINT, event::Event, foreign::Library,
    kernel::Kernel, memory::Memory, program::Program, queue::Queue, semaphore::Semaphore,
};
use onebuf_hal::{
    Api, Backend, Discovered, DriverLibrary, Language, Search, Unavailable, locks::Arc,
    typed::ApiTypes,
};

/// The OpenCL backend: every OpenCL platform of this machine.
#[derive(Clone, Copy, Debug)]
pub struct OpenClBackend;

// SAFETY: each module of this backend upholds its part of the traits' contracts and says how at its `unsafe` code.
unsafe impl Backend for OpenClBackend {
    fn api(&self) -> Api {
        API
    }

    fn libraries(&self) -> &'static [DriverLibrary] {
        &[DriverLibrary { name: "opencl", variable: "ONEBUF_OPENCL_LIB" }]
    }

    fn hidden_devices(&self) -> Option<&'static str> {
        Some(NO_DEVICE_HINT)
    }

    fn languages(&self) -> &'static [Language] {
        &[OPENCL_C]
    }

    fn discover(&self, search: &Search<'_>) -> Result<Discovered, Unavailable> {
        let mut next = search.next_domain;
        let found = discover(search.library(API.0), search.probe.clone(), &mut next)?;
        let all = found.devices.iter().cloned();
        let discovered = Discovered::new(all, "an OpenCL device", found.problems);
        let library = Arc::new(Library { cl: found.cl, devices: found.devices });
        Ok(Discovered { library: Some(library), ..discovered })
    }
}

impl ApiTypes for OpenClBackend {
    type Device = Device;
    type Memory = Memory;
    type Queue = Queue;
    type Event = Event;
    type Program = Program;
    type Kernel = Kernel;
    type Semaphore = Semaphore;
}
