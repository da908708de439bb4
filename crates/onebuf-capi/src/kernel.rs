//! Kernels and launches
//!
//! A kernel is declared with its parameters, and each launch is checked against the declaration. The declaration is a
//! guarantee by the caller: for every launch that matches it the kernel stays inside the buffers given, reads only
//! those declared for reading, writes only those declared for writing, and terminates.

use crate::{
    buffer::onebuf_buffer,
    entry::{entry, free},
    fault::{Fault, Result},
    fence::onebuf_fence,
    handle::{Noun, noun},
    input::{Slot, array, bytes, out, text},
    kept::Kept,
    program::onebuf_program,
    queue::onebuf_queue,
    status::onebuf_status,
    view::{View, onebuf_view, take},
    words::{self, onebuf_access},
};
use onebuf::{Arg, Call, Fence, Grid, Kernel, Queue, Signature};
use std::{
    ffi::{c_char, c_void},
    fmt,
    sync::Arc,
};

/// A kernel. Free it with onebuf_kernel_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_kernel {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_kernel, Declared, 11);

/// A kernel, and the types of its values, which are checked before the caller's values are read.
#[doc(hidden)]
pub struct Declared {
    kernel: Kernel,
    values: Vec<Option<Value>>,
}

/// What is known about a value's type.
#[derive(Clone, Copy, PartialEq)]
struct Value {
    kind: onebuf_arg_kind,
    bytes: usize,
}

impl Value {
    /// `None` for a parameter that is not a value.
    fn of(kind: onebuf_arg_kind, bytes: usize) -> Option<Self> {
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
    fn check_value(&self, index: usize, given: Value) -> Result<()> {
        match self.values.get(index).copied().flatten() {
            Some(declared) if given.fits(declared) => Ok(()),
            declared => Err(self.misfit(index, given, declared)),
        }
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
/// A buffer. As an argument: the launch takes a view of it.
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
    /// Minimum number of buffer bytes per work-item; launches with a smaller buffer are refused. Zero: not checked.
    pub bytes_per_item: usize,
}

/// An argument of a launch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_arg {
    /// The kind of the argument.
    pub kind: onebuf_arg_kind,
    /// For a buffer: ONEBUF_READ takes a view for reading, any other value one for reading and writing.
    pub access: onebuf_access,
    /// A buffer.
    pub buffer: onebuf_buffer,
    /// A view.
    pub view: onebuf_view,
    /// A value.
    pub value: *const c_void,
    /// Size in bytes of the value, or of the local memory of each work-group.
    pub bytes: usize,
}

/// The number of work-items and the size of work-groups.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_grid {
    /// Number of dimensions, 1 to 3.
    pub dims: usize,
    /// Work-items per dimension.
    pub global: [usize; 3],
    /// Work-group size per dimension; all zero: the driver chooses.
    pub local: [usize; 3],
    /// Global offset per dimension, for kernels declared with ONEBUF_KERNEL_OFFSETS.
    pub offset: [usize; 3],
}

/// The kernel may be launched with a global offset.
pub const ONEBUF_KERNEL_OFFSETS: u32 = 1;

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
    signature = match flags {
        0 => signature,
        ONEBUF_KERNEL_OFFSETS => signature.offsets(),
        _ => return Err(Fault::invalid(format!("kernel flags {flags:#x}: only 1 is known"))),
    };
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

/// Declares a kernel of a program. `flags` is zero or ONEBUF_KERNEL_OFFSETS.
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
        let program = program.get()?;
        // SAFETY: guaranteed by the caller.
        let (name, params) =
            unsafe { (text(name, "name")?, array(params, param_count, "params")?) };
        let signature = signature(params, flags)?;
        // SAFETY: the caller guarantees the declaration: see the top of this file.
        let made = unsafe { program.kernel(name, signature)? };
        let values = params.iter().map(|param| Value::of(param.kind, param.bytes)).collect();
        *kernel = onebuf_kernel::put(Declared { kernel: made, values })?;
        Ok(())
    })
}

/// Frees a kernel. Enqueued work still completes.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_kernel_free(kernel: onebuf_kernel) -> onebuf_status {
    free(kernel)
}

fn grid(given: &onebuf_grid) -> Result<Grid> {
    let (g, l, o) = (given.global, given.local, given.offset);
    let unused = given.dims.min(3)..;
    if l[unused.clone()].iter().chain(&o[unused]).any(|size| *size != 0) {
        return Err(Fault::invalid("a group size or offset for a dimension beyond `dims`"));
    }
    let (grid, grouped) = match given.dims {
        1 => {
            let grid = Grid::from([g[0]]).offset([o[0]]);
            (grid, grid.local([l[0]]))
        }
        2 => {
            let grid = Grid::from([g[0], g[1]]).offset([o[0], o[1]]);
            (grid, grid.local([l[0], l[1]]))
        }
        3 => (Grid::from(g).offset(o), Grid::from(g).offset(o).local(l)),
        dims => return Err(Fault::invalid(format!("a grid of {dims} dimensions: give 1 to 3"))),
    };
    Ok(if l == [0; 3] { grid } else { grouped })
}

/// Launches with more arguments allocate memory.
const FEW: usize = 8;

/// The object behind an argument, which must outlive it.
#[derive(Clone, Default)]
enum Of {
    #[default]
    Nothing,
    Buffer {
        _kept: Arc<Kept>,
    },
    /// A view that the caller holds.
    View(Arc<View>),
}

/// The arguments of one launch, and the objects behind them.
struct Args<'k> {
    args: Vec<Arg<'static>>,
    of: &'k mut [Of],
}

impl Args<'_> {
    /// # Safety
    /// As for [`onebuf_queue_launch`]. The queue must live until the arguments are given back.
    unsafe fn take(
        &mut self,
        given: &[onebuf_arg],
        kernel: &Declared,
        queue: &Arc<Queue>,
    ) -> Result<()> {
        for arg in given {
            // SAFETY: guaranteed by the caller.
            unsafe { self.add(arg, kernel, queue)? };
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Args::take`].
    unsafe fn add(
        &mut self,
        given: &onebuf_arg,
        kernel: &Declared,
        queue: &Arc<Queue>,
    ) -> Result<()> {
        let index = self.args.len();
        if let Some(value) = Value::of(given.kind, given.bytes) {
            kernel.check_value(index, value)?;
            // SAFETY: guaranteed by the caller.
            self.args.push(Arg::bytes(unsafe { bytes(given.value, given.bytes, "value")? }));
            return Ok(());
        }
        match given.kind {
            ONEBUF_ARG_BUFFER | ONEBUF_ARG_TURN => {
                let buffer = given.buffer.get()?;
                if given.kind == ONEBUF_ARG_TURN {
                    buffer.persistent.to_device()?;
                }
                // SAFETY: what borrows from it is dropped first, and the queue lives as the caller guarantees.
                self.args.push(unsafe { take(&buffer, queue, words::access(given.access)?)?.0 });
                self.of[index] = Of::Buffer { _kept: buffer };
            }
            ONEBUF_ARG_VIEW => {
                let view = given.view.get()?;
                self.args.push(view.lend()?);
                self.of[index] = Of::View(view);
            }
            ONEBUF_ARG_LOCAL => self.args.push(Arg::local::<u8>(given.bytes)),
            other => {
                return Err(Fault::invalid(format!("argument of kind {other}: choose 1 to 7")));
            }
        }
        Ok(())
    }

    /// Returns the caller's views, and ends those of this launch.
    fn give_back(self) {
        for (arg, of) in self.args.into_iter().zip(self.of) {
            match of {
                Of::View(view) => view.give_back(arg),
                _ => drop(arg),
            }
        }
    }
}

/// Launches a kernel with checked arguments, and creates a fence if requested.
fn start(
    queue: &Queue,
    kernel: &Kernel,
    grid: Grid,
    args: &[Arg<'_>],
    fenced: bool,
) -> Result<Option<Fence>> {
    Ok(match fenced {
        true => Some(queue.launch_fenced(kernel, grid, args)?),
        false => queue.launch(kernel, grid, args).map(|()| None)?,
    })
}

/// Launches a kernel. Views of buffer arguments are taken for this launch and released when it is enqueued; views that
/// the caller passes stay the caller's. `fence`, unless NULL, gets a fence that this launch will reach. On the host's
/// queue the kernel has run when this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_queue_launch(
    queue: onebuf_queue,
    kernel: onebuf_kernel,
    grid: Option<&onebuf_grid>,
    args: *const onebuf_arg,
    arg_count: usize,
    fence: Slot<'_, onebuf_fence>,
) -> onebuf_status {
    entry(|| {
        let fence = fence.map(|fence| out(Some(fence), "fence")).transpose()?;
        let (queue, kernel) = (queue.get()?, kernel.get()?);
        let grid = self::grid(grid.ok_or(Fault::Null("grid"))?)?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { array(args, arg_count, "args")? };
        let (mut few, mut many) = ([const { Of::Nothing }; FEW], Vec::new());
        let of = match few.get_mut(..given.len()) {
            Some(few) => few,
            None => {
                many.resize(given.len(), Of::Nothing);
                &mut many[..]
            }
        };
        let mut all = Args { args: Vec::with_capacity(given.len()), of };
        // SAFETY: guaranteed by the caller; the queue lives until this returns.
        let taken = unsafe { all.take(given, &kernel, &queue) };
        let outcome =
            taken.and_then(|()| start(&queue, &kernel.kernel, grid, &all.args, fence.is_some()));
        all.give_back();
        if let (Some(to), Some(made)) = (fence, outcome?) {
            *to = onebuf_fence::put(made)?;
        }
        Ok(())
    })
}
