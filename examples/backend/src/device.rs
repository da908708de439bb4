//! What the device can do, as data, and where its memory, queues and programs come from.

use crate::{API, memory::ToyMemory, program::ToyProgram, queue::ToyQueue};
use onebuf_hal::{
    Access, AllocSpec, Caps, Device, DeviceInfo, DeviceKind, Domain, Error, Export, Memory,
    MemoryKind, PhysicalId, Program, Queue, QueueOrder, QueueSpec, Result, Source, checks, native,
};
use std::sync::Arc;

/// A cache line: where memory of this device begins, and regions of it.
pub(crate) const ALIGN_BYTES: usize = 64;

/// A device in software.
#[derive(Debug)]
pub(crate) struct ToyDevice {
    info: DeviceInfo,
    domain: Domain,
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
            // The planner believes what is said here; what is not said is not there.
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
        Self { info, domain }
    }
}

impl Device for ToyDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<Arc<dyn Memory>> {
        checks::allocation(&self.info, spec, contents)?;
        let memory = ToyMemory::allocate(self.domain, spec, contents.unwrap_or_default());
        Ok(Arc::new(memory.ok_or_else(|| checks::out_of_memory(spec.bytes, &self.info))?))
    }

    fn import(&self, export: &Export, access: Access) -> Result<Arc<dyn Memory>> {
        let Export::Host(pages) = export else {
            return Err(Error::unsupported(format!("{} on {API}", export.name()), "host pages"));
        };
        checks::bytes(&self.info, pages.bytes)?;
        Ok(Arc::new(ToyMemory::import(self.domain, pages.clone(), access)))
    }

    fn queue(&self, spec: QueueSpec) -> Result<Arc<dyn Queue>> {
        if spec.order == QueueOrder::OutOfOrder {
            return Err(Error::unsupported("an out-of-order queue on toy", "another device"));
        }
        Ok(Arc::new(ToyQueue::open(self.domain, spec.profiling)?))
    }

    fn build(&self, source: &Source) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(ToyProgram(native::NativeProgram::new(API.0, source)?)))
    }
}
