//! Handles, statuses and numbers of EGL and OpenGL.

use std::ffi::c_void;
use std::fmt;

/// A status of EGL or OpenGL, whose numbers do not overlap. A newtype and not an `enum`: drivers return codes that no
/// header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct GlStatus(pub i32);

impl GlStatus {
    /// Not from a driver: the library does not have this call.
    pub const NOT_LOADED: Self = Self(i32::MIN);
    /// Not from a driver: the call reported no error, but returned nothing.
    pub const NULL_HANDLE: Self = Self(i32::MIN + 1);
    /// Not from a driver: this is a forked child, where no driver is called.
    pub const FORKED: Self = Self(crate::fork::FORKED);

    /// Whether the context and everything created in it is unusable.
    pub const fn is_fatal(self) -> bool {
        matches!(self, Self::CONTEXT_LOST | Self::EGL_CONTEXT_LOST)
    }
}

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl GlStatus {
            $(
                #[doc = concat!("`", $text, "`")]
                pub const $name: Self = Self($code);
            )*

            /// The name in Khronos' headers.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($text),)*
                    _ => None,
                }
            }

            #[cfg(test)]
            pub(crate) const NAMES: &[(&str, i64)] = &[$(($text, $code)),*];
        }
    };
}

codes! {
    INVALID_ENUM = 0x0500, "GL_INVALID_ENUM";
    INVALID_VALUE = 0x0501, "GL_INVALID_VALUE";
    INVALID_OPERATION = 0x0502, "GL_INVALID_OPERATION";
    STACK_OVERFLOW = 0x0503, "GL_STACK_OVERFLOW";
    STACK_UNDERFLOW = 0x0504, "GL_STACK_UNDERFLOW";
    OUT_OF_MEMORY = 0x0505, "GL_OUT_OF_MEMORY";
    INVALID_FRAMEBUFFER_OPERATION = 0x0506, "GL_INVALID_FRAMEBUFFER_OPERATION";
    CONTEXT_LOST = 0x0507, "GL_CONTEXT_LOST";
    EGL_NOT_INITIALIZED = 0x3001, "EGL_NOT_INITIALIZED";
    EGL_BAD_ACCESS = 0x3002, "EGL_BAD_ACCESS";
    EGL_BAD_ALLOC = 0x3003, "EGL_BAD_ALLOC";
    EGL_BAD_ATTRIBUTE = 0x3004, "EGL_BAD_ATTRIBUTE";
    EGL_BAD_CONFIG = 0x3005, "EGL_BAD_CONFIG";
    EGL_BAD_CONTEXT = 0x3006, "EGL_BAD_CONTEXT";
    EGL_BAD_CURRENT_SURFACE = 0x3007, "EGL_BAD_CURRENT_SURFACE";
    EGL_BAD_DISPLAY = 0x3008, "EGL_BAD_DISPLAY";
    EGL_BAD_MATCH = 0x3009, "EGL_BAD_MATCH";
    EGL_BAD_NATIVE_PIXMAP = 0x300A, "EGL_BAD_NATIVE_PIXMAP";
    EGL_BAD_NATIVE_WINDOW = 0x300B, "EGL_BAD_NATIVE_WINDOW";
    EGL_BAD_PARAMETER = 0x300C, "EGL_BAD_PARAMETER";
    EGL_BAD_SURFACE = 0x300D, "EGL_BAD_SURFACE";
    EGL_CONTEXT_LOST = 0x300E, "EGL_CONTEXT_LOST";
}

impl fmt::Display for GlStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.name()) {
            (Self::NOT_LOADED, _) => f.write_str("call not offered by the library"),
            (Self::NULL_HANDLE, _) => f.write_str("null result from a call that reported no error"),
            (Self::FORKED, _) => f.write_str(crate::fork::WHY),
            (Self(code), Some(name)) => write!(f, "{name} ({code:#06x})"),
            (Self(code), None) => write!(f, "status {code:#x}"),
        }
    }
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlRefused {
    /// The C name of the call.
    pub call: &'static str,
    /// The driver's status.
    pub status: GlStatus,
}

impl fmt::Display for GlRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.status)
    }
}

impl std::error::Error for GlRefused {}

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// The null object.
            pub const NULL: Self = Self(std::ptr::null_mut());

            /// Whether it is null.
            pub fn is_null(&self) -> bool {
                self.0.is_null()
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::NULL
            }
        }

        // SAFETY: a handle is never dereferenced here; the calls' contracts state what each thread may do with it.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// `EGLDeviceEXT`
    EglDevice;
    /// `EGLDisplay`
    EglDisplay;
    /// `EGLContext`
    EglContext;
    /// `GLsync`
    GlSync;
    /// The address of a mapped buffer.
    Mapped;
}

/// Numbers of the headers.
pub mod consts {
    macro_rules! consts {
        ($($name:ident: $ty:ty = $value:literal, $text:literal;)*) => {
            $(
                #[doc = concat!("`", $text, "`")]
                pub const $name: $ty = $value;
            )*

            #[cfg(test)]
            pub(crate) const NAMES: &[(&str, i64)] = &[$(($text, $value)),*];
        };
    }

    consts! {
        EGL_EXTENSIONS: i32 = 0x3055, "EGL_EXTENSIONS";
        EGL_VENDOR: i32 = 0x3053, "EGL_VENDOR";
        EGL_NONE: i32 = 0x3038, "EGL_NONE";
        EGL_OPENGL_API: u32 = 0x30A2, "EGL_OPENGL_API";
        EGL_CONTEXT_MAJOR_VERSION: i32 = 0x3098, "EGL_CONTEXT_MAJOR_VERSION";
        EGL_CONTEXT_MINOR_VERSION: i32 = 0x30FB, "EGL_CONTEXT_MINOR_VERSION";
        EGL_CONTEXT_OPENGL_PROFILE_MASK: i32 = 0x30FD, "EGL_CONTEXT_OPENGL_PROFILE_MASK";
        EGL_CONTEXT_OPENGL_CORE_PROFILE_BIT: i32 = 1, "EGL_CONTEXT_OPENGL_CORE_PROFILE_BIT";
        EGL_PLATFORM_DEVICE_EXT: u32 = 0x313F, "EGL_PLATFORM_DEVICE_EXT";
        EGL_PLATFORM_SURFACELESS_MESA: u32 = 0x31DD, "EGL_PLATFORM_SURFACELESS_MESA";

        VENDOR: u32 = 0x1F00, "GL_VENDOR";
        RENDERER: u32 = 0x1F01, "GL_RENDERER";
        VERSION: u32 = 0x1F02, "GL_VERSION";
        EXTENSIONS: u32 = 0x1F03, "GL_EXTENSIONS";
        NUM_EXTENSIONS: u32 = 0x821D, "GL_NUM_EXTENSIONS";
        MAJOR_VERSION: u32 = 0x821B, "GL_MAJOR_VERSION";
        MINOR_VERSION: u32 = 0x821C, "GL_MINOR_VERSION";
        NUM_DEVICE_UUIDS: u32 = 0x9596, "GL_NUM_DEVICE_UUIDS_EXT";
        DEVICE_UUID: u32 = 0x9597, "GL_DEVICE_UUID_EXT";
        DRIVER_UUID: u32 = 0x9598, "GL_DRIVER_UUID_EXT";

        COPY_READ_BUFFER: u32 = 0x8F36, "GL_COPY_READ_BUFFER";
        COPY_WRITE_BUFFER: u32 = 0x8F37, "GL_COPY_WRITE_BUFFER";
        UNIFORM_BUFFER: u32 = 0x8A11, "GL_UNIFORM_BUFFER";
        SHADER_STORAGE_BUFFER: u32 = 0x90D2, "GL_SHADER_STORAGE_BUFFER";
        EXTERNAL_VIRTUAL_MEMORY_BUFFER: u32 = 0x9160, "GL_EXTERNAL_VIRTUAL_MEMORY_BUFFER_AMD";
        STREAM_DRAW: u32 = 0x88E0, "GL_STREAM_DRAW";
        DYNAMIC_COPY: u32 = 0x88EA, "GL_DYNAMIC_COPY";
        BUFFER_SIZE: u32 = 0x8764, "GL_BUFFER_SIZE";
        BUFFER_USAGE: u32 = 0x8765, "GL_BUFFER_USAGE";
        BUFFER_MAPPED: u32 = 0x88BC, "GL_BUFFER_MAPPED";
        BUFFER_ACCESS_FLAGS: u32 = 0x911F, "GL_BUFFER_ACCESS_FLAGS";
        BUFFER_IMMUTABLE_STORAGE: u32 = 0x821F, "GL_BUFFER_IMMUTABLE_STORAGE";
        BUFFER_STORAGE_FLAGS: u32 = 0x8220, "GL_BUFFER_STORAGE_FLAGS";

        MAP_READ_BIT: u32 = 0x0001, "GL_MAP_READ_BIT";
        MAP_WRITE_BIT: u32 = 0x0002, "GL_MAP_WRITE_BIT";
        MAP_FLUSH_EXPLICIT_BIT: u32 = 0x0010, "GL_MAP_FLUSH_EXPLICIT_BIT";
        MAP_PERSISTENT_BIT: u32 = 0x0040, "GL_MAP_PERSISTENT_BIT";
        MAP_COHERENT_BIT: u32 = 0x0080, "GL_MAP_COHERENT_BIT";
        DYNAMIC_STORAGE_BIT: u32 = 0x0100, "GL_DYNAMIC_STORAGE_BIT";
        CLIENT_STORAGE_BIT: u32 = 0x0200, "GL_CLIENT_STORAGE_BIT";

        R8UI: u32 = 0x8232, "GL_R8UI";
        R16UI: u32 = 0x8234, "GL_R16UI";
        R32UI: u32 = 0x8236, "GL_R32UI";
        RG32UI: u32 = 0x823C, "GL_RG32UI";
        RGBA32UI: u32 = 0x8D70, "GL_RGBA32UI";
        RED_INTEGER: u32 = 0x8D94, "GL_RED_INTEGER";
        RG_INTEGER: u32 = 0x8228, "GL_RG_INTEGER";
        RGBA_INTEGER: u32 = 0x8D99, "GL_RGBA_INTEGER";
        UNSIGNED_BYTE: u32 = 0x1401, "GL_UNSIGNED_BYTE";
        UNSIGNED_SHORT: u32 = 0x1403, "GL_UNSIGNED_SHORT";
        UNSIGNED_INT: u32 = 0x1405, "GL_UNSIGNED_INT";

        SHADER_STORAGE_BARRIER_BIT: u32 = 0x2000, "GL_SHADER_STORAGE_BARRIER_BIT";
        BUFFER_UPDATE_BARRIER_BIT: u32 = 0x0200, "GL_BUFFER_UPDATE_BARRIER_BIT";
        CLIENT_MAPPED_BUFFER_BARRIER_BIT: u32 = 0x4000, "GL_CLIENT_MAPPED_BUFFER_BARRIER_BIT";

        SYNC_GPU_COMMANDS_COMPLETE: u32 = 0x9117, "GL_SYNC_GPU_COMMANDS_COMPLETE";
        SYNC_FLUSH_COMMANDS_BIT: u32 = 0x0001, "GL_SYNC_FLUSH_COMMANDS_BIT";
        ALREADY_SIGNALED: u32 = 0x911A, "GL_ALREADY_SIGNALED";
        TIMEOUT_EXPIRED: u32 = 0x911B, "GL_TIMEOUT_EXPIRED";
        CONDITION_SATISFIED: u32 = 0x911C, "GL_CONDITION_SATISFIED";
        WAIT_FAILED: u32 = 0x911D, "GL_WAIT_FAILED";
        TIMESTAMP: u32 = 0x8E28, "GL_TIMESTAMP";
        QUERY_RESULT: u32 = 0x8866, "GL_QUERY_RESULT";

        COMPUTE_SHADER: u32 = 0x91B9, "GL_COMPUTE_SHADER";
        COMPILE_STATUS: u32 = 0x8B81, "GL_COMPILE_STATUS";
        LINK_STATUS: u32 = 0x8B82, "GL_LINK_STATUS";
        INFO_LOG_LENGTH: u32 = 0x8B84, "GL_INFO_LOG_LENGTH";
        COMPUTE_WORK_GROUP_SIZE: u32 = 0x8267, "GL_COMPUTE_WORK_GROUP_SIZE";
        UNIFORM_BLOCK: u32 = 0x92E2, "GL_UNIFORM_BLOCK";
        SHADER_STORAGE_BLOCK: u32 = 0x92E6, "GL_SHADER_STORAGE_BLOCK";
        ACTIVE_RESOURCES: u32 = 0x92F5, "GL_ACTIVE_RESOURCES";
        BUFFER_BINDING: u32 = 0x9302, "GL_BUFFER_BINDING";
        BUFFER_DATA_SIZE: u32 = 0x9303, "GL_BUFFER_DATA_SIZE";

        MAX_SHADER_STORAGE_BLOCK_SIZE: u32 = 0x90DE, "GL_MAX_SHADER_STORAGE_BLOCK_SIZE";
        MAX_SHADER_STORAGE_BUFFER_BINDINGS: u32 = 0x90DD, "GL_MAX_SHADER_STORAGE_BUFFER_BINDINGS";
        SHADER_STORAGE_BUFFER_OFFSET_ALIGNMENT: u32 = 0x90DF, "GL_SHADER_STORAGE_BUFFER_OFFSET_ALIGNMENT";
        MAX_UNIFORM_BLOCK_SIZE: u32 = 0x8A30, "GL_MAX_UNIFORM_BLOCK_SIZE";
        MAX_UNIFORM_BUFFER_BINDINGS: u32 = 0x8A2F, "GL_MAX_UNIFORM_BUFFER_BINDINGS";
        MAX_COMPUTE_WORK_GROUP_INVOCATIONS: u32 = 0x90EB, "GL_MAX_COMPUTE_WORK_GROUP_INVOCATIONS";
        MAX_COMPUTE_WORK_GROUP_COUNT: u32 = 0x91BE, "GL_MAX_COMPUTE_WORK_GROUP_COUNT";
        MAX_COMPUTE_WORK_GROUP_SIZE: u32 = 0x91BF, "GL_MAX_COMPUTE_WORK_GROUP_SIZE";
        MAX_COMPUTE_SHARED_MEMORY_SIZE: u32 = 0x8262, "GL_MAX_COMPUTE_SHARED_MEMORY_SIZE";

        DEDICATED_MEMORY_OBJECT: u32 = 0x9581, "GL_DEDICATED_MEMORY_OBJECT_EXT";
        HANDLE_TYPE_OPAQUE_FD: u32 = 0x9586, "GL_HANDLE_TYPE_OPAQUE_FD_EXT";
    }

    /// `GL_TIMEOUT_IGNORED`
    pub const TIMEOUT_IGNORED: u64 = u64::MAX;
    /// `GL_GPU_MEMORY_INFO_TOTAL_AVAILABLE_MEMORY_NVX`, of `GL_NVX_gpu_memory_info`: KiB.
    pub const TOTAL_AVAILABLE_MEMORY_NVX: u32 = 0x9048;
    /// `GL_VBO_FREE_MEMORY_ATI`, of `GL_ATI_meminfo`: KiB, the first of four.
    pub const VBO_FREE_MEMORY_ATI: u32 = 0x87FB;
}
