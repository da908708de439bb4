//! Vulkan as a backend.

use super::{
    device::Device, discover, event::Event, kernel::Kernel, memory::Memory, program::Program,
    queue::Queue, semaphore::Semaphore,
};
use onebuf_hal::{
    Api, Backend, Discovered, DriverLibrary, Search, Unavailable, locks::Arc, typed::ApiTypes,
};

/// The Vulkan backend: the devices of the Vulkan loader.
#[derive(Clone, Copy, Debug)]
pub struct VulkanBackend;

// SAFETY: each module of this backend upholds its part of the traits' contracts and says how at its `unsafe` code.
unsafe impl Backend for VulkanBackend {
    fn api(&self) -> Api {
        Api("vulkan")
    }

    fn libraries(&self) -> &'static [DriverLibrary] {
        &[DriverLibrary { name: "vulkan", variable: "ONEBUF_VULKAN_LIB" }]
    }

    fn discover(&self, search: &Search<'_>) -> Result<Discovered, Unavailable> {
        let mut next = search.next_domain;
        let found = discover(search.library("vulkan"), search.probe.clone(), &mut next)?;
        let discovered = Discovered::new(found.devices, "a Vulkan device", found.problems);
        Ok(Discovered { library: Some(Arc::new(found.loader)), ..discovered })
    }
}

impl ApiTypes for VulkanBackend {
    type Device = Device;
    type Memory = Memory;
    type Queue = Queue;
    type Event = Event;
    type Program = Program;
    type Kernel = Kernel;
    type Semaphore = Semaphore;
}
