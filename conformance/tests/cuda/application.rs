//! An application with CUDA or HIP objects of its own, which it makes with raw calls in the primary context, as CUDA's runtime
//! API does.
//!
//! # Safety
//! Every object of the application lives until its `App` is dropped, which happens after the hub that uses it. Raw calls get
//! handles, addresses and sizes of these objects alone, inside `App::call`, which makes their context current.

#![allow(clippy::undocumented_unsafe_blocks, reason = "one reason, above, for all raw calls")]

use super::*;
use onebuf_conformance::{Hardware, lacking};
use onebuf_sys::{
    Refused,
    cuda_like::{
        AccessDesc, AllocationHandle, AllocationProp, CuContext, CuEvent, CuStream, DevicePtr,
        HostPtr, Location, consts,
    },
};
use std::{
    cell::RefCell,
    sync::atomic::{AtomicU32, Ordering},
};

/// Bytes before the wrapped ones in each allocation: tensors lie inside larger allocations.
pub const LEAD: usize = 512;
pub const UNIT: usize = 2 << 20;

/// The raw API, as an application uses it on one device.
pub struct App {
    pub table: CudaLike,
    pub device: i32,
    pub context: CuContext,
    /// `cuMemAllocAsync`, which the stub does not have.
    alloc_async: Option<AllocAsync>,
    /// What it must free.
    made: RefCell<Vec<Made>>,
}

type AllocAsync = unsafe extern "C" fn(*mut DevicePtr, usize, CuStream) -> i32;

/// The driver's `cuMemAllocAsync`.
fn alloc_async() -> Option<AllocAsync> {
    // SAFETY: names without NUL inside; the prototype is that of cuda.h.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        let found = libc::dlsym(library, c"cuMemAllocAsync".as_ptr());
        (!library.is_null() && !found.is_null())
            .then(|| std::mem::transmute::<*mut c_void, AllocAsync>(found))
    }
}

#[derive(Clone, Copy)]
enum Made {
    Device(DevicePtr),
    Host(HostPtr),
    Registered(*mut c_void),
    Mapped(DevicePtr, usize, AllocationHandle),
    Stream(CuStream),
    Event(CuEvent),
}

impl App {
    pub fn new(flavor: Flavor, library: Option<&str>, ordinal: i32) -> App {
        let table = CudaLike::load(flavor, library, None).unwrap();
        // SAFETY: no preconditions; then a device of this driver.
        let (device, context) = unsafe {
            table.init(0).unwrap();
            let device = table.device(ordinal).unwrap();
            let context = match flavor {
                Flavor::Cuda => table.retain_primary(device).unwrap(),
                Flavor::Hip => CuContext::NULL,
            };
            (device, context)
        };
        let alloc_async = library.is_none().then(alloc_async).flatten();
        App { table, device, context, alloc_async, made: RefCell::default() }
    }

    /// Makes raw calls in the primary context.
    pub fn call<T>(&self, calls: impl FnOnce(&CudaLike) -> Result<T, Refused>) -> T {
        // SAFETY: a live context, or a device of this driver.
        unsafe {
            match self.table.flavor() {
                Flavor::Cuda => self.table.push_current(self.context).unwrap(),
                Flavor::Hip => self.table.set_device(self.device).unwrap(),
            }
            let called = calls(&self.table);
            if self.table.flavor() == Flavor::Cuda {
                self.table.pop_current(&mut CuContext::NULL.clone()).unwrap();
            }
            called.unwrap()
        }
    }

    fn keep(&self, made: Made) {
        self.made.borrow_mut().push(made);
    }

    /// Memory of one kind; returns the address `LEAD` bytes after its start.
    pub fn memory(&self, kind: Kind, bytes: usize) -> u64 {
        let whole = LEAD + bytes;
        let start = self.call(|table| unsafe {
            Ok(match kind {
                Kind::Plain => {
                    let at = table.alloc(whole)?;
                    self.keep(Made::Device(at));
                    at.0
                }
                Kind::Async => {
                    let (mut at, stream) = (DevicePtr(0), self.stream());
                    let alloc = self.alloc_async.expect("only where it is there");
                    assert_eq!(alloc(&mut at, whole, stream), 0);
                    // Other streams may use it when this one has reached the allocation.
                    while table.stream_query(stream).is_err() {
                        thread::yield_now();
                    }
                    self.keep(Made::Device(at));
                    at.0
                }
                Kind::Managed => {
                    let at = table.alloc_managed(whole, consts::MEM_ATTACH_GLOBAL)?;
                    self.keep(Made::Device(at));
                    at.0
                }
                Kind::Pinned => {
                    let at =
                        table.host_alloc(whole, consts::HOST_PORTABLE | consts::HOST_DEVICE_MAP)?;
                    self.keep(Made::Host(at));
                    at.0 as u64
                }
                Kind::Registered => {
                    let whole = whole.next_multiple_of(4096);
                    let at: *mut c_void =
                        Vec::leak(vec![0u64; whole / 8 + 512]).as_mut_ptr().cast();
                    let at = at.byte_add(at.align_offset(4096));
                    table.host_register(
                        at,
                        whole,
                        consts::HOST_PORTABLE | consts::HOST_DEVICE_MAP,
                    )?;
                    self.keep(Made::Registered(at));
                    at as u64
                }
                Kind::Mapped => {
                    let whole = whole.next_multiple_of(UNIT);
                    let handle = self.create(table, whole)?;
                    let at = self.map(table, handle, whole)?;
                    self.keep(Made::Mapped(at, whole, handle));
                    at.0
                }
            })
        });
        start + LEAD as u64
    }

    pub unsafe fn create(
        &self,
        table: &CudaLike,
        bytes: usize,
    ) -> Result<AllocationHandle, Refused> {
        let location = Location { kind: consts::LOCATION_DEVICE, id: self.device };
        let prop = AllocationProp {
            kind: consts::ALLOCATION_PINNED,
            handle_types: consts::HANDLE_POSIX_FD,
            location,
            ..AllocationProp::default()
        };
        unsafe { table.create_allocation(bytes, &prop, 0) }
    }

    pub unsafe fn map(
        &self,
        table: &CudaLike,
        handle: AllocationHandle,
        bytes: usize,
    ) -> Result<DevicePtr, Refused> {
        let location = Location { kind: consts::LOCATION_DEVICE, id: self.device };
        unsafe {
            let at = table.reserve_address(bytes, 0, DevicePtr(0), 0)?;
            table.map_allocation(at, bytes, 0, handle, 0)?;
            let access = AccessDesc { location, flags: consts::ACCESS_READ_WRITE };
            table.set_access(at, bytes, &access, 1)?;
            Ok(at)
        }
    }

    pub fn stream(&self) -> CuStream {
        let stream = self.call(|table| unsafe { table.create_stream(consts::STREAM_NON_BLOCKING) });
        self.keep(Made::Stream(stream));
        stream
    }

    pub fn event(&self) -> CuEvent {
        let event = self.call(|table| unsafe { table.create_event(consts::EVENT_DISABLE_TIMING) });
        self.keep(Made::Event(event));
        event
    }

    pub fn fill(&self, at: u64, value: u32, words: usize, stream: CuStream) {
        self.call(|table| unsafe { table.fill_u32_async(DevicePtr(at), value, words, stream) });
    }

    /// Makes raw calls in another context.
    pub fn call_in<T>(
        &self,
        context: CuContext,
        calls: impl FnOnce(&CudaLike) -> Result<T, Refused>,
    ) -> T {
        self.call(|table| unsafe {
            table.push_current(context)?;
            let called = calls(table);
            table.pop_current(&mut CuContext::NULL.clone())?;
            called
        })
    }

    pub fn wait(&self, stream: CuStream) {
        let start = Instant::now();
        let idle = || self.call(|table| unsafe { Ok(table.stream_query(stream).is_ok()) });
        while !idle() {
            assert!(start.elapsed() < Duration::from_secs(20), "the application's stream hangs");
            thread::yield_now();
        }
    }

    /// All words at an address, by a raw copy.
    pub fn words(&self, at: u64, words: usize) -> Vec<u32> {
        let (mut seen, stream) = (vec![0u32; words], self.stream());
        self.call(|table| unsafe {
            table.read_async(seen.as_mut_ptr().cast(), DevicePtr(at), words * 4, stream)
        });
        self.wait(stream);
        seen
    }

    pub fn put(&self, at: u64, words: &[u32]) {
        let stream = self.stream();
        self.call(|table| unsafe {
            table.write_async(DevicePtr(at), words.as_ptr().cast(), words.len() * 4, stream)
        });
        self.wait(stream);
    }

    /// A word that holds a stream until `release`.
    pub fn hold(&self, stream: CuStream) -> Held {
        self.hold_in(self.context, stream)
    }

    /// A word that holds a stream of the given context until `release`.
    pub fn hold_in(&self, context: CuContext, stream: CuStream) -> Held {
        let flags = consts::HOST_PORTABLE | consts::HOST_DEVICE_MAP;
        let word = self.call(|table| unsafe { table.host_alloc(4096, flags) });
        self.keep(Made::Host(word));
        // SAFETY: pinned memory that is freed when the application ends, after its last use.
        let held = Held(unsafe { &*word.0.cast() });
        held.set(0);
        let wait = |table: &CudaLike| unsafe {
            let at = table.host_device_pointer(word.0, 0)?;
            match table.flavor() {
                Flavor::Cuda => table.cuda_wait_value(stream, at, 1, consts::WAIT_VALUE_GEQ),
                Flavor::Hip => {
                    table.hip_wait_value(stream, at, 1, consts::WAIT_VALUE_GEQ, u32::MAX)
                }
            }
        };
        match context == self.context {
            true => self.call(wait),
            false => self.call_in(context, wait),
        }
        held
    }
}

/// Frees everything: the driver refuses what onebuf has freed already, and the stub what onebuf still uses.
impl Drop for App {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        for made in self.made.take().into_iter().rev() {
            self.call(|table| unsafe {
                match made {
                    Made::Device(at) => table.free(at),
                    Made::Host(at) => table.host_free(at),
                    Made::Registered(at) => table.host_unregister(at),
                    Made::Mapped(at, bytes, handle) => {
                        table.unmap_allocation(at, bytes)?;
                        table.free_address(at, bytes)?;
                        table.release_allocation(handle)
                    }
                    Made::Stream(stream) => table.destroy_stream(stream),
                    Made::Event(event) => table.destroy_event(event),
                }
            });
        }
        if self.table.flavor() == Flavor::Cuda {
            // SAFETY: retained by `new`; its objects are gone.
            unsafe { self.table.release_primary(self.device) }.unwrap();
        }
    }
}

pub struct Held(&'static AtomicU32);

impl Held {
    fn set(&self, value: u32) {
        self.0.store(value, Ordering::SeqCst);
    }

    pub fn release(&self) {
        self.set(1);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Managed,
    Pinned,
    Registered,
    Mapped,
    /// From the driver's pool, where there is one.
    Async,
}

pub const KINDS: [Kind; 5] =
    [Kind::Plain, Kind::Managed, Kind::Pinned, Kind::Registered, Kind::Mapped];

impl App {
    pub fn kinds(&self) -> Vec<Kind> {
        KINDS.into_iter().chain(self.alloc_async.map(|_| Kind::Async)).collect()
    }
}

pub fn flavor_of(api: &str) -> Flavor {
    if api == "cuda" { Flavor::Cuda } else { Flavor::Hip }
}

/// Runs a test with the stub as both APIs, and with the machine's first CUDA device if there is one.
pub fn everywhere(test: impl Fn(&Hub, &Device, &App)) {
    each(|api, builder| {
        let library = cuda_stub().unwrap().to_string_lossy().into_owned();
        let hub = builder.verdicts(Default::default()).build().unwrap();
        let app = App::new(flavor_of(api), Some(&library), 0);
        test(&hub, &hub.device(&format!("{api}:0")).unwrap(), &app);
        drop(hub);
        drop(app);
    });
    let _alone = one_api();
    let hub = onebuf::builder().without(["opencl", "hip", "vulkan", "gl"]);
    let hub = hub.verdicts(Default::default()).build().unwrap();
    match hub.device("cuda:0") {
        Err(_) => lacking(
            &[Hardware::Nvidia],
            "no CUDA device: the application's objects were those of the stub",
        ),
        Ok(device) => {
            let app = App::new(Flavor::Cuda, None, 0);
            test(&hub, &device, &app);
            drop((device, hub));
            drop(app);
        }
    }
}
