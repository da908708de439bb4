//! A device's own context: one stream of work, shared by all its queues.

use super::{device::Driver, event::Event, stage::Stage};
use onebuf_hal::{
    self as hal, Error, NativeContext, Result,
    locks::{Arc, AtomicBool, Mutex, Ordering},
};
use onebuf_sys::gl::{EglContext, Gl, GlRefused, GlSync, consts};
use std::{
    sync::atomic,
    // The driver's threads are real ones, whatever schedules are being explored.
    thread::{self, ThreadId},
    time::Duration,
};

/// Everything that shaders' writes may meet here: other shaders, copies, and the host through maps.
const BARRIER: u32 = consts::SHADER_STORAGE_BARRIER_BIT
    | consts::BUFFER_UPDATE_BARRIER_BIT
    | consts::CLIENT_MAPPED_BUFFER_BARRIER_BIT;

/// A context. Everything made in it keeps it.
#[derive(Debug)]
pub(super) struct Context {
    pub driver: Arc<Driver>,
    /// By which events know where they were made.
    pub id: u64,
    place: Place,
    /// Whether a shader may have written what no barrier has made visible yet.
    unsettled: AtomicBool,
    /// The buffers in memory of other APIs. Changed and read on the context's thread.
    pub external: Arc<Mutex<Vec<u32>>>,
}

/// Where it is current.
#[derive(Debug)]
enum Place {
    /// On a thread of our own.
    Own(Stage),
    /// On the thread of whoever made it.
    Theirs(Inline),
}

/// A foreign context, used only on its owner's thread.
#[derive(Debug)]
struct Inline {
    thread: ThreadId,
    context: EglContext,
    /// Ours, which shares its objects: for what other threads ask, and for what is deleted.
    ours: Arc<Context>,
}

impl Inline {
    fn check(&self, driver: &Driver) -> Result<()> {
        let here = thread::current().id() == self.thread;
        if here && driver.table.current_context() == self.context {
            return Ok(());
        }
        Err(Error::ForeignContext {
            have: match here {
                true => "a thread on which another OpenGL context is current, or none".to_owned(),
                false => "another thread than the one that the OpenGL context was wrapped on".to_owned(),
            },
            want: "the wrapped context, current on its own thread; elsewhere use a queue of its device"
                .to_owned(),
        })
    }
}

impl Context {
    pub fn open(driver: &Arc<Driver>) -> Result<Context> {
        let stage = Stage::open(&driver.table, driver.display, &driver.post)?;
        Ok(Context::at(driver, Place::Own(stage)))
    }

    /// One of ours that shares the objects of somebody else's.
    pub fn sharing(driver: &Arc<Driver>, theirs: EglContext) -> Result<Context> {
        let stage = Stage::sharing(&driver.table, driver.display, theirs, &driver.post)?;
        Ok(Context::at(driver, Place::Own(stage)))
    }

    /// Somebody else's own, which is current on this thread, and which ours shares with.
    pub fn inline(ours: &Arc<Context>, theirs: EglContext) -> Result<Context> {
        let (thread, ours) = (thread::current().id(), ours.clone());
        let inline = Inline { thread, context: theirs, ours: ours.clone() };
        inline.check(&ours.driver)?;
        Ok(Context::at(&ours.driver, Place::Theirs(inline)))
    }

    fn at(driver: &Arc<Driver>, place: Place) -> Context {
        static NEXT: atomic::AtomicU64 = atomic::AtomicU64::new(0);
        let id = NEXT.fetch_add(1, atomic::Ordering::Relaxed);
        let (driver, external) = (driver.clone(), Arc::default());
        Context { driver, id, place, unsettled: AtomicBool::new(false), external }
    }

    /// Whether it is somebody else's.
    pub fn is_inline(&self) -> bool {
        matches!(self.place, Place::Theirs(_))
    }

    /// The one that any thread can ask: itself, or ours beside it.
    pub fn ours(self: &Arc<Self>) -> &Arc<Context> {
        match &self.place {
            Place::Own(_) => self,
            Place::Theirs(inline) => &inline.ours,
        }
    }

    /// Its handles, for another API's sharing calls: those of ours, where it is somebody else's.
    pub fn native(self: &Arc<Self>) -> NativeContext {
        match &self.place {
            Place::Own(stage) => {
                let (api, handles) = (self.driver.info.api, stage.handles());
                NativeContext { api, handles, home: self.clone() }
            }
            Place::Theirs(inline) => inline.ours.native(),
        }
    }

    /// Calls OpenGL, with the context current; its refusal becomes an error.
    pub fn run<T: Send>(&self, call: impl FnOnce(&Gl) -> Result<T, GlRefused> + Send) -> Result<T> {
        self.run_checked(|gl| self.driver.check(call(gl)))
    }

    /// The same where the call has errors of its own.
    pub fn run_checked<T: Send>(&self, call: impl FnOnce(&Gl) -> Result<T> + Send) -> Result<T> {
        match &self.place {
            Place::Own(stage) => stage.run(call),
            Place::Theirs(inline) => {
                inline.check(&self.driver)?;
                call(&self.driver.table)
            }
        }
    }

    /// The same as `run` with another time to wait for a turn.
    pub fn run_within<T: Send>(
        &self,
        timeout: Duration,
        call: impl FnOnce(&Gl) -> Result<T, GlRefused> + Send,
    ) -> Result<T> {
        match &self.place {
            Place::Own(stage) => stage.run_within(timeout, |gl| self.driver.check(call(gl))),
            Place::Theirs(_) => self.run(call),
        }
    }

    /// Deletes something, and nobody waits for it.
    pub fn delete(&self, call: impl FnOnce(&Gl) -> Result<(), GlRefused> + Send + 'static) {
        let driver = self.driver.clone();
        match &self.place {
            Place::Own(stage) => stage.post(move |gl| {
                if let Err(refused) = call(gl) {
                    tracing::warn!(device = %driver.info.name, "{refused}");
                }
            }),
            Place::Theirs(inline) => inline.ours.delete(call),
        }
    }

    /// Shaders may have written. On the context's thread.
    pub fn unsettle(&self) {
        self.unsettled.store(true, Ordering::Relaxed);
    }

    /// Makes what shaders wrote visible to everything after. On the context's thread.
    pub fn settle(&self, gl: &Gl) -> Result<(), GlRefused> {
        if self.unsettled.load(Ordering::Relaxed) {
            // SAFETY: the context is current.
            unsafe { gl.memory_barrier(BARRIER)? };
            self.unsettled.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A fence behind everything so far, and behind it all being visible. On the context's thread.
    pub fn fence(&self, gl: &Gl) -> Result<GlSync, GlRefused> {
        self.settle(gl)?;
        // SAFETY: the context is current.
        let sync = unsafe { gl.fence(consts::SYNC_GPU_COMMANDS_COMPLETE, 0)? };
        if self.is_inline() {
            // Nobody else can see to it that it is reached.
            // SAFETY: as above.
            let flushed = unsafe { gl.flush() };
            flushed.inspect_err(|_| {
                // SAFETY: as above; the fence is new, and deleted once.
                let _ = unsafe { gl.delete_fence(sync) };
            })?;
        }
        Ok(sync)
    }

    /// An event behind everything so far.
    pub fn mark(self: &Arc<Self>) -> Result<Event> {
        let sync = self.run(|gl| self.fence(gl))?;
        Ok(Event::new(self.clone(), sync))
    }
}

impl hal::ObjectHome for Context {
    fn run(&self, call: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        self.run_checked(|gl| {
            self.driver.check(self.settle(gl))?;
            call()
        })
    }
}

/// Whether work came to that fence within the time. On the context's thread.
pub(super) fn reached(gl: &Gl, sync: GlSync, timeout: Duration) -> Result<bool, GlRefused> {
    let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: the context is current, and the fence alive.
    let answer = unsafe { gl.wait_fence(sync, consts::SYNC_FLUSH_COMMANDS_BIT, ns)? };
    Ok(matches!(answer, consts::ALREADY_SIGNALED | consts::CONDITION_SATISFIED))
}
