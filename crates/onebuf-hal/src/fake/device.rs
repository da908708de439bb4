//! The device as its configuration describes it.

use super::{
    API, FakeConfig, Sharing,
    heap::ALIGN_BYTES,
    memory::{Block, FakeMemory},
    program::FakeProgram,
    queue::FakeQueue,
    semaphore::FakeSemaphore,
    watch::Watch,
};
use crate::{
    Access, AllocSpec, Caps, Device, DeviceInfo, DeviceKind, Error, Export, Memory, Program, Queue,
    QueueOrder, QueueSpec, Result, SharedSemaphore, Source,
    locks::{Arc, AtomicU64, Ordering},
};

/// A device that exists only for tests.
#[derive(Debug)]
pub struct FakeDevice {
    config: FakeConfig,
    info: DeviceInfo,
    watch: Watch,
    /// Gives each queue a random sequence of its own.
    queues: AtomicU64,
}

impl FakeDevice {
    /// A device that behaves as the configuration says.
    pub fn new(config: FakeConfig) -> Self {
        // Its queues have threads, which a forked child has not.
        onebuf_sys::fork::watch();
        let info = info(&config);
        let watch = Watch::new(config.probe.clone());
        FakeDevice { config, info, watch, queues: AtomicU64::new(0) }
    }

    fn check_size(&self, bytes: usize) -> Result<()> {
        let (asked, limit) = (bytes as u64, self.config.max_alloc_bytes);
        if asked > limit {
            let device = self.config.name.clone();
            return Err(Error::OutOfMemory { device, asked, limit: Some(limit) });
        }
        Ok(())
    }

    fn wrap(&self, block: Block) -> Arc<dyn Memory> {
        Arc::new(FakeMemory::new(self.config.domain, block, &self.watch))
    }
}

impl Device for FakeDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<Arc<dyn Memory>> {
        self.watch.call("fake_allocate")?;
        if !self.config.memory_kinds.contains(&spec.memory_kind) {
            return Err(Error::unsupported(
                format!("{} memory on {}", spec.memory_kind, self.config.name),
                "`FakeConfig::memory_kinds`",
            ));
        }
        self.check_size(spec.bytes)?;
        let block = Block::allocate(&self.config.name, spec)?;
        if let Some(contents) = contents {
            block.initialise(contents)?;
        }
        Ok(self.wrap(block))
    }

    fn import(&self, export: &Export, access: Access) -> Result<Arc<dyn Memory>> {
        self.watch.call("fake_import")?;
        match export {
            Export::Host(range) => {
                self.check_size(range.bytes)?;
                let FakeConfig { name, shares_host_pages, .. } = &self.config;
                Ok(self.wrap(Block::import(name, *shares_host_pages, range, access)?))
            }
            Export::Fd(_)
            | Export::Address(_)
            | Export::Peer(_)
            | Export::Ipc(_)
            | Export::Object(_) => {
                Err(Error::unsupported(format!("{} on {API}", export.name()), "host pages"))
            }
        }
    }

    fn semaphore(&self) -> Result<SharedSemaphore> {
        if !self.config.exports_semaphores {
            let what = format!("a semaphore of {}", self.config.name);
            return Err(Error::unsupported(what, "`FakeConfig::exports_semaphores`"));
        }
        FakeSemaphore::shared(self.config.domain, &self.watch)
    }

    fn queue(&self, spec: QueueSpec) -> Result<Arc<dyn Queue>> {
        self.watch.call("fake_queue")?;
        if spec.order == QueueOrder::OutOfOrder && !self.config.out_of_order {
            return Err(Error::unsupported(
                format!("an out-of-order queue on {}", self.config.name),
                "`FakeConfig::out_of_order`",
            ));
        }
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(FakeQueue::new(&self.config, spec, number, &self.watch)?))
    }

    fn build(&self, source: &Source) -> Result<Arc<dyn Program>> {
        self.watch.call("fake_build")?;
        Ok(Arc::new(FakeProgram::new(source, &self.watch)?))
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
    }
}
