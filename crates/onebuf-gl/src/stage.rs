//! A context that is current on its own thread.

use super::{conv, executor::Executor};
use onebuf_hal::{ContextHandles, Result, locks::Arc, watchdog::Post};
use onebuf_sys::gl::{EglContext, EglDisplay, Gl, GlRefused, consts};
use std::{fmt, ptr, time::Duration};

/// OpenGL 4.3, core: it has compute shaders and storage blocks.
const ATTRIBUTES: [i32; 7] = [
    consts::EGL_CONTEXT_MAJOR_VERSION,
    4,
    consts::EGL_CONTEXT_MINOR_VERSION,
    3,
    consts::EGL_CONTEXT_OPENGL_PROFILE_MASK,
    consts::EGL_CONTEXT_OPENGL_CORE_PROFILE_BIT,
    consts::EGL_NONE,
];

/// The thread and its context. Whatever is made in it keeps it.
pub(super) struct Stage {
    table: Arc<Gl>,
    display: EglDisplay,
    context: EglContext,
    executor: Executor,
}

impl Stage {
    /// Makes a context on a display that was initialised.
    pub fn open(table: &Arc<Gl>, display: EglDisplay, post: &Arc<Post>) -> Result<Stage> {
        Stage::sharing(table, display, EglContext::NULL, post)
    }

    /// The same with the objects of another context; null shares with none.
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

    /// Calls OpenGL, with the context current.
    pub fn run<T: Send>(&self, call: impl FnOnce(&Gl) -> Result<T> + Send) -> Result<T> {
        self.executor.run(|| call(&self.table))
    }

    /// The same with another time to wait for a turn.
    pub fn run_within<T: Send>(
        &self,
        timeout: Duration,
        call: impl FnOnce(&Gl) -> Result<T> + Send,
    ) -> Result<T> {
        self.executor.run_within(timeout, || call(&self.table))
    }

    /// The same, and nobody waits: for what is to be deleted.
    pub fn post(&self, call: impl FnOnce(&Gl) + Send + 'static) {
        let table = self.table.clone();
        self.executor.post(move || call(&table));
    }
}

/// A context, made and current; nothing is left of one that cannot be.
fn enter(table: &Gl, display: EglDisplay, with: EglContext) -> Result<EglContext, GlRefused> {
    let none = ptr::null_mut();
    // SAFETY: a display that was initialised; attributes that end as they must. `EGL_NO_CONFIG_KHR` is
    // null; the context to share with is alive, or null.
    unsafe {
        table.egl_bind_api(consts::EGL_OPENGL_API)?;
        let context = table.egl_create_context(display, none, with, ATTRIBUTES.as_ptr())?;
        // Without a surface: there is nothing to draw to.
        let current = table.egl_make_current(display, none, none, context);
        current.inspect_err(|_| leave(table, display, context))?;
        Ok(context)
    }
}

/// A context that is current goes when its thread lets go of it.
fn leave(table: &Gl, display: EglDisplay, context: EglContext) {
    // The display is not terminated: it is one for the whole process, and others may use it.
    // SAFETY: made by `enter`, destroyed once; then this thread, which is ours, forgets all of EGL.
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
