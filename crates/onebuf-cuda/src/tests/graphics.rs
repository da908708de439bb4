//! OpenGL buffers, simulated by the test on its own thread: every call in order, and each call failing.

use super::{
    faults::sweep,
    sharing::{argument, each_shared, live, names, of_stub, recorded},
    *,
};
use onebuf_hal::{AccessState, Api, ObjectHome, ObjectRange, RawHandle};
use std::{
    ffi::{c_int, c_void},
    sync::atomic::AtomicBool,
};

const BYTES: usize = 5000;

/// A simulated OpenGL buffer: its name and its bytes.
#[derive(Debug)]
struct Played {
    name: u32,
    bytes: Mutex<Vec<u8>>,
    /// Whether a context is current on the thread that runs the calls.
    current: AtomicBool,
}

fn stub_gl_buffer(name: u32, memory: *mut c_void, bytes: usize) {
    // SAFETY: the function's type in the stub; the memory stays allocated until the test unregisters it.
    unsafe {
        let tell: unsafe extern "C" fn(u32, *mut c_void, usize) =
            std::mem::transmute(of_stub(c"onebuf_stub_gl_buffer"));
        tell(name, memory, bytes);
    }
}

fn stub_gl(what: &std::ffi::CStr, is: bool) {
    // SAFETY: the function's type in the stub.
    unsafe {
        let tell: unsafe extern "C" fn(c_int) = std::mem::transmute(of_stub(what));
        tell(is.into());
    }
}

impl Played {
    fn new(bytes: &[u8]) -> Arc<Played> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = NEXT.fetch_add(1, Ordering::Relaxed);
        let (mut bytes, current) = (bytes.to_vec(), AtomicBool::new(true));
        stub_gl_buffer(name, bytes.as_mut_ptr().cast(), bytes.len());
        Arc::new(Played { name, bytes: Mutex::new(bytes), current })
    }

    fn export(self: &Arc<Played>) -> Export {
        let (name, bytes) = (self.name as usize, self.bytes().len());
        let (api, home) = (Api("gl"), self.clone());
        Export::Object(ObjectRange { api, name, bytes, context: Default::default(), home })
    }

    /// The bytes that OpenGL sees.
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap()
    }
}

impl ObjectHome for Played {
    /// Runs the call on another thread, like OpenGL's.
    fn run(&self, call: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        let current = self.current.load(Ordering::Relaxed);
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                stub_gl(c"onebuf_stub_gl_current", current);
                call()
            });
            there.join().unwrap()
        })
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        stub_gl_buffer(self.name, std::ptr::null_mut(), 0);
    }
}

/// The names of the recorded resource calls, without their prefix.
fn calls(rig: &Rig) -> Vec<String> {
    let prefix = rig.call("Graphics");
    let lines = recorded();
    names(&lines).iter().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned).collect()
}

fn pointer(rig: &Rig) -> &'static str {
    rig.flavor.pick(["ResourceGetMappedPointer_v2", "ResourceGetMappedPointer"])
}

#[test]
fn a_buffer_is_mapped_while_it_is_ours() {
    each_shared(|rig| {
        let (queue, played) = (rig.queue(), Played::new(&numbers(BYTES)));
        let memory = rig.device.import(&played.export(), Access::ReadWrite).unwrap();
        let made = recorded();
        let register = made.iter().find(|line| line.contains("Register")).unwrap();
        assert_eq!(argument(register, "buffer"), played.name.to_string());
        assert_eq!(argument(register, "flags"), "0");
        assert_eq!((memory.bytes(), memory.memory_kind()), (BYTES, MemoryKind::Device));
        assert!(memory.needs_access_state());
        assert_eq!(
            memory.access_state(),
            AccessState::Released,
            "it is OpenGL's until it is asked for"
        );
        assert!(memory.remark().unwrap().contains("OpenGL"));

        assert_eq!(queue.reside(&*memory, AccessState::Acquired), Ok(true));
        assert_eq!(queue.reside(&*memory, AccessState::Acquired), Ok(false));
        assert_eq!(calls(rig), ["MapResources", pointer(rig)]);
        assert_eq!(get(&*queue, &*memory, 0, BYTES), numbers(BYTES));
        queue.fill(&*memory, 4, 2000, &[7]).unwrap();
        assert_eq!(*played.bytes(), numbers(BYTES), "nothing comes back before its turn");
        // The other API may read, and kernels of this one still can.
        assert_eq!(queue.reside(&*memory, AccessState::SharedRead), Ok(true));
        assert_eq!(calls(rig), ["UnmapResources", "MapResources", pointer(rig)]);
        let model = [&numbers(BYTES)[..4], &[7; 2000], &numbers(BYTES)[2004..]].concat();
        assert_eq!(*played.bytes(), model);
        assert_eq!(get(&*queue, &*memory, 0, BYTES), model);
        assert_eq!(queue.reside(&*memory, AccessState::Acquired), Ok(false));

        // A region shares the access state, and OpenGL sees it only after the queue's work.
        let part = memory.region(1024, 512, Access::ReadWrite).unwrap();
        nap(rig, &*queue, 5);
        put(&*queue, &*part, 0, &[9; 512]);
        assert_eq!(queue.reside(&*part, AccessState::Released), Ok(true));
        assert_eq!(calls(rig), ["UnmapResources"]);
        assert_eq!(memory.access_state(), AccessState::Released);
        assert_eq!(played.bytes()[1024..1536], [9; 512]);
        drop((part, memory));
        assert_eq!(calls(rig), ["UnregisterResource"]);
    });
}

/// Memory dropped while mapped is unmapped first, after its work; the buffer's owner is dropped last.
#[test]
fn it_is_given_back_behind_its_work() {
    each_shared(|rig| {
        let (queue, played) = (rig.queue(), Played::new(&[1; BYTES]));
        let memory = rig.device.import(&played.export(), Access::ReadWrite).unwrap();
        queue.reside(&*memory, AccessState::Acquired).unwrap();
        let (hold, _) = Hold::new(rig, &*queue, false);
        queue.fill(&*memory, 0, BYTES, &[2]).unwrap();
        recorded();
        drop(memory);
        assert_eq!((Arc::strong_count(&played), calls(rig).len()), (2, 0), "work still uses it");
        hold.let_go();
        queue.mark().unwrap().wait(SECONDS).unwrap();
        // Any later call frees what was deferred.
        drop((hold, rig.memory(MemoryKind::Device, 64).unwrap()));
        assert_eq!(calls(rig), ["UnmapResources", "UnregisterResource"]);
        assert_eq!(Arc::strong_count(&played), 1);
        assert_eq!(*played.bytes(), [2; BYTES]);
    });
}

#[test]
fn what_cannot_be_shared_says_why() {
    each_shared(|rig| {
        let (queue, played) = (rig.queue(), Played::new(&[1; BYTES]));
        let import = |export: &Export| rig.device.import(export, Access::ReadWrite);
        let Export::Object(object) = played.export() else { unreachable!() };
        let other = ObjectRange { api: Api("vulkan"), ..object.clone() };
        let refused = import(&Export::Object(other)).unwrap_err().to_string();
        assert!(refused.contains("an object of vulkan"), "{refused}");
        let large = ObjectRange { bytes: BYTES + 1, ..object.clone() };
        let refused = import(&Export::Object(large)).unwrap_err().to_string();
        assert!(refused.contains("mapped as 5000"), "{refused}");
        let none = ObjectRange { name: 77, ..object.clone() };
        let refused = import(&Export::Object(none)).unwrap_err();
        assert!(matches!(refused, Error::Driver { code: 1, .. }), "{refused}");
        played.current.store(false, Ordering::Relaxed);
        let refused = import(&Export::Object(object)).unwrap_err();
        assert!(matches!(refused, Error::Driver { code: 219, .. }), "{refused}");
        assert_eq!(live(), 0);
        played.current.store(true, Ordering::Relaxed);

        // A buffer whose address changes is not mapped, and stays with OpenGL.
        let memory = import(&played.export()).unwrap();
        stub_gl(c"onebuf_stub_gl_move", true);
        queue.reside(&*memory, AccessState::Acquired).unwrap();
        queue.reside(&*memory, AccessState::Released).unwrap();
        let moved = queue.reside(&*memory, AccessState::Acquired).unwrap_err().to_string();
        stub_gl(c"onebuf_stub_gl_move", false);
        assert!(moved.contains("which moved from"), "{moved}");
        assert_eq!(memory.access_state(), AccessState::Released);
        queue.reside(&*memory, AccessState::Acquired).unwrap();
        let RawHandle::Address(_) = memory.raw() else { panic!("{memory:?}") };
        assert!(memory.export_address(&*queue).is_err() && memory.export_ipc().is_err());
        drop(memory);
    });
}

/// One hand-over there and back, up to the first error.
fn turns(rig: &Rig) -> Result<()> {
    let played = Played::new(&numbers(BYTES));
    let memory = rig.device.import(&played.export(), Access::ReadWrite)?;
    let queue = rig.device.queue(QueueSpec::default())?;
    queue.reside(&*memory, AccessState::Acquired)?;
    queue.fill(&*memory, 0, BYTES, &[3])?;
    queue.reside(&*memory, AccessState::SharedRead)?;
    queue.reside(&*memory, AccessState::Released)?;
    queue
        .reside(&*memory, AccessState::Acquired)
        .map(|_| assert_eq!(*played.bytes(), [3; BYTES], "what was given back is there"))
}

#[test]
fn each_call_fails_once_and_nothing_stays_mapped() {
    let _alone = alone();
    for flavor in [Flavor::Cuda, Flavor::Hip] {
        if stub().is_none() {
            return;
        }
        let seen = sweep(flavor, turns);
        assert_eq!(live(), 0);
        let prefix = flavor.pick(["cu", "hip"]);
        for name in ["GLRegisterBuffer", "MapResources", "UnmapResources", "UnregisterResource"] {
            let name = format!("{prefix}Graphics{name}");
            assert!(seen.contains(&&*name), "{name} was not made to fail: {seen:?}");
        }
    }
}
