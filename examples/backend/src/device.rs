//! The device: its capabilities as data, and its memory, queues and programs. Callers have checked the arguments.

#![allow(unsafe_code)] // See the head of `lib.rs`.

use crate::{
    ALIGN_BYTES, API, backend::ToyBackend, memory::ToyMemory, program::ToyProgram, queue::ToyQueue,
};
use onebuf_hal::{
    Access, AllocSpec, Caps, DeviceInfo, DeviceKind, Domain, HostRange, MemoryKind, PhysicalId,
    QueueSpec, Result, Source, checks, typed::TypedDevice,
};
use std::sync::Arc;

/// A software device.
#[derive(Debug)]
pub struct ToyDevice(Arc<Facts>);

/// The device's data, shared with its memory and queues.
#[derive(Debug)]
pub(crate) struct Facts {
    pub info: DeviceInfo,
    pub domain: Domain,
}

impl ToyDevice {
    pub(crate) fn new(domain: Domain) -> Self {
        let info = DeviceInfo {
            api: API,
            name: "toy device".to_owned(),
            platform: "onebuf examples".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            driver: env!("CARGO_PKG_VERSION").to_owned(),
            library: String::new(),
            kind: DeviceKind::Other,
            physical: PhysicalId::default(),
            memory_bytes: 1 << 30,
            extensions: Vec::new(),
            // The planner relies on these values; a capability that is not listed is treated as missing.
            caps: Caps {
                memory_kinds: vec![MemoryKind::Device],
                imports_host_pages: true,
                unified_memory: true,
                align_bytes: ALIGN_BYTES,
                max_alloc_bytes: 1 << 30,
                max_group_size: 1024,
                max_group_sizes: [1024; 3],
                compute_units: 1,
                ..Caps::default()
            },
        };
        Self(Arc::new(Facts { info, domain }))
    }
}

// SAFETY: memory has the requested size, and imported pages keep their owner alive.
unsafe impl TypedDevice for ToyDevice {
    type Types = ToyBackend;

    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    unsafe fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<ToyMemory> {
        let memory = ToyMemory::allocate(&self.0, spec, contents.unwrap_or(&[]));
        memory.ok_or_else(|| checks::out_of_memory(spec.bytes, &self.0.info))
    }

    unsafe fn import_host(&self, pages: &HostRange, access: Access) -> Result<ToyMemory> {
        Ok(ToyMemory::import(&self.0, pages.clone(), access))
    }

    fn queue(&self, spec: QueueSpec) -> Result<ToyQueue> {
        ToyQueue::open(&self.0, spec.profiling)
    }

    fn build(&self, source: &Source) -> Result<ToyProgram> {
        ToyProgram::new(self.0.domain, API.0, source)
    }
}
