//! The fake device.
//!
//! # Safety
//! The device fulfils the contract of `hal` by construction: see the `SAFETY` comment.

#![allow(unsafe_code)]

use super::{
    API, FakeBackend, FakeConfig, Sharing,
    heap::ALIGN_BYTES,
    memory::{Block, FakeMemory},
    program::FakeProgram,
    queue::FakeQueue,
    semaphore::FakeSemaphore,
    watch::Watch,
};
use crate::{
    Access, AllocSpec, Caps, DeviceInfo, DeviceKind, Error, HostRange, QueueSpec, Result, Source,
    locks::{Arc, AtomicU64, Ordering},
    typed::TypedDevice,
};
use std::os::fd::OwnedFd;

/// A device that exists only for tests.
#[derive(Debug)]
pub struct FakeDevice {
    config: FakeConfig,
    info: Arc<DeviceInfo>,
    watch: Watch,
    /// The number of queues opened so far, which selects each queue's random sequence.
    queues: AtomicU64,
}

impl FakeDevice {
    /// Creates a device that behaves as configured.
    pub fn new(config: FakeConfig) -> Self {
        // A forked child does not have the threads of its queues.
        onebuf_sys::fork::watch();
        let info = Arc::new(info(&config));
        let watch = Watch::new(config.probe.clone());
        FakeDevice { config, info, watch, queues: AtomicU64::new(0) }
    }

    fn wrap(&self, block: Block) -> FakeMemory {
        FakeMemory::new(self.config.domain, &self.info, block, &self.watch)
    }
}

// SAFETY: memory keeps its block alive; an import keeps its owner alive.
unsafe impl TypedDevice for FakeDevice {
    type Types = FakeBackend;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    unsafe fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<FakeMemory> {
        self.watch.call("fake_allocate")?;
        let block = Block::allocate(&self.config.name, spec)?;
        if let Some(contents) = contents {
            block.initialise(contents)?;
        }
        Ok(self.wrap(block))
    }

    unsafe fn import_host(&self, pages: &HostRange, access: Access) -> Result<FakeMemory> {
        self.watch.call("fake_import")?;
        let FakeConfig { name, shares_host_pages, .. } = &self.config;
        Ok(self.wrap(Block::import(name, *shares_host_pages, pages, access)?))
    }

    fn semaphore(&self) -> Result<(FakeSemaphore, OwnedFd)> {
        if !self.config.exports_semaphores {
            let what = format!("a semaphore of {}", self.config.name);
            return Err(Error::unsupported(what, "`FakeConfig::exports_semaphores`"));
        }
        FakeSemaphore::shared(self.config.domain, &self.watch)
    }

    fn queue(&self, spec: QueueSpec) -> Result<FakeQueue> {
        self.watch.call("fake_queue")?;
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        FakeQueue::new(&self.config, &self.info, spec, number, &self.watch)
    }

    fn build(&self, source: &Source) -> Result<FakeProgram> {
        self.watch.call("fake_build")?;
        FakeProgram::new(self.config.domain, source, &self.watch)
    }
}

fn info(config: &FakeConfig) -> DeviceInfo {
    DeviceInfo {
        api: API,
        name: config.name.clone(),
        platform: "onebuf".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        driver: env!("CARGO_PKG_VERSION").to_owned(),
        library: String::new(),
        kind: DeviceKind::Other,
        physical: config.physical,
        memory_bytes: config.max_alloc_bytes,
        extensions: Vec::new(),
        caps: caps(config),
    }
}

fn caps(config: &FakeConfig) -> Caps {
    Caps {
        memory_kinds: config.memory_kinds.clone(),
        imports_host_pages: config.shares_host_pages != Sharing::No,
        exports: Vec::new(),
        imports: Vec::new(),
        align_bytes: ALIGN_BYTES,
        unified_memory: config.unified,
        max_alloc_bytes: config.max_alloc_bytes,
        local_memory_bytes: 0,
        max_group_size: 1024,
        max_group_sizes: [1024; 3],
        max_loop_iterations: None,
        compute_units: 1,
        out_of_order: config.out_of_order,
        callbacks: config.callbacks,
        host_signals: config.host_signals,
        wait_values: false,
        exports_semaphores: config.exports_semaphores,
        imports_semaphores: false,
        one_thread: config.one_thread,
        svm_atomics: false,
        svm_system: false,
        address_space: None,
        built_on: None,
        il_versions: Vec::new(),
        shares_objects_of: Vec::new(),
        peers: Vec::new(),
        ipc: false,
        parses_fds: false,
        imports_without_acquire: false,
    }
}
