//! The CPU as a device, with the properties that the operating system reports.
//!
//! # Safety
//! The device keeps `hal`'s contract by construction: see the `SAFETY` comment.

#![allow(unsafe_code)]

use super::{API, HostBackend, HostMemory, HostPages, program::HostProgram, queue::HostQueue};
use onebuf_hal::{
    Access, AllocSpec, Caps, DeviceInfo, DeviceKind, Domain, Error, HostRange, MemoryKind,
    PageFile, PhysicalId, QueueSpec, Result, Source, locks::Arc, typed::TypedDevice,
    watchdog::Post,
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
    info: Arc<DeviceInfo>,
    domain: Domain,
    /// Its limit bounds how long queues wait for events of other devices.
    post: Arc<Post>,
}

impl HostDevice {
    /// Queries the operating system for the CPU's properties. The domain must be unique in its hub.
    pub fn new(domain: Domain) -> Self {
        HostDevice { info: Arc::new(read_info()), domain, post: Post::new("host", "the host") }
    }
}

// SAFETY: pages stay mapped while a memory of them exists, and an import keeps its owner.
unsafe impl TypedDevice for HostDevice {
    type Types = HostBackend;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn post(&self) -> Option<&Arc<Post>> {
        Some(&self.post)
    }

    unsafe fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<HostMemory> {
        let pages = HostPages::new(spec.bytes, spec.align)?;
        let memory = HostMemory::from_pages(self.domain, &self.info, Arc::new(pages));
        if let Some(contents) = contents {
            memory.initialise(contents)?;
        }
        Ok(memory)
    }

    /// No limit: the pages exist already, and a file's may exceed physical memory.
    fn import_host_limit(&self) -> u64 {
        0
    }

    unsafe fn import_host(&self, pages: &HostRange, _access: Access) -> Result<HostMemory> {
        Ok(HostMemory::from_range(self.domain, &self.info, pages.clone()))
    }

    fn queue(&self, spec: QueueSpec) -> Result<HostQueue> {
        Ok(HostQueue::new(self.domain, &self.info, &self.post, spec.profiling))
    }

    fn build(&self, source: &Source) -> Result<HostProgram> {
        HostProgram::new(self.domain, API.0, source)
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

/// The file of pages that are backed by one.
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
        // The kernel overcommits, and kills the process when the pages are used.
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
        imports_without_acquire: false,
    }
}

fn compute_units() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// Returns the CPU's model name, which not every architecture reports.
fn cpu_name() -> Option<String> {
    if cfg!(miri) {
        return None; // Miri isolates the file system
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
