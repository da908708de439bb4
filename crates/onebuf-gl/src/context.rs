//! A device's own context: one stream of work, shared by all its queues.

use super::{device::Driver, event::Event, memory::Inner, stage::Stage};
use onebuf_hal::{
    self as hal, Error, NativeContext, Result,
    locks::{Arc, AtomicBool, Mutex, Ordering},
    mapped::MappedMemories,
};
use onebuf_sys::gl::{EglContext, Gl, GlRefused, GlSync, consts};
use std::{
    fmt,
    sync::atomic,
    // The driver's threads are real, even when shuttle explores schedules.
    thread::{self, ThreadId},
    time::Duration,
};

/// Makes shaders' writes visible to other shaders, to copies, and to the host through maps.
const BARRIER: u32 = consts::SHADER_STORAGE_BARRIER_BIT
    | consts::BUFFER_UPDATE_BARRIER_BIT
    | consts::CLIENT_MAPPED_BUFFER_BARRIER_BIT;

/// A context. Every object created in it keeps it alive.
#[derive(Debug)]
pub(super) struct Context {
    pub driver: Arc<Driver>,
    /// Identifies the context in its events.
    pub id: u64,
    place: ContextThread,
    /// Whether a shader may have written since the last barrier.
    unsettled: AtomicBool,
    /// The buffers in memory of other APIs. Modified and read on the context's thread.
    pub external: Arc<Mutex<Vec<u32>>>,
    /// Buffers with coherent maps, which copies use in place.
    pub mapped: MappedMemories<Inner>,
}

/// The thread on which the context is current.
#[derive(Debug)]
enum ContextThread {
    /// A thread of onebuf.
    Own(Stage),
    /// The thread of the foreign context's owner.
    Theirs(Inline),
}

/// A foreign context, used where its owner has made it current.
#[derive(Debug)]
struct Inline {
    way: Way,
    context: EglContext,
    /// Our context, which shares its objects: for calls from other threads, and for deletions.
    ours: Arc<Context>,
}

/// How a call reaches a foreign context.
enum Way {
    /// On the thread where its owner has it.
    Thread(ThreadId),
    /// On any thread: its owner makes it current for the time of a call.
    Entered(Enter),
}

/// Runs its argument while the foreign context is current on the calling thread.
pub(super) type Enter = Box<dyn Fn(&mut dyn FnMut()) -> Result<()> + Send + Sync>;

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Thread(thread) => write!(f, "{thread:?}"),
            Way::Entered(_) => f.write_str("Entered"),
        }
    }
}

impl Inline {
    /// Whether the context is current on the calling thread, which may use it.
    fn is_here(&self, driver: &Driver) -> bool {
        let allowed = match &self.way {
            Way::Thread(thread) => thread::current().id() == *thread,
            Way::Entered(_) => true,
        };
        allowed && driver.table.current_context() == self.context
    }

    fn check(&self, driver: &Driver) -> Result<()> {
        if self.is_here(driver) { Ok(()) } else { Err(self.elsewhere()) }
    }

    fn elsewhere(&self) -> Error {
        let other = "a thread on which another OpenGL context is current, or none";
        let (have, want) = match &self.way {
            Way::Thread(thread) if *thread != thread::current().id() => (
                "another thread than the one that the OpenGL context was wrapped on",
                "the wrapped context, current on its own thread; elsewhere use a queue of its device",
            ),
            Way::Thread(_) => (
                other,
                "the wrapped context, current on its own thread; elsewhere use a queue of its device",
            ),
            Way::Entered(_) => (other, "the wrapped context, which its owner makes current"),
        };
        Error::ForeignContext { have: have.to_owned(), want: want.to_owned() }
    }

    /// Makes a call in the context, which its owner makes current if it is not.
    fn run<T>(&self, driver: &Driver, call: impl FnOnce(&Gl) -> Result<T>) -> Result<T> {
        let enter = match &self.way {
            Way::Entered(enter) if !self.is_here(driver) => enter,
            _ => return self.check(driver).and_then(|()| call(&driver.table)),
        };
        let (mut call, mut outcome) = (Some(call), None);
        enter(&mut || {
            // Once, however often the owner runs it.
            if let Some(call) = call.take() {
                outcome = Some(self.check(driver).and_then(|()| call(&driver.table)));
            }
        })?;
        outcome.unwrap_or_else(|| Err(self.elsewhere()))
    }
}

impl Context {
    pub fn open(driver: &Arc<Driver>) -> Result<Context> {
        let stage = Stage::open(&driver.table, driver.display, &driver.post)?;
        Ok(Context::at(driver, ContextThread::Own(stage)))
    }

    /// Creates a context of onebuf that shares the objects of a foreign one.
    pub fn sharing(driver: &Arc<Driver>, theirs: EglContext) -> Result<Context> {
        let stage = Stage::sharing(&driver.table, driver.display, theirs, &driver.post)?;
        Ok(Context::at(driver, ContextThread::Own(stage)))
    }

    /// Wraps a foreign context that is current on this thread, and that `ours` shares objects with.
    pub fn inline(ours: &Arc<Context>, theirs: EglContext) -> Result<Context> {
        let way = Way::Thread(thread::current().id());
        let inline = Inline { way, context: theirs, ours: ours.clone() };
        inline.check(&ours.driver)?;
        Ok(Context::at(&ours.driver, ContextThread::Theirs(inline)))
    }

    /// Wraps a foreign context that its owner makes current for each call, and that `ours` shares objects with.
    pub fn entered(ours: &Arc<Context>, theirs: EglContext, enter: Enter) -> Result<Context> {
        let inline = Inline { way: Way::Entered(enter), context: theirs, ours: ours.clone() };
        inline.run(&ours.driver, |_| Ok(()))?;
        Ok(Context::at(&ours.driver, ContextThread::Theirs(inline)))
    }

    fn at(driver: &Arc<Driver>, place: ContextThread) -> Context {
        static NEXT: atomic::AtomicU64 = atomic::AtomicU64::new(0);
        let id = NEXT.fetch_add(1, atomic::Ordering::Relaxed);
        let (driver, external) = (driver.clone(), Arc::default());
        let (unsettled, mapped) = (AtomicBool::new(false), MappedMemories::default());
        Context { driver, id, place, unsettled, external, mapped }
    }

    /// Whether it is a foreign context.
    pub fn is_inline(&self) -> bool {
        matches!(self.place, ContextThread::Theirs(_))
    }

    /// The functions of a foreign context that is current on the calling thread.
    pub fn here(&self) -> Option<&Gl> {
        match &self.place {
            ContextThread::Theirs(inline) if inline.is_here(&self.driver) => {
                Some(&self.driver.table)
            }
            _ => None,
        }
    }

    /// Returns the context that any thread can call: itself, or ours beside a foreign one.
    pub fn ours(self: &Arc<Self>) -> &Arc<Context> {
        match &self.place {
            ContextThread::Own(_) => self,
            ContextThread::Theirs(inline) => &inline.ours,
        }
    }

    /// The handles for another API's sharing calls; for a foreign context those of ours.
    pub fn native(self: &Arc<Self>) -> NativeContext {
        match &self.place {
            ContextThread::Own(stage) => {
                let (api, handles) = (self.driver.info.api, stage.handles());
                NativeContext { api, handles, home: self.clone() }
            }
            ContextThread::Theirs(inline) => inline.ours.native(),
        }
    }

    /// Calls OpenGL with the context current; a refusal becomes an error.
    pub fn run<T: Send>(&self, call: impl FnOnce(&Gl) -> Result<T, GlRefused> + Send) -> Result<T> {
        self.run_checked(|gl| self.driver.check(call(gl)))
    }

    /// Like `run`, for calls that return an `Error` themselves.
    pub fn run_checked<T: Send>(&self, call: impl FnOnce(&Gl) -> Result<T> + Send) -> Result<T> {
        match &self.place {
            ContextThread::Own(stage) => stage.run(call),
            ContextThread::Theirs(inline) => inline.run(&self.driver, call),
        }
    }

    /// Like `run`, with another timeout for waiting in the thread's queue.
    pub fn run_within<T: Send>(
        &self,
        timeout: Duration,
        call: impl FnOnce(&Gl) -> Result<T, GlRefused> + Send,
    ) -> Result<T> {
        match &self.place {
            ContextThread::Own(stage) => {
                stage.run_within(timeout, |gl| self.driver.check(call(gl)))
            }
            ContextThread::Theirs(_) => self.run(call),
        }
    }

    /// Deletes an object without waiting. Where a foreign context is current it is deleted there: to wake the thread of our context
    /// takes longer than a short command of the owner's.
    pub fn delete(&self, call: impl FnOnce(&Gl) -> Result<(), GlRefused> + Send + 'static) {
        let driver = self.driver.clone();
        let call = move |gl: &Gl| {
            if let Err(refused) = call(gl) {
                tracing::warn!(device = %driver.info.name, "{refused}");
            }
        };
        match self.here() {
            Some(gl) => call(gl),
            None => self.post(call),
        }
    }

    /// Calls OpenGL without waiting, in the context that any thread can call.
    fn post(&self, call: impl FnOnce(&Gl) + Send + 'static) {
        match &self.place {
            ContextThread::Own(stage) => stage.post(call),
            ContextThread::Theirs(inline) => inline.ours.post(call),
        }
    }

    /// Records that shaders may have written. Runs on the context's thread.
    pub fn unsettle(&self) {
        self.unsettled.store(true, Ordering::Relaxed);
    }

    /// Makes shaders' writes visible to all later commands. Runs on the context's thread.
    pub fn settle(&self, gl: &Gl) -> Result<(), GlRefused> {
        if self.unsettled.load(Ordering::Relaxed) {
            // SAFETY: the context is current.
            unsafe { gl.memory_barrier(BARRIER)? };
            self.unsettled.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Inserts a fence after all work so far and the barrier that makes it visible. Runs on the context's thread.
    pub fn fence(&self, gl: &Gl) -> Result<GlSync, GlRefused> {
        if self.is_inline() {
            // Shaders of its owner may have written.
            self.unsettle();
        }
        self.settle(gl)?;
        // SAFETY: the context is current.
        let sync = unsafe { gl.fence(consts::SYNC_GPU_COMMANDS_COMPLETE, 0)? };
        if self.is_inline() {
            // No other context can flush this fence.
            // SAFETY: as above.
            let flushed = unsafe { gl.flush() };
            flushed.inspect_err(|_| {
                // SAFETY: as above; the fence is new, and deleted once.
                let _ = unsafe { gl.delete_fence(sync) };
            })?;
        }
        Ok(sync)
    }

    /// Returns an event after all work so far.
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

/// Whether the fence is reached within the timeout. Runs on the context's thread.
pub(super) fn reached(gl: &Gl, sync: GlSync, timeout: Duration) -> Result<bool, GlRefused> {
    let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: the context is current, and the fence alive.
    let answer = unsafe { gl.wait_fence(sync, consts::SYNC_FLUSH_COMMANDS_BIT, ns)? };
    Ok(matches!(answer, consts::ALREADY_SIGNALED | consts::CONDITION_SATISFIED))
}
