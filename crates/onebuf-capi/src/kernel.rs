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
    wait::{Blocked, when_free},
    words::{self, onebuf_access},
};
use onebuf::{Access, Arg, Call, Fence, Grid, Kernel, Queue, Signature};
use std::{
    ffi::{c_char, c_void},
    fmt,
    sync::Arc,
    time::Instant,
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
}

/// What is known about a parameter.
#[derive(Clone, Copy)]
enum Declaration {
    Buffer(Access),
    Value(Value),
    Local,
}

impl Declaration {
    fn new(param: &onebuf_param) -> Result<Self> {
        Ok(match Value::of(param.kind, param.bytes) {
            Some(value) => Declaration::Value(value),
            None if param.kind == ONEBUF_ARG_BUFFER => {
                Declaration::Buffer(words::access(param.access)?)
            }
            None => Declaration::Local,
        })
    }
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
        match self.params.get(index) {
            Some(Declaration::Value(declared)) if given.fits(*declared) => Ok(()),
            Some(Declaration::Value(declared)) => Err(self.misfit(index, given, Some(*declared))),
            _ => Err(self.misfit(index, given, None)),
        }
    }

    /// The access that a parameter declares; `None` if it is not a buffer.
    #[inline]
    fn access(&self, index: usize) -> Option<Access> {
        match self.params.get(index) {
            Some(Declaration::Buffer(access)) => Some(*access),
            _ => None,
        }
    }

    fn writes(&self, index: usize) -> bool {
        self.access(index).is_some_and(Access::writes)
    }

    /// Checks that two arguments may be the same memory.
    fn check_twice(&self, first: usize, second: usize) -> Result<()> {
        let reads = !(self.writes(first) || self.writes(second));
        if reads || self.elementwise { Ok(()) } else { Err(self.twice(first, second)) }
    }

    #[cold]
    fn twice(&self, first: usize, second: usize) -> Fault {
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
    /// For a buffer: ONEBUF_READ refuses the launch if the parameter is declared for writing. Any other value has no
    /// effect: the launch takes the view that the parameter declares.
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
        let program = program.get()?;
        // SAFETY: guaranteed by the caller.
        let (name, params) =
            unsafe { (text(name, "name")?, array(params, param_count, "params")?) };
        let signature = signature(params, flags)?;
        // SAFETY: the caller guarantees the declaration: see the top of this file.
        let made = unsafe { program.kernel(name, signature)? };
        let params = params.iter().map(Declaration::new).collect::<Result<_>>()?;
        let elementwise = flags & ONEBUF_KERNEL_ELEMENTWISE != 0;
        *kernel = onebuf_kernel::put(Declared { kernel: made, params, elementwise })?;
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
    Buffer(Arc<Kept>),
    /// A view that the caller holds.
    View(Arc<View>),
}

impl Of {
    fn buffer(&self) -> Option<&Arc<Kept>> {
        match self {
            Of::Nothing => None,
            Of::Buffer(kept) => Some(kept),
            Of::View(view) => Some(&view.buffer),
        }
    }
}

/// The arguments of one launch, and the objects behind them. Later arguments may borrow from earlier ones: the vector never
/// moves its elements, because it has room for all, and `give_back` ends the last first.
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
    ) -> Result<(), Blocked> {
        for index in 0..given.len() {
            // SAFETY: guaranteed by the caller.
            unsafe { self.add(given, index, kernel, queue)? };
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Args::take`].
    unsafe fn add(
        &mut self,
        all: &[onebuf_arg],
        index: usize,
        kernel: &Declared,
        queue: &Arc<Queue>,
    ) -> Result<(), Blocked> {
        let given = &all[index];
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
                let access = access(all, index, kernel)?;
                match self
                    .position(|of| matches!(of, Of::Buffer(kept) if Arc::ptr_eq(kept, &buffer)))
                {
                    // SAFETY: the view is an earlier argument's.
                    Some(first) if access.writes() => unsafe { self.again(first, index, kernel)? },
                    _ => {
                        // SAFETY: what borrows from it is dropped first, and the queue lives as the caller guarantees.
                        let taken = unsafe { take(&buffer, queue, access) };
                        self.args
                            .push(taken.map_err(|fault| self.blocked(fault, &buffer, kernel))?.0);
                        self.of[index] = Of::Buffer(buffer);
                    }
                }
            }
            ONEBUF_ARG_VIEW => {
                let view = given.view.get()?;
                match self.position(|of| matches!(of, Of::View(held) if Arc::ptr_eq(held, &view))) {
                    // SAFETY: the view is an earlier argument's.
                    Some(first) => unsafe { self.again(first, index, kernel)? },
                    None => {
                        self.args.push(view.lend()?);
                        self.of[index] = Of::View(view);
                    }
                }
            }
            ONEBUF_ARG_LOCAL => self.args.push(Arg::local::<u8>(given.bytes)),
            other => {
                let what = format!("argument of kind {other}: choose 1 to 7");
                return Err(Fault::invalid(what).into());
            }
        }
        Ok(())
    }

    fn position(&self, is_it: impl Fn(&Of) -> bool) -> Option<usize> {
        self.of.iter().position(is_it)
    }

    /// Adds an argument with the view of an earlier one.
    ///
    /// # Safety
    /// `first` is the index of a view.
    unsafe fn again(&mut self, first: usize, second: usize, kernel: &Declared) -> Result<()> {
        kernel.check_twice(first, second)?;
        // SAFETY: the elements neither move nor end before the new one: see `Args`.
        let held = unsafe { &*self.args.as_ptr().add(first) };
        // SAFETY: the parameters only read, or the kernel was declared for this.
        self.args.push(unsafe { held.again()? });
        Ok(())
    }

    /// Explains a view that could not be taken: an earlier argument of the same launch may be the reason.
    #[cold]
    fn blocked(&self, fault: Fault, buffer: &Arc<Kept>, kernel: &Declared) -> Blocked {
        let blocked = Blocked::on(buffer, fault);
        let second = self.args.len();
        let overlaps = |of: &Of| of.buffer().is_some_and(|other| other.overlaps(buffer));
        match self.position(overlaps).filter(|_| blocked.by.is_some()) {
            Some(first) => kernel.twice(first, second).into(),
            None => blocked,
        }
    }

    /// Returns the caller's views, and ends those of this launch, the last first.
    fn give_back(mut self) {
        while let Some(arg) = self.args.pop() {
            match std::mem::take(&mut self.of[self.args.len()]) {
                Of::View(view) => view.give_back(arg),
                _ => drop(arg),
            }
        }
    }
}

/// The access for which a buffer argument is taken: what its parameter declares, and what those of later arguments with the
/// same buffer declare.
#[inline]
fn access(all: &[onebuf_arg], index: usize, kernel: &Declared) -> Result<Access> {
    let given = &all[index];
    let asked = words::access(given.access)?;
    let declared = match kernel.access(index) {
        Some(declared) if asked != Access::Read || !declared.writes() => declared,
        // Refused by the launch.
        _ => return Ok(asked),
    };
    let is_same = |arg: &onebuf_arg| {
        matches!(arg.kind, ONEBUF_ARG_BUFFER | ONEBUF_ARG_TURN) && arg.buffer.id == given.buffer.id
    };
    let mut writes = declared.writes();
    for (other, _) in all.iter().enumerate().filter(|(other, arg)| *other != index && is_same(arg))
    {
        kernel.check_twice(index.min(other), index.max(other))?;
        writes |= kernel.writes(other);
    }
    Ok(if writes { Access::ReadWrite } else { Access::Read })
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
        // SAFETY: guaranteed by the caller.
        let launched = unsafe { launch(&queue, &kernel, grid, given, of, fence.is_some()) };
        if let (Some(to), Some(made)) = (fence, launched.map_err(|blocked| blocked.fault)?) {
            *to = onebuf_fence::put(made)?;
        }
        Ok(())
    })
}

/// Takes the arguments, launches, and gives them back. `of` has a place for each argument.
///
/// # Safety
/// As for [`onebuf_queue_launch`].
#[inline]
unsafe fn launch(
    queue: &Arc<Queue>,
    kernel: &Declared,
    grid: Grid,
    given: &[onebuf_arg],
    of: &mut [Of],
    fenced: bool,
) -> Result<Option<Fence>, Blocked> {
    let mut all = Args { args: Vec::with_capacity(given.len()), of };
    // SAFETY: guaranteed by the caller; the queue lives until this returns.
    let taken = unsafe { all.take(given, kernel, queue) };
    let launched = taken.and_then(|()| Ok(start(queue, &kernel.kernel, grid, &all.args, fenced)?));
    all.give_back();
    launched
}

/// Launches like onebuf_queue_launch(), waits until the work is done, and returns how long that took. Afterwards the work
/// that a driver defers to the first launch is done. The kernel does run, on the given arguments. `took_ns` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_queue_warm_up(
    queue: onebuf_queue,
    kernel: onebuf_kernel,
    grid: Option<&onebuf_grid>,
    args: *const onebuf_arg,
    arg_count: usize,
    took_ns: Slot<'_, u64>,
) -> onebuf_status {
    entry(|| {
        let took_ns = took_ns.map(|to| out(Some(to), "took_ns")).transpose()?;
        let (queue, kernel) = (queue.get()?, kernel.get()?);
        let grid = self::grid(grid.ok_or(Fault::Null("grid"))?)?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { array(args, arg_count, "args")? };
        let (clock, mut of) = (Instant::now(), vec![Of::Nothing; given.len()]);
        // SAFETY: guaranteed by the caller.
        let launched = unsafe { launch(&queue, &kernel, grid, given, &mut of, false) };
        launched.map_err(|blocked| blocked.fault)?;
        queue.finish()?;
        if let Some(took_ns) = took_ns {
            *took_ns = u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
        Ok(())
    })
}

/// Launches like onebuf_queue_launch(), and waits until no view or mapping is held that conflicts with the launch's
/// arguments. Nothing is held meanwhile. ONEBUF_TIMEOUT if that takes longer: nothing was launched, and the message names
/// the buffer and the device that holds it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_queue_launch_within(
    queue: onebuf_queue,
    kernel: onebuf_kernel,
    grid: Option<&onebuf_grid>,
    args: *const onebuf_arg,
    arg_count: usize,
    timeout_ms: u64,
    fence: Slot<'_, onebuf_fence>,
) -> onebuf_status {
    entry(|| {
        let fence = fence.map(|fence| out(Some(fence), "fence")).transpose()?;
        let (queue, kernel) = (queue.get()?, kernel.get()?);
        let grid = self::grid(grid.ok_or(Fault::Null("grid"))?)?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { array(args, arg_count, "args")? };
        let device = queue.device();
        let launched = when_free(timeout_ms, device.hub(), || {
            let mut of = vec![Of::Nothing; given.len()];
            // SAFETY: guaranteed by the caller.
            unsafe { launch(&queue, &kernel, grid, given, &mut of, fence.is_some()) }
        })?;
        if let (Some(to), Some(made)) = (fence, launched) {
            *to = onebuf_fence::put(made)?;
        }
        Ok(())
    })
}
