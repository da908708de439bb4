//! Programs
//!
//! A program is built for one device: from OpenCL C, CUDA C, HIP C, PTX, GLSL, SPIR-V or the device's own binary, or,
//! for the host, from functions of this process. The hub caches what it compiled.

use crate::{
    device::onebuf_device,
    entry::{entry, free},
    fault::Result,
    handle::{Noun, noun},
    input::{Options, Slot, array, bytes, options, out, path_if_given, text, text_if_given},
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::{Error, NativeArgs, Origin, Program, Source};
use std::{
    ffi::{c_char, c_void},
    mem, ptr,
};

/// A program. Free it with onebuf_program_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_program {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_program, Program, 10);

/// One argument of a launch, as a native function gets it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_native_arg {
    /// The buffer's bytes, or the value.
    pub data: *mut c_void,
    /// Size in bytes.
    pub bytes: usize,
    /// Not zero: the bytes may be written.
    pub writable: u32,
}

/// A launch, as a native function gets it. Valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_native_call {
    /// Work-items per dimension; unused dimensions are 1.
    pub global: [usize; 3],
    /// Global offset per dimension.
    pub offset: [usize; 3],
    /// The arguments.
    pub args: *const onebuf_native_arg,
    /// Number of arguments.
    pub arg_count: usize,
}

/// A kernel of the host. It is called once for a whole launch, on the launching thread, and concurrently if several
/// threads launch. It returns zero on success. It must not throw.
pub type onebuf_native_function =
    Option<unsafe extern "C" fn(user: *mut c_void, call: *const onebuf_native_call) -> i32>;

/// A named function.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_native {
    /// The kernel's name.
    pub name: *const c_char,
    /// The function.
    pub function: onebuf_native_function,
    /// The first argument of the function; valid, on any thread, as long as the program or a kernel of it lives.
    pub user: *mut c_void,
}

/// A kernel in GLSL, for OpenGL and Vulkan. A shader has a single `main`, so the kernel's name is given separately. A
/// buffer is the storage block whose binding is the argument's index. All values together, in order, are one `std140`
/// uniform block whose binding is the index of the first value. The shader defines the work-group size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_shader {
    /// The kernel's name.
    pub name: *const c_char,
    /// The shader's text, NUL-terminated.
    pub text: *const c_char,
}

/// The forms of a program. A device takes the first that it supports: its own binary, SPIR-V, then text. The host takes
/// functions. Pointers must be valid during the call only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_program_options {
    /// `sizeof(onebuf_program_options)`.
    pub size: usize,
    /// OpenCL C, NUL-terminated; NULL: none.
    pub opencl_c: *const c_char,
    /// A file of OpenCL C or SPIR-V; NULL: none. Not together with `opencl_c` or `spirv`.
    pub file: *const c_char,
    /// A SPIR-V module; NULL: none.
    pub spirv: *const c_void,
    /// Size of the SPIR-V module in bytes.
    pub spirv_bytes: usize,
    /// The device's own binary, from onebuf_program_binary(); NULL: none.
    pub binary: *const c_void,
    /// Size of the binary in bytes.
    pub binary_bytes: usize,
    /// Functions of this process, for the host.
    pub natives: *const onebuf_native,
    /// Number of functions.
    pub native_count: usize,
    /// Options for the compiler, such as `-cl-fast-relaxed-math`; NULL: none.
    pub compiler_options: *const c_char,
    /// Kernels in GLSL, for OpenGL and Vulkan.
    pub shaders: *const onebuf_shader,
    /// Number of kernels in GLSL.
    pub shader_count: usize,
    /// CUDA C, NUL-terminated; NULL: none. Declare each kernel as `extern "C" __global__`. Local-memory arguments are
    /// not parameters but consecutive parts of the kernel's one `extern __shared__` array, each aligned to 16 bytes.
    pub cuda_c: *const c_char,
    /// HIP C, NUL-terminated, with the same rules as CUDA C; NULL: none.
    pub hip_c: *const c_char,
    /// PTX, NUL-terminated, which CUDA devices prefer to CUDA C; NULL: none.
    pub ptx: *const c_char,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_program_options {}

/// Adds the text of a program in one language.
type WithText = fn(Source, String) -> Source;

/// A function and its first argument.
struct Native {
    run: unsafe extern "C" fn(*mut c_void, *const onebuf_native_call) -> i32,
    user: *mut c_void,
}

// SAFETY: the caller guarantees that any thread may call the function with this argument.
unsafe impl Send for Native {}
// SAFETY: as above; several threads may call it at once.
unsafe impl Sync for Native {}

impl Native {
    fn call(&self, name: &str, args: &mut NativeArgs<'_>) -> onebuf::Result<()> {
        let (mut few, mut many) = ([NO_ARG; FEW], Vec::new());
        let found = match few.get_mut(..args.count()) {
            Some(few) => few,
            None => {
                many.resize(args.count(), NO_ARG);
                &mut many[..]
            }
        };
        let mut values = Values { rest: &mut [0; FEW], many: Vec::new() };
        for (index, to) in found.iter_mut().enumerate() {
            *to = argument(args, index, &mut values);
        }
        let (global, offset) = (args.global(), args.offset());
        let (args, arg_count) = (found.as_ptr(), found.len());
        let call = onebuf_native_call { global, offset, args, arg_count };
        // SAFETY: the caller's function and its argument; the launcher holds views of all buffers, and `values` outlive
        // the call.
        match unsafe { (self.run)(self.user, &call) } {
            0 => Ok(()),
            code => Err(Error::invalid(format!("native kernel `{name}` returned {code}"))),
        }
    }
}

/// Launches with more arguments, or with values larger than 16 bytes for each of them, allocate memory.
const FEW: usize = 8;

const NO_ARG: onebuf_native_arg =
    onebuf_native_arg { data: ptr::null_mut(), bytes: 0, writable: 0 };

/// Copies of values at aligned addresses. The originals may be unaligned, and a C function reads them by their type.
struct Values<'a> {
    rest: &'a mut [u128],
    many: Vec<Vec<u128>>,
}

impl Values<'_> {
    /// The address of the copy, valid as long as this lives.
    fn put(&mut self, value: &[u8]) -> *mut c_void {
        let words = value.len().div_ceil(size_of::<u128>());
        let data = match mem::take(&mut self.rest).split_at_mut_checked(words) {
            Some((room, rest)) => {
                self.rest = rest;
                room.as_mut_ptr().cast::<u8>()
            }
            None => {
                self.many.push(vec![0; words]);
                self.many.last_mut().map_or(ptr::null_mut(), Vec::as_mut_ptr).cast::<u8>()
            }
        };
        // SAFETY: there is room for this many bytes, rounded up, and nothing else uses it.
        unsafe { data.copy_from_nonoverlapping(value.as_ptr(), value.len()) };
        data.cast()
    }
}

fn argument(args: &mut NativeArgs<'_>, index: usize, values: &mut Values<'_>) -> onebuf_native_arg {
    if let Some(value) = args.bytes(index) {
        return onebuf_native_arg { data: values.put(value), bytes: value.len(), writable: 0 };
    }
    if args.is_writable(index) {
        let slice = args.slice_mut::<u8>(index).unwrap_or_default();
        let data = slice.as_mut_ptr().cast();
        return onebuf_native_arg { data, bytes: slice.len(), writable: 1 };
    }
    let slice = args.slice::<u8>(index).unwrap_or(&[]);
    onebuf_native_arg { data: slice.as_ptr().cast_mut().cast(), bytes: slice.len(), writable: 0 }
}

/// # Safety
/// As for [`onebuf_program_build`].
unsafe fn source(given: &onebuf_program_options) -> Result<Source> {
    // SAFETY: guaranteed by the caller, for all of these.
    let (opencl_c, file, compiler) = unsafe {
        let compiler = text_if_given(given.compiler_options, "compiler_options")?;
        (text_if_given(given.opencl_c, "opencl_c")?, path_if_given(given.file), compiler)
    };
    let mut source = match file {
        Some(_) if opencl_c.is_some() || !given.spirv.is_null() => {
            return Err(
                Error::invalid("`file` beside `opencl_c` or `spirv`: give one of them").into()
            );
        }
        Some(file) => Source::from_file(file)?,
        None => Source::default(),
    };
    if let Some(found) = opencl_c {
        source = source.with_opencl_c(found.to_owned());
    }
    // SAFETY: guaranteed by the caller, for all of these.
    unsafe {
        if !given.spirv.is_null() {
            source = source.with_spirv(bytes(given.spirv, given.spirv_bytes, "spirv")?.to_vec());
        }
        if !given.binary.is_null() {
            source =
                source.with_binary(bytes(given.binary, given.binary_bytes, "binary")?.to_vec());
        }
        for native in array(given.natives, given.native_count, "natives")? {
            source = with_native(source, native)?;
        }
        for (given, name, with) in [
            (given.cuda_c, "cuda_c", Source::with_cuda_c as WithText),
            (given.hip_c, "hip_c", Source::with_hip_c),
            (given.ptx, "ptx", Source::with_ptx),
        ] {
            if let Some(found) = text_if_given(given, name)? {
                source = with(source, found.to_owned());
            }
        }
        for shader in array(given.shaders, given.shader_count, "shaders")? {
            let name = text(shader.name, "shaders' name")?.to_owned();
            source = source.with_glsl(name, text(shader.text, "shaders' text")?.to_owned());
        }
    }
    Ok(compiler.into_iter().fold(source, |source, options| source.with_options(options)))
}

/// # Safety
/// As for [`onebuf_program_build`].
unsafe fn with_native(source: Source, given: &onebuf_native) -> Result<Source> {
    // SAFETY: guaranteed by the caller.
    let name = unsafe { text(given.name, "natives' name")? }.to_owned();
    let run = given.function.ok_or(crate::fault::Fault::Null("natives' function"))?;
    let native = Native { run, user: given.user };
    Ok(source.with_native(name.clone(), move |args| native.call(&name, args)))
}

/// Builds a program for a device. ONEBUF_BUILD if the compiler rejects it: the message contains the build log.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_program_build(
    device: onebuf_device,
    options: *const onebuf_program_options,
    program: Slot<'_, onebuf_program>,
) -> onebuf_status {
    entry(|| {
        let program = out(program, "program")?;
        // SAFETY: guaranteed by the caller, also for what the options point at.
        let source = unsafe { source(&self::options(options)?)? };
        *program = onebuf_program::put(device.get()?.program(&source)?)?;
        Ok(())
    })
}

/// The build log of a successful build.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_program_log(
    program: onebuf_program,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| string::give(text, || Ok(program.get()?.log().as_bytes().to_vec())))
}

/// The device's own binary, for `onebuf_program_options.binary`; its size is onebuf_string_size().
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_program_binary(
    program: onebuf_program,
    binary: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| string::give(binary, || Ok(program.get()?.binary()?)))
}

/// Where a program came from.
pub type onebuf_origin = u32;
/// It was compiled from its source.
pub const ONEBUF_ORIGIN_BUILT: onebuf_origin = 0;
/// From the hub's memory cache.
pub const ONEBUF_ORIGIN_MEMORY: onebuf_origin = 1;
/// From the cache folder.
pub const ONEBUF_ORIGIN_DISK: onebuf_origin = 2;
/// From the binary in the options.
pub const ONEBUF_ORIGIN_BINARY: onebuf_origin = 3;

/// Where the program came from.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_program_origin(
    program: onebuf_program,
    origin: Slot<'_, onebuf_origin>,
) -> onebuf_status {
    entry(|| {
        *out(origin, "origin")? = match program.get()?.origin() {
            Origin::Memory => ONEBUF_ORIGIN_MEMORY,
            Origin::Disk => ONEBUF_ORIGIN_DISK,
            Origin::Binary => ONEBUF_ORIGIN_BINARY,
            _ => ONEBUF_ORIGIN_BUILT,
        };
        Ok(())
    })
}

/// Moves a program that OpenCL compiled to a CUDA or HIP device, so that its kernels run in that device's queues. With
/// `grafted` NULL the call fails with ONEBUF_UNSUPPORTED if the program cannot be moved. Otherwise the program is moved only
/// if the doctor has proven this for the two devices; if not, the result is the same program, and `grafted` is false.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_program_graft(
    program: onebuf_program,
    device: onebuf_device,
    grafted: Slot<'_, bool>,
    result: Slot<'_, onebuf_program>,
) -> onebuf_status {
    entry(|| {
        let result = out(result, "result")?;
        let (program, device) = (program.get()?, device.get()?);
        let made = match grafted {
            None => program.graft(&device)?,
            Some(grafted) => {
                let made = program.graft_if_proven(&device);
                grafted.write(made.device().id() == device.id());
                made
            }
        };
        *result = onebuf_program::put(made)?;
        Ok(())
    })
}

/// How long onebuf_program_build() took, in nanoseconds: compiling, loading or lookup, depending on onebuf_program_origin().
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_program_build_time_ns(
    program: onebuf_program,
    time_ns: Slot<'_, u64>,
) -> onebuf_status {
    entry(|| {
        let time = program.get()?.build_time().as_nanos();
        *out(time_ns, "time_ns")? = u64::try_from(time).unwrap_or(u64::MAX);
        Ok(())
    })
}

/// Creates the driver's kernel objects in advance, instead of at their first use. `kernel_count` gets their number, and may be NULL:
/// zero if the driver cannot list them, and on the host. Nothing is launched; onebuf_queue_warm_up() also launches.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_program_warm_up(
    program: onebuf_program,
    kernel_count: Slot<'_, usize>,
) -> onebuf_status {
    entry(|| {
        let found = program.get()?.warm_up()?;
        kernel_count.map(|count| count.write(found));
        Ok(())
    })
}

/// Frees a program. Its kernels stay usable.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_program_free(program: onebuf_program) -> onebuf_status {
    free(program)
}
