//! OpenGL buffers on the stub driver. The test plays OpenGL's part on a separate thread, checks the order of the calls, and
//! makes each of them fail. The stub aborts on a use without acquire, a release before the work ends, and a buffer freed
//! before its object.

use super::{
    stub::{library, platforms},
    *,
};
use onebuf_hal::{
    AccessState, Api, ContextHandles, Export, NativeContext, ObjectHome, ObjectRange, PhysicalId,
};
use std::{
    ffi::{CStr, CString, c_void},
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        MutexGuard,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

const INFO: &str = "clGetGLContextInfoKHR";
const CONTEXT: &str = "clCreateContext";
const ACQUIRE: &str = "clEnqueueAcquireGLObjects";
const RELEASE: &str = "clEnqueueReleaseGLObjects";
const BYTES: usize = 5000;
const HANDLES: ContextHandles = ContextHandles { context: 0xc0, display: 0xd0 };

/// A fake OpenGL, and the thread context that its calls run in.
#[derive(Debug)]
struct OpenGl {
    path: CString,
    /// The context that is current where calls run.
    current: AtomicUsize,
}

/// A fake OpenGL buffer: a name, and bytes that only the stub driver and this fake access.
#[derive(Debug)]
struct Played {
    gl: Arc<OpenGl>,
    name: u32,
    bytes: Mutex<Vec<u8>>,
}

impl OpenGl {
    fn new(path: &str) -> Arc<OpenGl> {
        let (path, current) = (CString::new(path).unwrap(), AtomicUsize::new(HANDLES.context));
        Arc::new(OpenGl { path, current })
    }

    /// Looks up a test function of the stub.
    fn of_stub(&self, name: &CStr) -> *mut c_void {
        // SAFETY: both are C strings; the library is loaded and stays loaded.
        let found = unsafe {
            let library = libc::dlopen(self.path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            libc::dlsym(library, name.as_ptr())
        };
        assert!(!found.is_null(), "{name:?} is not in the stub");
        found
    }

    fn tell_buffer(&self, name: u32, memory: *mut c_void, bytes: usize) {
        // SAFETY: the stub function's type; the memory stays valid until the name is unregistered.
        unsafe {
            let tell: unsafe extern "C" fn(u32, *mut c_void, usize) =
                std::mem::transmute(self.of_stub(c"onebuf_stub_gl_buffer"));
            tell(name, memory, bytes);
        }
    }

    fn tell_current(&self, context: usize) {
        // SAFETY: the stub function's type.
        unsafe {
            let tell: unsafe extern "C" fn(usize) =
                std::mem::transmute(self.of_stub(c"onebuf_stub_gl_current"));
            tell(context);
        }
    }
}

impl ObjectHome for OpenGl {
    /// Runs the call on another thread, as OpenGL does.
    fn run(&self, call: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                self.tell_current(self.current.load(Ordering::Relaxed));
                call()
            });
            there.join().unwrap()
        })
    }
}

fn nothing<T>() -> Result<T> {
    Err(Error::unsupported("a played device", "a real one"))
}

/// A device that has only a context.
#[derive(Debug)]
struct Partner(Option<Arc<OpenGl>>, hal::DeviceInfo);

// SAFETY: it creates no objects.
unsafe impl hal::Device for Partner {
    fn info(&self) -> &hal::DeviceInfo {
        &self.1
    }

    fn native_handles(&self) -> Result<Vec<(&'static str, usize)>> {
        nothing()
    }

    fn native_context(&self) -> Result<NativeContext> {
        let home = self.0.clone().ok_or_else(|| Error::invalid("OpenGL's context is gone"))?;
        Ok(NativeContext { api: Api("gl"), handles: HANDLES, home })
    }

    fn allocate(&self, _: &AllocSpec, _: Option<&[u8]>) -> Result<Arc<dyn hal::Memory>> {
        nothing()
    }

    fn import(&self, _: &Export, _: Access) -> Result<Arc<dyn hal::Memory>> {
        nothing()
    }

    fn queue(&self, _: QueueSpec) -> Result<Arc<dyn hal::Queue>> {
        nothing()
    }

    fn build(&self, _: &Source) -> Result<Arc<dyn hal::Program>> {
        nothing()
    }

    fn compiles(&self) -> bool {
        false
    }

    fn descriptor(&self, _: &hal::AddressRange) -> Result<hal::FdRange> {
        nothing()
    }

    fn semaphore(&self) -> Result<hal::SharedSemaphore> {
        nothing()
    }

    fn import_semaphore(&self, _: BorrowedFd<'_>) -> Result<Arc<dyn hal::Semaphore>> {
        nothing()
    }

    fn will_share_with(&self, _: &Arc<dyn hal::Device>) {}

    unsafe fn base_device(
        self: Arc<Self>,
        _: &hal::LayeredHandles,
    ) -> Option<Result<Arc<dyn hal::BaseDevice>>> {
        None
    }

    unsafe fn chip_of(&self, _: hal::ContextHandles) -> Option<hal::PhysicalId> {
        None
    }

    fn page_file(&self, _: &hal::HostRange) -> Result<hal::PageFile> {
        nothing()
    }

    fn map_file(&self, _: OwnedFd, _: usize) -> Result<hal::HostRange> {
        nothing()
    }

    fn forgets_variables(&self) -> bool {
        false
    }

    fn post(&self) -> Option<&Arc<hal::watchdog::Post>> {
        None
    }
}

impl Played {
    fn new(gl: &Arc<OpenGl>, bytes: &[u8]) -> Arc<Played> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut bytes = bytes.to_vec();
        gl.tell_buffer(name, bytes.as_mut_ptr().cast(), bytes.len());
        Arc::new(Played { gl: gl.clone(), name, bytes: Mutex::new(bytes) })
    }

    fn object(self: &Arc<Played>) -> ObjectRange {
        let (api, name, home) = (Api("gl"), self.name as usize, self.clone());
        ObjectRange { api, name, bytes: BYTES, context: HANDLES, home }
    }

    /// The bytes as OpenGL sees them.
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap()
    }
}

impl ObjectHome for Played {
    fn run(&self, call: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        self.gl.run(call)
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.gl.tell_buffer(self.name, std::ptr::null_mut(), 0);
    }
}

/// A rig whose driver shares with OpenGL, and a fake OpenGL.
fn beside(path: &str) -> (Rig, Arc<OpenGl>) {
    let [ordinary, rig] = platforms(path);
    assert!(ordinary.device.info().caps.shares_objects_of.is_empty());
    assert_eq!(rig.device.info().caps.shares_objects_of, [Api("gl")]);
    (rig, OpenGl::new(path))
}

/// Announces a partner to the device before it is used.
fn acquaint(rig: &Rig, gl: Option<&Arc<OpenGl>>, api: &'static str) {
    let info = hal::DeviceInfo { api: Api(api), ..rig.device.info().clone() };
    rig.device.will_share_with(&(Arc::new(Partner(gl.cloned(), info)) as _));
}

/// The calls since the last reset, without those that wait.
fn calls(rig: &Rig) -> Vec<&'static str> {
    let calls = rig.probe.trace();
    rig.probe.reset();
    let waits = ["clFlush", "clFinish", "clWaitForEvents", "clGetEventInfo", "clReleaseEvent"];
    calls.into_iter().filter(|call| !waits.contains(call)).collect()
}

fn reside(rig: &Rig, queue: &dyn hal::Queue, memory: &dyn hal::Memory, to: AccessState) -> bool {
    rig.probe.reset();
    let changed = queue.reside(memory, to).unwrap();
    assert_eq!(memory.access_state(), to);
    changed
}

fn sync(queue: &dyn hal::Queue) {
    queue.mark().unwrap().wait(SECONDS).unwrap();
}

#[test]
fn each_turn_is_acquired_and_released() {
    let _alone = alone();
    let Some((_table, path)) = library() else { return };
    let (rig, gl) = beside(&path);
    acquaint(&rig, Some(&gl), "gl");
    rig.probe.reset();
    let queue = rig.queue();
    // Two queries (length, value) and the context: the stub accepts only the right properties.
    assert_eq!(calls(&rig)[..3], [INFO, INFO, CONTEXT]);
    let played = Played::new(&gl, &numbers(BYTES));
    let import = Export::Object(played.object());
    let memory = rig.device.import(&import, Access::ReadWrite).unwrap();
    drop(import);
    let made = ["clCreateFromGLBuffer", "clGetMemObjectInfo", "clSetMemObjectDestructorCallback"];
    assert_eq!(calls(&rig), made);
    assert_eq!((memory.bytes(), memory.memory_kind()), (BYTES, MemoryKind::Exportable));
    assert!(memory.needs_access_state() && memory.host_pointer().is_none());
    assert!(memory.remark().unwrap().contains("OpenGL"), "{:?}", memory.remark());
    assert_eq!(
        memory.access_state(),
        AccessState::Released,
        "it is OpenGL's until it is asked for"
    );
    assert!(invalid(queue.fill(&*memory, 0, 8, &[1])).contains("released"));

    assert!(reside(&rig, &*queue, &*memory, AccessState::Acquired));
    assert_eq!(calls(&rig), [ACQUIRE]);
    assert!(!reside(&rig, &*queue, &*memory, AccessState::Acquired) && calls(&rig).is_empty());
    assert_eq!(get(&*queue, &*memory, 0, BYTES), numbers(BYTES));
    put(&*queue, &*memory, 100, &[7; 100]);
    assert_eq!(*played.bytes(), numbers(BYTES), "nothing comes back before its turn");
    assert!(reside(&rig, &*queue, &*memory, AccessState::SharedRead));
    assert_eq!(calls(&rig), [RELEASE, ACQUIRE]);
    sync(&*queue);
    let model = [&numbers(BYTES)[..100], &[7; 100], &numbers(BYTES)[200..]].concat();
    assert_eq!(*played.bytes(), model);
    assert_eq!(get(&*queue, &*memory, 0, BYTES), model, "both read");

    // A region shares its access state with the whole. OpenGL then writes, and OpenCL sees it.
    let part = memory.region(1024, 512, Access::ReadWrite).unwrap();
    assert!(!reside(&rig, &*queue, &*part, AccessState::Acquired));
    put(&*queue, &*part, 0, &[9; 512]);
    assert!(reside(&rig, &*queue, &*part, AccessState::Released));
    assert_eq!(calls(&rig), [RELEASE]);
    sync(&*queue);
    assert_eq!(played.bytes()[1024..1536], [9; 512]);
    played.bytes()[..4].copy_from_slice(&[1, 2, 3, 4]);
    assert!(reside(&rig, &*queue, &*memory, AccessState::Acquired));
    assert_eq!(get(&*queue, &*memory, 0, 4), [1, 2, 3, 4]);

    // Pending work keeps the buffer; afterwards it is released, and its object is destroyed before it.
    let host_signal = queue.host_signal().unwrap();
    queue.fill(&*memory, 0, BYTES, &[8]).unwrap();
    drop(part);
    rig.probe.reset();
    drop(memory);
    assert_eq!(calls(&rig), [RELEASE, "clReleaseMemObject"]);
    assert_eq!(Arc::strong_count(&played), 2, "work still uses it");
    host_signal.open(Ok(()));
    sync(&*queue);
    is_only_ours(&played);
    assert_eq!(*played.bytes(), [8; BYTES]);
    drop((played, queue));
    let (probe, kept) = (rig.probe.clone(), Arc::strong_count(&gl));
    drop(rig);
    settled(&probe);
    assert_eq!(kept, 3, "a context keeps the one it was made with");
    is_only_ours(&gl);
}

#[test]
fn what_cannot_be_shared_says_why() {
    let _alone = alone();
    let Some((_table, path)) = library() else { return };
    let (rig, gl) = beside(&path);
    let played = Played::new(&gl, &numbers(BYTES));
    let refused = |rig: &Rig, object: ObjectRange| {
        rig.device.import(&Export::Object(object), Access::Read).unwrap_err().to_string()
    };
    let why = refused(&rig, played.object());
    assert!(
        why.contains("created after OpenGL was registered"),
        "the error lacks the reason: {why}"
    );
    let why = refused(&rig, ObjectRange { api: Api("vulkan"), ..played.object() });
    assert!(why.contains("an object of vulkan"), "{why}");

    // First a partner whose context is gone, then one of another API, which is ignored.
    let (rig, _) = beside(&path);
    acquaint(&rig, None, "gl");
    let why = refused(&rig, played.object());
    assert!(why.contains("OpenGL's context is gone"), "{why}");
    let (rig, _) = beside(&path);
    acquaint(&rig, Some(&gl), "vulkan");
    assert!(refused(&rig, played.object()).contains("created after OpenGL was registered"));

    // The driver does not know the context: OpenCL works, without sharing.
    let (rig, _) = beside(&path);
    gl.current.store(1, Ordering::Relaxed);
    acquaint(&rig, Some(&gl), "gl");
    let why = refused(&rig, played.object());
    assert!(why.contains(INFO) && why.contains("-1000"), "{why}");
    let own = rig.memory(MemoryKind::Device, 64).unwrap();
    put(&*rig.queue(), &*own, 0, &[5; 64]);
    gl.current.store(HANDLES.context, Ordering::Relaxed);

    // An older partner is used if the newest is gone.
    let (rig, _) = beside(&path);
    acquaint(&rig, Some(&gl), "gl");
    acquaint(&rig, None, "gl");
    let import = |object| rig.device.import(&Export::Object(object), Access::ReadWrite);
    drop(import(played.object()).unwrap());
    let other = ContextHandles { context: 1, ..HANDLES };
    let why = refused(&rig, ObjectRange { context: other, ..played.object() });
    assert!(why.contains("register yours before"), "{why}");
    let why = refused(&rig, ObjectRange { bytes: BYTES + 1, ..played.object() });
    assert!(why.contains("of which OpenCL sees 5000"), "{why}");
    let why = refused(&rig, ObjectRange { name: 77_777, ..played.object() });
    assert!(why.contains("clCreateFromGLBuffer") && why.contains("-60"), "{why}");
    gl.current.store(0, Ordering::Relaxed);
    assert!(refused(&rig, played.object()).contains("clCreateFromGLBuffer"));
    gl.current.store(HANDLES.context, Ordering::Relaxed);
    assert!(!rig.probe.live().contains_key("mem"), "{:?}", rig.probe.live());
    is_only_ours(&played);
}

/// The driver reports the chip of an OpenGL context.
#[test]
fn a_context_is_found_on_its_chip() {
    let _alone = alone();
    let Some((_table, path)) = library() else { return };
    let (rig, gl) = beside(&path);
    let device = super::super::Device::new({
        let mut next = || Domain(77);
        let found = discover(Some(&path), None, &mut next).unwrap();
        super::super::device::Driver::clone(found.devices[1].driver())
    });
    let chip = |context| {
        let mut chip = None;
        let asked = gl.run(&mut || {
            chip = device.chip_beneath(context);
            Ok(())
        });
        asked.map(|()| chip).unwrap()
    };
    assert_eq!(chip(HANDLES), Some(rig.device.info().physical));
    assert_ne!(chip(HANDLES), Some(PhysicalId::default()));
    assert_eq!(chip(ContextHandles { context: 1, ..HANDLES }), None, "not one that it knows");
}

/// One hand-over to OpenCL and back, up to the first error.
fn turns(rig: &Rig, gl: &Arc<OpenGl>) -> Result<()> {
    let played = Played::new(gl, &numbers(BYTES));
    let memory = rig.device.import(&Export::Object(played.object()), Access::ReadWrite)?;
    let queue = rig.device.queue(QueueSpec::default())?;
    queue.reside(&*memory, AccessState::Acquired)?;
    queue.fill(&*memory, 0, BYTES, &[3])?;
    queue.reside(&*memory, AccessState::SharedRead)?;
    queue.reside(&*memory, AccessState::Released)?;
    queue.mark()?.wait(SECONDS)?;
    assert_eq!(*played.bytes(), [3; BYTES], "what was given back is there");
    queue.reside(&*memory, AccessState::Acquired).map(drop)
}

/// Waits until the test holds the only reference, because a driver's thread may release late.
#[track_caller]
fn is_only_ours<T: ?Sized>(kept: &Arc<T>) {
    let start = Instant::now();
    while Arc::strong_count(kept) > 1 && start.elapsed() < SECONDS {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(Arc::strong_count(kept), 1, "somebody still has it");
}

#[test]
fn each_call_fails_once() {
    let _alone = alone();
    let Some((_table, path)) = library() else { return };
    let mut seen = std::collections::BTreeMap::new();
    for n in 1.. {
        let (rig, gl) = beside(&path);
        acquaint(&rig, Some(&gl), "gl");
        rig.probe.fail_nth(n, -5);
        let result = turns(&rig, &gl);
        let failed = rig.probe.failed();
        if let Some(failed) = failed {
            let why = result.as_ref().err().map(Error::to_string);
            seen.entry(failed).or_insert(why);
            rig.probe.fail_nth(0, 0);
            // After a failed context creation nothing is shared; other failed calls succeed when repeated.
            let again = turns(&rig, &gl);
            let without = [INFO, CONTEXT].contains(&failed);
            assert_eq!(again.is_ok(), !without, "after {failed}: {again:?}");
        }
        let probe = rig.probe.clone();
        drop(rig);
        settled(&probe);
        is_only_ours(&gl);
        if failed.is_none() {
            result.unwrap();
            break;
        }
    }
    for call in [INFO, CONTEXT] {
        let why = seen[call].as_deref().unwrap_or("nothing");
        assert!(why.contains(call) && why.contains("was made with OpenGL's"), "{call}: {why}");
    }
    let must = ["clCreateFromGLBuffer", "clSetMemObjectDestructorCallback", ACQUIRE, RELEASE];
    assert!(must.iter().all(|call| seen.contains_key(call)), "{seen:?}");
}
