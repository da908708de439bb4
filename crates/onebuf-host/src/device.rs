//! What the operating system says of the CPU.

use super::{API, HostMemory, HostPages, program::HostProgram, queue::HostQueue};
use onebuf_hal::{
    Access, AllocSpec, Caps, Device, DeviceInfo, DeviceKind, Domain, Error, Export, HostRange,
    Memory, MemoryKind, PageFile, PhysicalId, Program, Queue, QueueOrder, QueueSpec, Result,
    Source, locks::Arc, watchdog::Post,
};
use std::{
    any::Any,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// A cache line: no two allocations share one, and vector loads are aligned.
const ALIGN_BYTES: usize = 64;

/// The CPU of this machine.
#[derive(Debug)]
pub struct HostDevice {
    info: DeviceInfo,
    domain: Domain,
    /// Whose limit its queues wait for others' events.
    post: Arc<Post>,
}

impl HostDevice {
    /// Asks the operating system what it runs on. The domain must be this device's alone in its hub.
    pub fn new(domain: Domain) -> Self {
        HostDevice { info: read_info(), domain, post: Post::new("host", "the host") }
    }
}

impl Device for HostDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn post(&self) -> Option<&Arc<Post>> {
        Some(&self.post)
    }

    fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<Arc<dyn Memory>> {
        if spec.memory_kind != MemoryKind::HostPages {
            return Err(Error::unsupported(
                format!("{} memory on host", spec.memory_kind),
                "a device",
            ));
        }
        // The kernel hands out more than there is and kills the process on use; so ask first.
        let limit = self.info.caps.max_alloc_bytes;
        let asked = spec.bytes as u64;
        if asked > limit {
            return Err(Error::OutOfMemory { device: API.to_string(), asked, limit: Some(limit) });
        }
        let pages = HostPages::new(spec.bytes, spec.align)?;
        let memory = HostMemory::from_pages(self.domain, Arc::new(pages));
        if let Some(contents) = contents {
            memory.initialise(contents)?;
        }
        Ok(Arc::new(memory))
    }

    fn import(&self, export: &Export, _access: Access) -> Result<Arc<dyn Memory>> {
        match export {
            Export::Host(range) if range.bytes == 0 => Err(Error::invalid("an import of no bytes")),
            Export::Host(range) => Ok(Arc::new(HostMemory::from_range(self.domain, range.clone()))),
            Export::Fd(_)
            | Export::Address(_)
            | Export::Peer(_)
            | Export::Ipc(_)
            | Export::Object(_) => {
                Err(Error::unsupported(format!("{} on host", export.name()), "host pages"))
            }
        }
    }

    fn queue(&self, spec: QueueSpec) -> Result<Arc<dyn Queue>> {
        match spec.order {
            QueueOrder::InOrder => {
                Ok(Arc::new(HostQueue::new(self.domain, &self.post, spec.profiling)))
            }
            QueueOrder::OutOfOrder => Err(Error::unsupported(
                "an out-of-order queue on host",
                "a device that runs work behind the caller's back",
            )),
        }
    }

    fn build(&self, source: &Source) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(HostProgram::new(source)?))
    }

    fn page_file(&self, range: &HostRange) -> Result<PageFile> {
        let pages = range.owner.clone().downcast::<HostPages>().ok();
        let whole = |pages: &Arc<HostPages>| {
            pages.file().is_some()
                && (pages.pointer(), pages.bytes()) == (range.pointer, range.bytes)
        };
        let pages = pages.filter(whole).ok_or_else(|| {
            let needs = "pages that onebuf allocated, in a sealed memfd";
            Error::unsupported("sharing these pages", needs)
        })?;
        Ok(PageFile { bytes: pages.file_bytes() as u64, file: Arc::new(FileOf(pages)) })
    }

    fn map_file(&self, file: OwnedFd, bytes: usize) -> Result<HostRange> {
        let pages = Arc::new(HostPages::of_file(file, bytes)?);
        let (pointer, owner): (_, Arc<dyn Any + Send + Sync>) = (pages.pointer(), pages);
        Ok(HostRange { pointer, bytes, owner })
    }
}

/// The file of pages that have one.
struct FileOf(Arc<HostPages>);

impl AsFd for FileOf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file().expect("made of pages that have one")
    }
}

fn read_info() -> DeviceInfo {
    let memory_bytes = memory_bytes();
    DeviceInfo {
        api: API,
        name: cpu_name().unwrap_or_else(|| API.to_string()),
        platform: std::env::consts::OS.to_owned(),
        version: kernel_release(),
        driver: kernel_release(),
        library: String::new(),
        kind: DeviceKind::Cpu,
        physical: PhysicalId::default(),
        memory_bytes,
        extensions: Vec::new(),
        caps: caps(memory_bytes),
    }
}

fn caps(memory_bytes: u64) -> Caps {
    Caps {
        memory_kinds: vec![MemoryKind::HostPages],
        imports_host_pages: true,
        exports: Vec::new(),
        imports: Vec::new(),
        align_bytes: ALIGN_BYTES,
        unified_memory: true,
        max_alloc_bytes: memory_bytes,
        local_memory_bytes: 0,
        // A native kernel is called once for the whole grid, so groups have no meaning and no limit.
        max_group_size: u32::MAX as usize,
        max_group_sizes: [u32::MAX as usize; 3],
        max_loop_iterations: None,
        compute_units: compute_units(),
        out_of_order: false,
        callbacks: true,
        host_signals: false,
        wait_values: false,
        exports_semaphores: false,
        imports_semaphores: false,
        one_thread: false,
        svm_atomics: true,
        svm_system: true,
        address_space: None,
        built_on: None,
        il_versions: Vec::new(),
        shares_objects_of: Vec::new(),
        peers: Vec::new(),
        ipc: false,
        parses_fds: false,
    }
}

fn compute_units() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// Not there on every architecture.
fn cpu_name() -> Option<String> {
    if cfg!(miri) {
        return None; // miri keeps files away
    }
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    model_name(&text)
}

fn model_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    let name = line.split_once(':')?.1.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(not(miri))]
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

#[cfg(miri)]
fn memory_bytes() -> u64 {
    1 << 30
}

#[cfg(not(miri))]
fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

#[cfg(miri)]
fn kernel_release() -> String {
    "miri".to_owned()
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_model_name_is_found_or_missed_quietly() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2: 3 GHz\nflags\t: a b\n";
        assert_eq!(model_name(text).as_deref(), Some("Some CPU @ 2: 3 GHz"));
        assert_eq!(model_name("CPU part\t: 0xd0c\n"), None);
        assert_eq!(model_name("model name\t: \n"), None);
    }
}
