//! EGL and OpenGL: one table, with EGL's calls from its library and OpenGL's from `eglGetProcAddress`.
//!
//! Contains only what compute needs: contexts without a window, buffers, fences and compute shaders.
//!
//! # Safety
//!
//! Each method has the contract of the C function it names; see the [crate page](crate#safety). OpenGL's functions need
//! a current context on the calling thread, and refer to that context's objects.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::loader::{self, Missing, as_function, library_of};
use crate::probe::Probe;

#[macro_use]
mod table;
#[cfg(test)]
mod tests;
mod types;

pub use types::{EglContext, EglDevice, EglDisplay, GlRefused, GlStatus, GlSync, Mapped, consts};

const SONAMES: &[&str] = &["libEGL.so.1", "libEGL.so"];
const HINT: &str =
    "it comes with the GPU's driver; for OpenGL on the CPU: apt install libegl1 libgl1-mesa-dri";

type GetProcAddress = unsafe extern "C" fn(*const c_char) -> *mut c_void;

gl_table! {
    /// The symbol table of EGL and OpenGL.
    pub struct Gl;

    egl_error = "eglGetError" () -> raw i32;
    egl_string = "eglQueryString" (display: EglDisplay, name: i32) -> raw *const c_char;
    egl_initialize = "eglInitialize" (
        display: EglDisplay, major: *mut i32, minor: *mut i32
    ) -> truth;
    egl_bind_api = "eglBindAPI" (api: u32) -> truth;
    egl_create_context = "eglCreateContext" (
        display: EglDisplay, config: *mut c_void, share: EglContext, attributes: *const i32
    ) -> handle EglContext, "context";
    egl_destroy_context = "eglDestroyContext" (
        display: EglDisplay, context: EglContext
    ) -> released_truth, "context";
    egl_make_current = "eglMakeCurrent" (
        display: EglDisplay, draw: *mut c_void, read: *mut c_void, context: EglContext
    ) -> truth;
    egl_release_thread = "eglReleaseThread" () -> settled_truth;
    [has_egl_devices]
    egl_devices = "eglQueryDevicesEXT" (
        most: i32, devices: *mut EglDevice, count: *mut i32
    ) -> truth;
    [has_egl_device_string]
    egl_device_string = "eglQueryDeviceStringEXT" (
        device: EglDevice, name: i32
    ) -> raw *const c_char;
    [has_egl_platform_display]
    egl_platform_display = "eglGetPlatformDisplayEXT" (
        platform: u32, native: *mut c_void, attributes: *const i32
    ) -> handle EglDisplay;

    egl_current_context = "eglGetCurrentContext" () -> raw EglContext;
    egl_current_display = "eglGetCurrentDisplay" () -> raw EglDisplay;

    error = "glGetError" () -> raw u32;
    string = "glGetString" (name: u32) -> asked_for *const c_char;
    string_at = "glGetStringi" (name: u32, index: u32) -> asked_for *const c_char;
    integer = "glGetIntegerv" (name: u32, into: *mut i32) -> asked;
    integer64 = "glGetInteger64v" (name: u32, into: *mut i64) -> asked;
    integer_at = "glGetIntegeri_v" (name: u32, index: u32, into: *mut i32) -> asked;
    [has_bytes_at]
    bytes_at = "glGetUnsignedBytei_vEXT" (name: u32, index: u32, into: *mut u8) -> asked;

    create_buffer = "glGenBuffers" () -> one, "mem";
    delete_buffer = "glDeleteBuffers" () -> end_one, "mem";
    bind_buffer = "glBindBuffer" (target: u32, buffer: u32) -> quiet;
    is_buffer = "glIsBuffer" (buffer: u32) -> asked_for u8;
    buffer_integer = "glGetBufferParameteri64v" (target: u32, name: u32, into: *mut i64) -> asked;
    bind_buffer_base = "glBindBufferBase" (target: u32, index: u32, buffer: u32) -> quiet;
    bind_buffer_range = "glBindBufferRange" (
        target: u32, index: u32, buffer: u32, offset: isize, bytes: isize
    ) -> quiet;
    buffer_data = "glBufferData" (
        target: u32, bytes: isize, data: *const c_void, usage: u32
    ) -> asked;
    [has_buffer_storage]
    buffer_storage = "glBufferStorage" (
        target: u32, bytes: isize, data: *const c_void, flags: u32
    ) -> asked;
    write_buffer = "glBufferSubData" (
        target: u32, offset: isize, bytes: isize, data: *const c_void
    ) -> asked;
    read_buffer = "glGetBufferSubData" (
        target: u32, offset: isize, bytes: isize, data: *mut c_void
    ) -> asked;
    copy_buffer = "glCopyBufferSubData" (
        from: u32, to: u32, from_offset: isize, to_offset: isize, bytes: isize
    ) -> asked;
    clear_buffer = "glClearBufferSubData" (
        target: u32, internal: u32, offset: isize, bytes: isize, format: u32, kind: u32,
        data: *const c_void
    ) -> asked;
    map_buffer = "glMapBufferRange" (
        target: u32, offset: isize, bytes: isize, access: u32
    ) -> made Mapped;
    flush_buffer = "glFlushMappedBufferRange" (target: u32, offset: isize, bytes: isize) -> asked;

    [has_create_memory]
    create_memory = "glCreateMemoryObjectsEXT" () -> one, "memory_object";
    [has_delete_memory]
    delete_memory = "glDeleteMemoryObjectsEXT" () -> end_one, "memory_object";
    [has_memory_parameter]
    memory_parameter = "glMemoryObjectParameterivEXT" (
        memory: u32, name: u32, value: *const i32
    ) -> asked;
    [has_import_fd]
    import_fd = "glImportMemoryFdEXT" (memory: u32, bytes: u64, kind: u32, fd: i32) -> asked;
    [has_buffer_storage_memory]
    buffer_storage_memory = "glBufferStorageMemEXT" (
        target: u32, bytes: isize, memory: u32, offset: u64
    ) -> asked;

    [has_create_semaphore]
    create_semaphore = "glGenSemaphoresEXT" () -> one, "semaphore";
    [has_delete_semaphore]
    delete_semaphore = "glDeleteSemaphoresEXT" () -> end_one, "semaphore";
    [has_import_semaphore]
    import_semaphore = "glImportSemaphoreFdEXT" (semaphore: u32, kind: u32, fd: i32) -> asked;
    [has_signal_semaphore]
    signal_semaphore = "glSignalSemaphoreEXT" (
        semaphore: u32, buffer_count: u32, buffers: *const u32, texture_count: u32,
        textures: *const u32, layouts: *const u32
    ) -> asked;
    [has_wait_semaphore]
    wait_semaphore = "glWaitSemaphoreEXT" (
        semaphore: u32, buffer_count: u32, buffers: *const u32, texture_count: u32,
        textures: *const u32, layouts: *const u32
    ) -> asked;

    memory_barrier = "glMemoryBarrier" (bits: u32) -> quiet;
    fence = "glFenceSync" (condition: u32, flags: u32) -> made GlSync, "event";
    wait_fence = "glClientWaitSync" (
        sync: GlSync, flags: u32, timeout_ns: u64
    ) -> waited u32;
    stay_behind = "glWaitSync" (sync: GlSync, flags: u32, timeout_ns: u64) -> asked;
    delete_fence = "glDeleteSync" (sync: GlSync) -> ended, "event";
    flush = "glFlush" () -> asked;
    finish = "glFinish" () -> asked;

    create_query = "glGenQueries" () -> one, "query";
    delete_query = "glDeleteQueries" () -> end_one, "query";
    query_counter = "glQueryCounter" (query: u32, target: u32) -> asked;
    query_result = "glGetQueryObjectui64v" (query: u32, name: u32, into: *mut u64) -> asked;

    create_shader = "glCreateShader" (kind: u32) -> made u32, "shader";
    delete_shader = "glDeleteShader" (shader: u32) -> ended, "shader";
    shader_source = "glShaderSource" (
        shader: u32, count: i32, texts: *const *const c_char, lengths: *const i32
    ) -> asked;
    compile_shader = "glCompileShader" (shader: u32) -> asked;
    shader_integer = "glGetShaderiv" (shader: u32, name: u32, into: *mut i32) -> asked;
    shader_log = "glGetShaderInfoLog" (
        shader: u32, room: i32, len: *mut i32, into: *mut c_char
    ) -> asked;
    create_program = "glCreateProgram" () -> made u32, "program";
    delete_program = "glDeleteProgram" (program: u32) -> ended, "program";
    attach_shader = "glAttachShader" (program: u32, shader: u32) -> asked;
    link_program = "glLinkProgram" (program: u32) -> asked;
    program_integer = "glGetProgramiv" (program: u32, name: u32, into: *mut i32) -> asked;
    program_log = "glGetProgramInfoLog" (
        program: u32, room: i32, len: *mut i32, into: *mut c_char
    ) -> asked;
    program_interface = "glGetProgramInterfaceiv" (
        program: u32, interface: u32, name: u32, into: *mut i32
    ) -> asked;
    program_resource = "glGetProgramResourceiv" (
        program: u32, interface: u32, index: u32, count: i32, names: *const u32, room: i32,
        len: *mut i32, into: *mut i32
    ) -> asked;
    use_program = "glUseProgram" (program: u32) -> quiet;
    dispatch = "glDispatchCompute" (x: u32, y: u32, z: u32) -> asked;
}

impl Gl {
    /// Opens EGL's library and looks up its symbols and OpenGL's. Creates no context.
    ///
    /// `library` is a path, a soname, or `none`. Without it the environment variable `ONEBUF_EGL_LIB` applies, and then
    /// the usual names are tried. Every call goes through `probe`, if there is one.
    pub fn load(library: Option<&str>, probe: Option<Arc<Probe>>) -> Result<Self, Missing> {
        let loaded = loader::open("gl", library, "ONEBUF_EGL_LIB", SONAMES, HINT)?;
        let by_name = loaded.symbol(c"eglGetProcAddress").map(|at| {
            // SAFETY: the prototype is that of EGL's header; the library is never closed.
            unsafe { as_function::<GetProcAddress>(at) }
        });
        let Some(by_name) = by_name else {
            return Err(Missing::incomplete("gl", loaded, &["eglGetProcAddress"], HINT));
        };
        let table = Self::resolve(probe, &|name| {
            // SAFETY: any name may be queried.
            loaded.symbol(name).or_else(|| NonNull::new(unsafe { by_name(name.as_ptr()) }))
        });
        match table.lacking() {
            lacking if lacking.is_empty() => Ok(table),
            lacking => Err(Missing::incomplete("gl", loaded, &lacking, HINT)),
        }
    }

    /// The path of the loaded EGL library.
    pub fn library(&self) -> Option<PathBuf> {
        library_of(self.egl_initialize? as *const c_void)
    }

    /// `eglGetCurrentContext`: null if there is none.
    pub fn current_context(&self) -> EglContext {
        // SAFETY: queries this thread's state, without preconditions.
        self.egl_current_context.map_or(EglContext::NULL, |call| unsafe { call() })
    }

    /// `eglGetCurrentDisplay`: null if no context is current.
    pub fn current_display(&self) -> EglDisplay {
        // SAFETY: queries this thread's state, without preconditions.
        self.egl_current_display.map_or(EglDisplay::NULL, |call| unsafe { call() })
    }

    /// Reports the OpenGL error of calls that other code made in the current context, and clears it.
    ///
    /// # Safety
    ///
    /// A context is current.
    pub unsafe fn pending(&self) -> Result<(), GlRefused> {
        self.answer("an earlier call of the application")
    }

    /// `eglQueryString`; without a display it describes the library itself. Empty if it returns nothing.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn egl_text(&self, display: EglDisplay, name: i32) -> String {
        let Ok(call) = self.enter(self.egl_string, "eglQueryString") else { return String::new() };
        // SAFETY: the caller keeps the C function's contract; the result is null, or a string that the library owns.
        unsafe { text_at(call(display, name)) }
    }

    /// `eglQueryDeviceStringEXT`. Empty if it returns nothing.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn egl_device_text(&self, device: EglDevice, name: i32) -> String {
        let call = self.enter(self.egl_device_string, "eglQueryDeviceStringEXT");
        let Ok(call) = call else { return String::new() };
        // SAFETY: the caller keeps the C function's contract; the result is null, or a string that the library owns.
        unsafe { text_at(call(device, name)) }
    }

    /// `glGetString` as text. Empty if it returns nothing.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn text(&self, name: u32) -> Result<String, GlRefused> {
        // SAFETY: the caller keeps the C function's contract; the result is null, or a string that the driver owns.
        Ok(unsafe { text_at(self.string(name)?) })
    }

    /// `glGetStringi` as text.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn text_at(&self, name: u32, index: u32) -> Result<String, GlRefused> {
        // SAFETY: the caller keeps the C function's contract; the result is null, or a string that the driver owns.
        Ok(unsafe { text_at(self.string_at(name, index)?) })
    }

    /// Returns the function; refuses if it is missing, in a forked child, or if the probe fails this call.
    fn enter<F>(&self, function: Option<F>, call: &'static str) -> Result<F, GlRefused> {
        let (function, chosen) = self.enter_anyway(function, call)?;
        chosen.map(|()| function)
    }

    /// Like `enter`, for a call that reaches the driver even if it is chosen to fail.
    #[allow(clippy::type_complexity)]
    fn enter_anyway<F>(
        &self,
        function: Option<F>,
        call: &'static str,
    ) -> Result<(F, Result<(), GlRefused>), GlRefused> {
        let function = function.ok_or(GlRefused { call, status: GlStatus::NOT_LOADED })?;
        if crate::fork::is_child() {
            return Err(GlRefused { call, status: GlStatus::FORKED });
        }
        let chosen = match &self.probe {
            None => Ok(()),
            Some(probe) => {
                probe.enter(call).map_err(|code| GlRefused { call, status: GlStatus(code) })
            }
        };
        Ok((function, chosen))
    }

    /// The EGL error of a call that returned this value.
    fn truth(&self, call: &'static str, answer: u32) -> Result<(), GlRefused> {
        const SUCCESS: i32 = 0x3000;
        if answer != 0 {
            return Ok(());
        }
        // SAFETY: queries this thread's last error, which any thread may do.
        let code = self.egl_error.map_or(SUCCESS, |error| unsafe { error() });
        let status = if code == SUCCESS { GlStatus::NULL_HANDLE } else { GlStatus(code) };
        Err(GlRefused { call, status })
    }

    /// The OpenGL error of the calls since the last query. There is one flag for each kind of error: all of them are
    /// cleared, and the first is returned.
    fn answer(&self, call: &'static str) -> Result<(), GlRefused> {
        const FLAGS: usize = 8;
        let Some(error) = self.error else { return Ok(()) };
        // SAFETY: the thread that made the call has a current context.
        let first = unsafe { error() };
        if first == 0 {
            return Ok(());
        }
        // Bounded, because a lost context reports an error on every query.
        // SAFETY: as above.
        (0..FLAGS).take_while(|_| unsafe { error() } != 0).for_each(drop);
        Err(GlRefused { call, status: GlStatus(first as i32) })
    }

    fn count(&self, kind: &'static str, change: i64) {
        if let Some(probe) = &self.probe {
            probe.count(kind, change);
        }
    }
}

/// # Safety
/// `at` is null, or a NUL-terminated string.
unsafe fn text_at(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

impl fmt::Debug for Gl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gl({:?})", self.library())
    }
}
