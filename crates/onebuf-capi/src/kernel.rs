//! Kernels
//!
//! A kernel is declared with its parameters, and each launch is checked against the declaration. The declaration is a
//! guarantee by the caller: for every launch that matches it the kernel stays inside the buffers given, reads only
//! those declared for reading, writes only those declared for writing, and terminates.

use crate::{
    device::onebuf_device,
    entry::{entry, free, message_count, message_since},
    fault::{Fault, Result},
    handle::{Noun, noun},
    input::{Options, Slot, array, options, out, text},
    program::{onebuf_native_arg, onebuf_native_call, onebuf_program},
    status::onebuf_status,
    string::{self, onebuf_string},
    words::{self, onebuf_access},
};
use onebuf::{Access, Call, Kernel, Program, Signature};
use std::{
    ffi::{c_char, c_void},
    fmt,
};

/// A kernel. Free it with onebuf_kernel_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_kernel {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_kernel, Declared, 11);

/// A kernel, and its parameters: values are checked before the caller's bytes are read, and buffers are taken for the
/// declared access.
#[doc(hidden)]
pub struct Declared {
    kernel: Kernel,
    params: Vec<Declaration>,
    /// Each work-item uses only its own elements: the same buffer may be passed several times.
    elementwise: bool,
    check: Option<Check>,
    /// Whether launches must be checked as a whole: see [`Declared::check_launch`].
    checked: bool,
}

/// The caller's check of launches, and its first argument.
struct Check {
    run: unsafe extern "C" fn(*mut c_void, *const onebuf_native_call) -> i32,
    user: *mut c_void,
}

// SAFETY: the pointer is only passed on, and the caller guarantees that any thread may call the function.
unsafe impl Send for Check {}
// SAFETY: as above; several at once too.
unsafe impl Sync for Check {}

/// What is known about a parameter.
#[derive(Clone, Copy)]
enum Declaration {
    Buffer(Access),
    Value(Value),
    /// Bytes for each work-item of a group; zero: any size.
    Local(usize),
}

impl Declaration {
    fn new(param: &onebuf_param) -> Result<Self> {
        Ok(match Value::of(param.kind, param.bytes) {
            Some(value) => Declaration::Value(value),
            None if param.kind == ONEBUF_ARG_BUFFER => {
                Declaration::Buffer(words::access(param.access)?)
            }
            None => Declaration::Local(param.bytes_per_item),
        })
    }
}

/// What is known about a value's type.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Value {
    kind: onebuf_arg_kind,
    bytes: usize,
}

impl Value {
    /// `None` for a parameter that is not a value.
    pub fn of(kind: onebuf_arg_kind, bytes: usize) -> Option<Self> {
        let is_value = matches!(kind, ONEBUF_ARG_VALUE | ONEBUF_ARG_INTEGER | ONEBUF_ARG_FLOAT);
        is_value.then_some(Self { kind, bytes })
    }

    /// Whether a value of one type can be passed as the other: same size, and same kind if both are known.
    fn fits(self, other: Self) -> bool {
        let known = self.kind != ONEBUF_ARG_VALUE && other.kind != ONEBUF_ARG_VALUE;
        self.bytes == other.bytes && (!known || self.kind == other.kind)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ONEBUF_ARG_INTEGER => "an integer",
            ONEBUF_ARG_FLOAT => "a floating-point number",
            _ => "a value",
        };
        write!(f, "{what} of {} bytes", self.bytes)
    }
}

impl Declared {
    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    #[inline]
    pub(crate) fn check_value(&self, index: usize, given: Value) -> Result<()> {
        match self.params.get(index) {
            Some(Declaration::Value(declared)) if given.fits(*declared) => Ok(()),
            Some(Declaration::Value(declared)) => Err(self.misfit(index, given, Some(*declared))),
            _ => Err(self.misfit(index, given, None)),
        }
    }

    /// The access that a parameter declares; `None` if it is not a buffer.
    #[inline]
    pub(crate) fn access(&self, index: usize) -> Option<Access> {
        match self.params.get(index) {
            Some(Declaration::Buffer(access)) => Some(*access),
            _ => None,
        }
    }

    pub(crate) fn writes(&self, index: usize) -> bool {
        self.access(index).is_some_and(Access::writes)
    }

    #[inline]
    pub(crate) fn is_checked(&self) -> bool {
        self.checked
    }

    /// Checks the sizes of local memory, and calls the caller's check.
    #[cold]
    pub(crate) fn check_launch(
        &self,
        [global, local, offset]: [[usize; 3]; 3],
        args: &[onebuf_native_arg],
    ) -> Result<()> {
        let refuse =
            |why: String| Err(Fault::invalid(format!("kernel `{}`: {why}", self.kernel.name())));
        for (index, (param, arg)) in self.params.iter().zip(args).enumerate() {
            let Declaration::Local(each @ 1..) = *param else { continue };
            let items = local.into_iter().filter(|size| *size > 0);
            let items = items.reduce(usize::saturating_mul);
            let Some(items) = items else {
                return refuse(format!(
                    "argument {index} has {each} bytes for each work-item of a group: give the group's size"
                ));
            };
            if items.saturating_mul(each) > arg.bytes {
                let have = arg.bytes;
                return refuse(format!(
                    "argument {index} has {have} bytes, {items} work-items of a group need {each} each"
                ));
            }
        }
        let Some(check) = &self.check else { return Ok(()) };
        let call =
            onebuf_native_call { global, offset, args: args.as_ptr(), arg_count: args.len() };
        let before = message_count();
        // SAFETY: the caller's function; its arguments outlive the call.
        match unsafe { (check.run)(check.user, &call) } {
            0 => Ok(()),
            code => refuse(message_since(before).unwrap_or_else(|| {
                format!("the launch was refused by the kernel's check, which returned {code}")
            })),
        }
    }

    /// Checks that two arguments may be the same memory.
    pub(crate) fn check_twice(&self, first: usize, second: usize) -> Result<()> {
        let reads = !(self.writes(first) || self.writes(second));
        if reads || self.elementwise { Ok(()) } else { Err(self.twice(first, second)) }
    }

    #[cold]
    pub(crate) fn twice(&self, first: usize, second: usize) -> Fault {
        let name = self.kernel.name();
        Fault::invalid(format!(
            "arguments {first} and {second} of kernel `{name}` are the same memory, and the kernel writes it: pass two \
             buffers, or declare the kernel with ONEBUF_KERNEL_ELEMENTWISE and pass the same handle, if each work-item \
             reads and writes only its own elements"
        ))
    }

    #[cold]
    fn misfit(&self, index: usize, given: Value, declared: Option<Value>) -> Fault {
        let name = self.kernel.name();
        Fault::invalid(match declared {
            Some(declared) => format!(
                "argument {index} of kernel `{name}` is {given} where {declared} is declared: convert it"
            ),
            None => {
                format!("argument {index} of kernel `{name}` is {given} where no value is declared")
            }
        })
    }
}

/// The kind of a parameter or argument.
pub type onebuf_arg_kind = u32;
/// A buffer. As an argument: the launch takes a view of it, for the access that the parameter declares.
pub const ONEBUF_ARG_BUFFER: onebuf_arg_kind = 1;
/// A value: bytes of an unspecified type, which are copied. Only the size is checked.
pub const ONEBUF_ARG_VALUE: onebuf_arg_kind = 2;
/// Local memory of each work-group.
pub const ONEBUF_ARG_LOCAL: onebuf_arg_kind = 3;
/// Only as an argument: a view that the caller holds on this queue, for a buffer parameter.
pub const ONEBUF_ARG_VIEW: onebuf_arg_kind = 4;
/// Only as an argument: a buffer whose persistent map is ended first, as by onebuf_buffer_to_device().
pub const ONEBUF_ARG_TURN: onebuf_arg_kind = 5;
/// A value that is an integer, signed or unsigned. A floating-point parameter does not accept it.
pub const ONEBUF_ARG_INTEGER: onebuf_arg_kind = 6;
/// A value that is a floating-point number. An integer parameter does not accept it.
pub const ONEBUF_ARG_FLOAT: onebuf_arg_kind = 7;
/// Only as an argument: a buffer whose earlier contents are discarded, as by onebuf_view_overwrite(). The parameter is
/// declared for writing only, and the kernel writes every byte.
pub const ONEBUF_ARG_OVERWRITE: onebuf_arg_kind = 8;

/// A parameter of a kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_param {
    /// The kind of the parameter.
    pub kind: onebuf_arg_kind,
    /// How the kernel accesses a buffer.
    pub access: onebuf_access,
    /// Size of a value in bytes.
    pub bytes: usize,
    /// Minimum number of buffer bytes per work-item, or of local bytes per work-item of a group; launches with less are
    /// refused. Zero: not checked.
    pub bytes_per_item: usize,
}

/// The kernel may be launched with a global offset.
pub const ONEBUF_KERNEL_OFFSETS: u32 = 1;
/// Each work-item reads and writes only its own elements, at the same positions in every buffer. The same buffer may then
/// be passed for several parameters, also if the kernel writes it. Otherwise only parameters for reading may be the same
/// buffer. Native kernels always get separate memory.
pub const ONEBUF_KERNEL_ELEMENTWISE: u32 = 2;

fn signature(params: &[onebuf_param], flags: u32) -> Result<Signature> {
    let mut signature = Signature::new();
    for param in params {
        signature = match param.kind {
            ONEBUF_ARG_BUFFER => signature.buffer::<u8>(words::access(param.access)?),
            ONEBUF_ARG_VALUE | ONEBUF_ARG_INTEGER | ONEBUF_ARG_FLOAT => {
                signature.bytes(param.bytes)
            }
            ONEBUF_ARG_LOCAL => signature.local::<u8>(),
            other => {
                return Err(Fault::invalid(format!(
                    "parameter of kind {other}: choose 1 to 3, 6 or 7"
                )));
            }
        };
    }
    if flags & !(ONEBUF_KERNEL_OFFSETS | ONEBUF_KERNEL_ELEMENTWISE) != 0 {
        return Err(Fault::invalid(format!("kernel flags {flags:#x}: only 1 and 2 are known")));
    }
    if flags & ONEBUF_KERNEL_OFFSETS != 0 {
        signature = signature.offsets();
    }
    let numbered = params.iter().enumerate().filter(|(_, param)| param.kind == ONEBUF_ARG_BUFFER);
    let each = numbered.map(|(index, param)| (index, param.bytes_per_item));
    let each: Vec<(usize, usize)> = each.filter(|(_, bytes)| *bytes > 0).collect();
    Ok(if each.is_empty() { signature } else { signature.require(move |call| fits(call, &each)) })
}

/// Whether every buffer has enough bytes for the work-items.
fn fits(call: &Call<'_>, each: &[(usize, usize)]) -> Result<(), String> {
    let ends = call.global().into_iter().zip(call.offset());
    let items = ends.map(|(size, first)| size.saturating_add(first)).fold(1, usize::saturating_mul);
    for &(index, bytes) in each {
        let have = call.len(index);
        if items.checked_mul(bytes).is_none_or(|need| need > have) {
            return Err(format!(
                "argument {index} has {have} bytes, {items} work-items of {bytes} bytes need more"
            ));
        }
    }
    Ok(())
}

/// Checks a launch of a kernel before it is started, on the launching thread: that indices which its values give stay inside
/// its buffers, for example. A buffer's or local memory's `data` is NULL; a value's points at it. Zero accepts the launch. Any
/// other number refuses it with ONEBUF_INVALID_ARGUMENT, and with the message of onebuf_set_error_message(). It must not throw,
/// and must not launch.
pub type onebuf_launch_check =
    Option<unsafe extern "C" fn(user: *mut c_void, call: *const onebuf_native_call) -> i32>;

/// Options of a kernel. Zero in every field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_kernel_options {
    /// `sizeof(onebuf_kernel_options)`.
    pub size: usize,
    /// The parameters.
    pub params: *const onebuf_param,
    /// Number of parameters.
    pub param_count: usize,
    /// A check of launches that pass the parameters' own checks; NULL: none.
    pub check: onebuf_launch_check,
    /// The first argument of `check`; valid, on any thread, as long as the kernel lives.
    pub check_user: *mut c_void,
    /// ONEBUF_KERNEL_OFFSETS and ONEBUF_KERNEL_ELEMENTWISE combined by `|`.
    pub flags: u32,
}
// SAFETY: plain numbers and pointers, the size first; functions may be null.
unsafe impl Options for onebuf_kernel_options {}

/// Declares a kernel of a program. `flags` is zero, or ONEBUF_KERNEL_OFFSETS and ONEBUF_KERNEL_ELEMENTWISE combined by `|`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_kernel_create(
    program: onebuf_program,
    name: *const c_char,
    params: *const onebuf_param,
    param_count: usize,
    flags: u32,
    kernel: Slot<'_, onebuf_kernel>,
) -> onebuf_status {
    entry(|| {
        let kernel = out(kernel, "kernel")?;
        // SAFETY: guaranteed by the caller.
        let (name, params) =
            unsafe { (text(name, "name")?, array(params, param_count, "params")?) };
        *kernel = onebuf_kernel::put(declared(&*program.get()?, name, params, flags, None)?)?;
        Ok(())
    })
}

/// Declares a kernel of a program with options: also a check of its launches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_kernel_create_with(
    program: onebuf_program,
    name: *const c_char,
    options: *const onebuf_kernel_options,
    kernel: Slot<'_, onebuf_kernel>,
) -> onebuf_status {
    entry(|| {
        let kernel = out(kernel, "kernel")?;
        // SAFETY: guaranteed by the caller, also for what the options point at.
        let (name, given, params) = unsafe {
            let given = self::options(options)?;
            (text(name, "name")?, given, array(given.params, given.param_count, "params")?)
        };
        let check = given.check.map(|run| Check { run, user: given.check_user });
        let made = declared(&*program.get()?, name, params, given.flags, check)?;
        *kernel = onebuf_kernel::put(made)?;
        Ok(())
    })
}

fn declared(
    program: &Program,
    name: &str,
    params: &[onebuf_param],
    flags: u32,
    check: Option<Check>,
) -> Result<Declared> {
    let signature = signature(params, flags)?;
    // SAFETY: the caller guarantees the declaration: see the top of this file.
    let kernel = unsafe { program.kernel(name, signature)? };
    let params = params.iter().map(Declaration::new).collect::<Result<Vec<_>>>()?;
    let sized = |param: &Declaration| matches!(param, Declaration::Local(1..));
    let checked = check.is_some() || params.iter().any(sized);
    let elementwise = flags & ONEBUF_KERNEL_ELEMENTWISE != 0;
    Ok(Declared { kernel, params, elementwise, check, checked })
}

/// The name of the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_kernel_name(
    kernel: onebuf_kernel,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| string::give(text, || Ok(kernel.get()?.kernel.name().as_bytes().to_vec())))
}

/// Makes a kernel that OpenCL compiled launchable on queues of a CUDA or HIP device too, as onebuf_program_graft() does for a
/// program. With `grafted` NULL the call fails with ONEBUF_UNSUPPORTED if that cannot be done. Otherwise it is done only if the
/// doctor has proven this for the two devices, and `grafted` says whether. A kernel can be grafted onto one device.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_kernel_graft(
    kernel: onebuf_kernel,
    device: onebuf_device,
    grafted: Slot<'_, bool>,
) -> onebuf_status {
    entry(|| {
        let grafted = grafted.map(|to| out(Some(to), "grafted")).transpose()?;
        let (kernel, device) = (kernel.get()?, device.get()?);
        match grafted {
            None => kernel.kernel.graft(&device)?,
            Some(grafted) => *grafted = kernel.kernel.graft_if_proven(&device).is_ok(),
        }
        Ok(())
    })
}

/// Frees a kernel. Enqueued work still completes.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_kernel_free(kernel: onebuf_kernel) -> onebuf_status {
    free(kernel)
}
