//! The CUDA backend and the HIP backend.

use super::{
    CUDA_C, Flavor, HIP_C, Libraries, PTX, device::Device, discover, event::Event, kernel::Kernel,
    memory::Memory, program::Program, queue::Queue, semaphore::Semaphore,
};
use onebuf_hal::{
    Api, Backend, Discovered, DriverLibrary, Language, LayeredHandles, Search, Unavailable,
    typed::ApiTypes,
};

/// The backend of one API: CUDA or HIP.
#[derive(Clone, Copy, Debug)]
pub struct CudaLikeBackend(pub Flavor);

const CUDA_LIBRARIES: [DriverLibrary; 2] = [
    DriverLibrary { name: "cuda", variable: "ONEBUF_CUDA_LIB" },
    DriverLibrary { name: "nvrtc", variable: "ONEBUF_NVRTC_LIB" },
];

const HIP_LIBRARIES: [DriverLibrary; 3] = [
    DriverLibrary { name: "hip", variable: "ONEBUF_HIP_LIB" },
    DriverLibrary { name: "hiprtc", variable: "ONEBUF_HIPRTC_LIB" },
    DriverLibrary { name: "hsa", variable: "ONEBUF_HSA_LIB" },
];

// SAFETY: each file of this backend states how it keeps its part of the traits' contracts.
unsafe impl Backend for CudaLikeBackend {
    fn api(&self) -> Api {
        Api(self.0.api())
    }

    fn libraries(&self) -> &'static [DriverLibrary] {
        match self.0 {
            Flavor::Cuda => &CUDA_LIBRARIES,
            Flavor::Hip => &HIP_LIBRARIES,
        }
    }

    fn languages(&self) -> &'static [Language] {
        match self.0 {
            Flavor::Cuda => &[CUDA_C, PTX],
            Flavor::Hip => &[HIP_C],
        }
    }

    fn discover(&self, search: &Search<'_>) -> Result<Discovered, Unavailable> {
        let flavor = self.0;
        let libraries = Libraries {
            driver: search.library(flavor.api()),
            compiler: search.library(flavor.pick(["nvrtc", "hiprtc"])),
            hsa: search.library("hsa"),
            managed: search.managed,
        };
        let mut next = search.next_domain;
        // SAFETY: a runtime that reports one of our library's devices has loaded that library too, and keeps the
        // context that it reports alive.
        let base_device = |layered: &LayeredHandles| unsafe { search.base_device(layered) };
        let found = discover(flavor, libraries, search.probe.clone(), &mut next, &base_device)?;
        let what = flavor.pick(["a CUDA device", "a HIP device"]);
        Ok(Discovered::new(found.devices, what, found.problems))
    }
}

impl ApiTypes for CudaLikeBackend {
    type Device = Device;
    type Memory = Memory;
    type Queue = Queue;
    type Event = Event;
    type Program = Program;
    type Kernel = Kernel;
    type Semaphore = Semaphore;
}
