//! A context that is current on its own thread.

use super::{conv, executor::Executor};
use onebuf_hal::{ContextHandles, Result, locks::Arc, watchdog::Post};
use onebuf_sys::gl::{EglContext, EglDisplay, Gl, GlRefused, consts};
use std::{fmt, ptr, time::Duration};

/// OpenGL 4.3 core, which has compute shaders and storage blocks.
const ATTRIBUTES: [i32; 7] = [
    consts::EGL_CONTEXT_MAJOR_VERSION,
    4,
    consts::EGL_CONTEXT_MINOR_VERSION,
    3,
    consts::EGL_CONTEXT_OPENGL_PROFILE_MASK,
    consts::EGL_CONTEXT_OPENGL_CORE_PROFILE_BIT,
    consts::EGL_NONE,
];

/// The thread and its context. Every object created in the context keeps it alive.
pub(super) struct Stage {
    table: Arc<Gl>,
    display: EglDisplay,
    context: EglContext,
    executor: Executor,
}

impl Stage {
    /// Creates a context on an initialised display.
    pub fn open(table: &Arc<Gl>, display: EglDisplay, post: &Arc<Post>) -> Result<Stage> {
        Stage::sharing(table, display, EglContext::NULL, post)
    }

    /// Creates a context that shares the objects of another; null shares with none.
    pub fn sharing(
        table: &Arc<Gl>,
        display: EglDisplay,
        with: EglContext,
        post: &Arc<Post>,
    ) -> Result<Stage> {
        let executor = Executor::start(post.clone())?;
        let entered = executor.run(|| {
            enter(table, display, with).map_err(|refused| conv::refused(refused, post.name()))
        });
        let context = entered?;
        Ok(Stage { table: table.clone(), display, context, executor })
    }

    /// The context and its display, for another API.
    pub fn handles(&self) -> ContextHandles {
        let (context, display) = (self.context.0 as usize, self.display.0 as usize);
        ContextHandles { context, display }
    }

    /// Calls OpenGL with the context current.
    pub fn run<T: Send>(&self, call: impl FnOnce(&Gl) -> Result<T> + Send) -> Result<T> {
        self.executor.run(|| call(&self.table))
    }

    /// Like `run`, with another timeout for waiting in the thread's queue.
    pub fn run_within<T: Send>(
        &self,
        timeout: Duration,
        call: impl FnOnce(&Gl) -> Result<T> + Send,
    ) -> Result<T> {
        self.executor.run_within(timeout, || call(&self.table))
    }

    /// Calls OpenGL without waiting, for deletions.
    pub fn post(&self, call: impl FnOnce(&Gl) + Send + 'static) {
        let table = self.table.clone();
        self.executor.post(move || call(&table));
    }
}

/// Creates a context and makes it current; destroys it if that fails.
fn enter(table: &Gl, display: EglDisplay, with: EglContext) -> Result<EglContext, GlRefused> {
    let none = ptr::null_mut();
    // SAFETY: an initialised display; attributes with their terminator. `EGL_NO_CONFIG_KHR` is null; the context to
    // share with is alive, or null.
    unsafe {
        table.egl_bind_api(consts::EGL_OPENGL_API)?;
        let context = table.egl_create_context(display, none, with, ATTRIBUTES.as_ptr())?;
        // Without a surface: there is nothing to draw to.
        let current = table.egl_make_current(display, none, none, context);
        current.inspect_err(|_| leave(table, display, context))?;
        Ok(context)
    }
}

/// Destroys a context; one that is current is destroyed when its thread releases it.
fn leave(table: &Gl, display: EglDisplay, context: EglContext) {
    // The display is not terminated: the whole process shares it, and other code may use it.
    // SAFETY: created by `enter`, destroyed once; then this thread, which is ours, releases its EGL state.
    let answers =
        unsafe { [table.egl_destroy_context(display, context), table.egl_release_thread()] };
    for refused in answers.into_iter().filter_map(Result::err) {
        tracing::warn!("{refused}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let Stage { table, display, context, executor } = self;
        executor.finish(|| leave(table, *display, *context));
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stage({:?}, {:?})", self.context, self.executor)
    }
}
