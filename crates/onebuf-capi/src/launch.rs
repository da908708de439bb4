//! Launches
//!
//! A launch runs a kernel on a queue. Its arguments are checked against the kernel's declaration.

use crate::{
    buffer::onebuf_buffer,
    entry::entry,
    fault::{Fault, Result},
    fence::onebuf_fence,
    handle::Noun,
    input::{Slot, array, bytes, out},
    kept::Kept,
    kernel::{
        Declared, ONEBUF_ARG_BUFFER, ONEBUF_ARG_LOCAL, ONEBUF_ARG_OVERWRITE, ONEBUF_ARG_TURN,
        ONEBUF_ARG_VIEW, Value, onebuf_arg_kind, onebuf_kernel,
    },
    program::onebuf_native_arg,
    queue::onebuf_queue,
    status::onebuf_status,
    view::{View, ViewUse, onebuf_view, take},
    wait::{Blocked, when_free},
    words::{self, onebuf_access},
};
use onebuf::{Access, Arg, Fence, Grid, Kernel, Queue};
use std::{ffi::c_void, sync::Arc, time::Instant};

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
                        let taken = unsafe { take(&buffer, queue, access.into()) };
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
            ONEBUF_ARG_OVERWRITE => {
                let buffer = given.buffer.get()?;
                // SAFETY: as for other buffers.
                let taken = unsafe { take(&buffer, queue, ViewUse::Overwrite) };
                self.args.push(taken.map_err(|fault| self.blocked(fault, &buffer, kernel))?.0);
                self.of[index] = Of::Buffer(buffer);
            }
            ONEBUF_ARG_LOCAL => self.args.push(Arg::local::<u8>(given.bytes)),
            other => {
                let what = format!("argument of kind {other}: choose 1 to 8");
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

/// What a launch was given, with the objects of its handles.
struct Launch<'g> {
    queue: Arc<Queue>,
    kernel: Arc<Declared>,
    given: &'g onebuf_grid,
    grid: Grid,
    args: &'g [onebuf_arg],
}

impl<'g> Launch<'g> {
    /// # Safety
    /// As for [`onebuf_queue_launch`].
    #[inline]
    unsafe fn read(
        queue: onebuf_queue,
        kernel: onebuf_kernel,
        grid: Option<&'g onebuf_grid>,
        args: *const onebuf_arg,
        arg_count: usize,
    ) -> Result<Self> {
        let (queue, kernel) = (queue.get()?, kernel.get()?);
        let given = grid.ok_or(Fault::Null("grid"))?;
        let grid = self::grid(given)?;
        // SAFETY: guaranteed by the caller.
        Ok(Self { queue, kernel, given, grid, args: unsafe { array(args, arg_count, "args")? } })
    }

    /// The checks of the launch as a whole, after those of its arguments.
    fn check(&self, of: &[Of]) -> Result<()> {
        if !self.kernel.is_checked() {
            return Ok(());
        }
        let args = self.args.iter().zip(of).map(|(arg, of)| onebuf_native_arg {
            data: if of.buffer().is_some() { std::ptr::null_mut() } else { arg.value.cast_mut() },
            bytes: of.buffer().map_or(arg.bytes, |buffer| buffer.len()),
            writable: 0,
        });
        let onebuf_grid { dims, global, local, offset } = *self.given;
        let global = [0, 1, 2].map(|axis| if axis < dims { global[axis] } else { 1 });
        self.kernel.check_launch([global, local, offset], &args.collect::<Vec<_>>())
    }

    /// Takes the arguments, launches, and gives them back.
    ///
    /// # Safety
    /// As for [`onebuf_queue_launch`].
    #[inline]
    unsafe fn run(&self, fenced: bool) -> Result<Option<Fence>, Blocked> {
        let (mut few, mut many) = ([const { Of::Nothing }; FEW], Vec::new());
        let of = match few.get_mut(..self.args.len()) {
            Some(few) => few,
            None => {
                many.resize(self.args.len(), Of::Nothing);
                &mut many[..]
            }
        };
        let mut all = Args { args: Vec::with_capacity(self.args.len()), of };
        // SAFETY: guaranteed by the caller; the queue lives until this returns.
        let taken = unsafe { all.take(self.args, &self.kernel, &self.queue) };
        let launched = taken.and_then(|()| {
            self.check(all.of)?;
            Ok(start(&self.queue, self.kernel.kernel(), self.grid, &all.args, fenced)?)
        });
        all.give_back();
        launched
    }
}

/// The place of a fence that the caller may not want.
fn fence_if_wanted(fence: Slot<'_, onebuf_fence>) -> Result<Option<&mut onebuf_fence>> {
    fence.map(|fence| out(Some(fence), "fence")).transpose()
}

fn give_fence(to: Option<&mut onebuf_fence>, made: Option<Fence>) -> Result<()> {
    if let (Some(to), Some(made)) = (to, made) {
        *to = onebuf_fence::put(made)?;
    }
    Ok(())
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
        let fence = fence_if_wanted(fence)?;
        // SAFETY: guaranteed by the caller.
        let launched =
            unsafe { Launch::read(queue, kernel, grid, args, arg_count)?.run(fence.is_some()) };
        give_fence(fence, launched.map_err(|blocked| blocked.fault)?)
    })
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
        let clock = Instant::now();
        // SAFETY: guaranteed by the caller.
        let launch = unsafe { Launch::read(queue, kernel, grid, args, arg_count)? };
        // SAFETY: as above.
        unsafe { launch.run(false) }.map_err(|blocked| blocked.fault)?;
        launch.queue.finish()?;
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
        let fence = fence_if_wanted(fence)?;
        // SAFETY: guaranteed by the caller.
        let launch = unsafe { Launch::read(queue, kernel, grid, args, arg_count)? };
        let device = launch.queue.device();
        // SAFETY: as above.
        let attempt = || unsafe { launch.run(fence.is_some()) };
        let launched = when_free(timeout_ms, device.hub(), attempt)?;
        give_fence(fence, launched)
    })
}
