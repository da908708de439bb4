//! Kernels, and launching them.

use super::{
    conv,
    conv::Version,
    device::Driver,
    event::Event,
    memory::Memory,
    program::RawProgram,
    query,
    queue::Queue,
    reflect,
    slots::{RawKernel, Setting, Slot, Slots},
    storage::Place,
};
use bytemuck::Pod;
use onebuf_hal::{
    self as hal, Caps, Domain, Error, Grid, ReflectedParameter, Result,
    locks::{Arc, AtomicU64, Ordering},
    typed::{Args, Events, TypedArg, TypedMemory},
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClEvent, ClKernel, consts as cl},
};
use std::ptr;

/// The number of arguments that a slot's form distinguishes.
const FORM_ARGS: usize = u64::BITS as usize;

/// One kernel of a program.
#[derive(Debug)]
pub struct Kernel {
    program: Arc<RawProgram>,
    /// The driver's domain, copied here so that a launch does not follow three pointers.
    domain: Domain,
    name: String,
    parameters: usize,
    limits: Limits,
    /// Each parameter, as far as the driver reports it.
    reflected: Vec<Option<ReflectedParameter>>,
    slots: Slots,
    /// The form of the last launch, which the next one probably has too.
    form: AtomicU64,
}

/// The driver's limits of one kernel on its device. Zero means unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    /// `reqd_work_group_size`.
    group: Option<[usize; 3]>,
    /// Largest group, in work-items.
    max_group: usize,
    /// The kernel's local memory, without that of arguments.
    local_bytes: u64,
}

impl Limits {
    /// Queries the limits. If a query fails, the driver itself must refuse an invalid launch.
    fn ask(driver: &Driver, kernel: ClKernel) -> Limits {
        let group = Some(ask(driver, kernel, cl::CL_KERNEL_COMPILE_WORK_GROUP_SIZE));
        let group = group.filter(|group| *group != [0; 3]);
        if driver.quirks.misjudges_kernels {
            return Limits { group, ..Limits::default() };
        }
        Limits {
            group,
            max_group: ask(driver, kernel, cl::CL_KERNEL_WORK_GROUP_SIZE),
            local_bytes: ask(driver, kernel, cl::CL_KERNEL_LOCAL_MEM_SIZE),
        }
    }
}

fn ask<T: Pod>(driver: &Driver, kernel: ClKernel, what: u32) -> T {
    let answer = query::value(|n, at, len| {
        // SAFETY: a live kernel and its device; `query` passes a buffer of the stated length.
        unsafe { driver.cl.get_kernel_work_group_info(kernel, driver.device, what, n, at, len) }
    });
    answer.unwrap_or_else(|_| T::zeroed())
}

impl Kernel {
    /// Looks up a kernel and compares its number of parameters.
    pub(super) fn new(program: &Arc<RawProgram>, name: &str, parameters: usize) -> Result<Kernel> {
        let (driver, first) = (&program.context.driver, RawKernel::new(program, name)?);
        check_parameters(driver, name, first.raw, parameters)?;
        let (limits, domain) = (Limits::ask(driver, first.raw), driver.domain);
        let reflected =
            (0..parameters).map(|index| reflect::parameter(driver, first.raw, index)).collect();
        let (program, name) = (program.clone(), name.to_owned());
        let slots = Slots::new(Slot::new(first, parameters));
        let form = AtomicU64::new(0);
        Ok(Kernel { program, domain, name, parameters, limits, reflected, slots, form })
    }

    fn driver(&self) -> &Arc<Driver> {
        &self.program.context.driver
    }

    /// Clears a memory that is being dropped from the arguments of free slots. A launch that holds a slot sets all its arguments.
    pub fn take_back(&self, memory: u64) {
        self.slots.idle().for_each(|mut slot| slot.forget(memory, self.driver()));
    }

    fn slot(&self) -> Result<Slot> {
        Ok(Slot::new(RawKernel::new(&self.program, &self.name)?, self.parameters))
    }

    /// Checks the arguments, records the queue in the memories, and sets the arguments in a slot of form `form`. Returns the
    /// required form if it is another one. Sets `unknown` if an argument is memory that the driver does not know.
    ///
    /// # Safety
    /// The memories live until the kernel has been enqueued.
    #[inline(always)]
    unsafe fn set(
        &self,
        queue: &Queue,
        slot: &mut Slot,
        form: u64,
        args: Args<'_, Queue>,
        unknown: &mut bool,
    ) -> Result<Option<u64>> {
        let mut local = 0u64;
        for (index, arg) in args.iter().enumerate() {
            let arg = arg?;
            let to = match &arg {
                TypedArg::Memory(memory, access, _) => {
                    memory.start_launch(&queue.raw, access.writes())?;
                    let is_svm = matches!(memory.place, Place::Svm { .. });
                    if is_svm != has_svm(form, index) && index < FORM_ARGS {
                        return form_of(args).map(Some);
                    }
                    *unknown |= is_svm && memory.is_unknown();
                    Setting::Memory(memory.id, &memory.place)
                }
                TypedArg::Bytes(bytes) => Setting::Value(bytes),
                TypedArg::Local(bytes) => {
                    local = local.saturating_add(*bytes as u64);
                    check_local(self, local, &queue.raw.driver().info.caps)?;
                    Setting::Local(*bytes)
                }
            };
            if !slot.has(index, &to) {
                // SAFETY: the caller's promise; the memory is of this context.
                unsafe { self.change(queue, slot, index, to, &arg) }?;
            }
        }
        Ok(None)
    }

    /// # Safety
    /// As [`Kernel::set`].
    #[inline(never)]
    unsafe fn change(
        &self,
        queue: &Queue,
        slot: &mut Slot,
        index: usize,
        to: Setting<'_>,
        arg: &TypedArg<'_, Memory>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let set = unsafe { slot.set(&queue.raw.driver().cl, index, &to) };
        set.map_err(|status| self.refused(to.call(), status, index, arg))
    }

    #[cold]
    fn refused(
        &self,
        call: &'static str,
        status: ClStatus,
        index: usize,
        arg: &TypedArg<'_, Memory>,
    ) -> Error {
        let which = format!("argument {index} of kernel `{}` ({})", self.name, described(arg));
        conv::argument(call, status, &which, &self.driver().info.name)
    }
}

impl hal::Kernel for Kernel {
    #[inline]
    fn domain(&self) -> Domain {
        self.domain
    }

    fn name(&self) -> &str {
        &self.name
    }

    #[inline]
    fn parameters(&self) -> usize {
        self.parameters
    }

    fn parameter(&self, index: usize) -> Option<ReflectedParameter> {
        self.reflected.get(index)?.clone()
    }
}

/// The number of parameters of a live kernel.
pub(super) fn parameters(driver: &Driver, kernel: ClKernel) -> Result<usize> {
    let takes = query::value::<u32>(|n, at, len| {
        // SAFETY: a live kernel; `query` passes a buffer of the stated length.
        unsafe { driver.cl.get_kernel_info(kernel, cl::CL_KERNEL_NUM_ARGS, n, at, len) }
    });
    Ok(driver.check("clGetKernelInfo", takes)? as usize)
}

fn check_parameters(driver: &Driver, name: &str, kernel: ClKernel, declared: usize) -> Result<()> {
    let takes = parameters(driver, kernel)?;
    if takes == declared {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "kernel `{name}` takes {takes} arguments, the signature declares {declared}"
    )))
}

fn described(arg: &TypedArg<'_, Memory>) -> String {
    match arg {
        TypedArg::Memory(memory, access, _) => {
            format!("memory of {} bytes for {access}", memory.bytes())
        }
        TypedArg::Bytes(bytes) => format!("a value of {} bytes", bytes.len()),
        TypedArg::Local(bytes) => format!("{bytes} bytes of local memory"),
    }
}

/// Sets the arguments and enqueues the kernel. Allocates only for events.
///
/// # Safety
/// The kernel stays inside the given memories and accesses each only as its access permits.
pub(super) unsafe fn launch(
    queue: &Queue,
    kernel: &Kernel,
    grid: &Grid,
    args: Args<'_, Queue>,
    after: Events<'_, Queue>,
    wants_event: bool,
) -> Result<Option<Event>> {
    let driver = queue.raw.driver();
    let plain = grid.is_plain();
    let group = kernel.group(grid, plain, driver)?;
    let (mut form, mut unknown) = (kernel.form.load(Ordering::Relaxed), false);
    let slot = loop {
        let mut slot = kernel.slots.take(form, || kernel.slot())?;
        // SAFETY: the memories are borrowed until the enqueue below.
        match unsafe { kernel.set(queue, &mut slot, form, args, &mut unknown) }? {
            None => break slot,
            Some(needed) => form = needed,
        }
        kernel.form.store(form, Ordering::Relaxed);
    };
    if unknown {
        queue.raw.part_kernels()?;
    }
    // OpenCL 1.0 requires null instead of zeros; both mean the same.
    let from = if plain || grid.offset == [0; 3] { None } else { Some(&grid.offset) };
    let call = || Enqueue { queue, kernel, slot: slot.raw(), grid, from, group };
    if after.is_empty() && !wants_event && !driver.quirks.reads_arguments_late {
        // SAFETY: the caller's promise; the slot is held, its arguments are set.
        return unsafe { call().now(&[], ptr::null_mut()) }.map(|()| None);
    }
    // SAFETY: as above.
    let event = unsafe { call().with_event(after) };
    if event.is_err() {
        outlive(queue, args);
    }
    let event = event?;
    Ok(wants_event.then_some(event))
}

/// A launch whose arguments are set and whose slot is held.
struct Enqueue<'a> {
    queue: &'a Queue,
    kernel: &'a Kernel,
    slot: ClKernel,
    grid: &'a Grid,
    from: Option<&'a [usize; 3]>,
    group: Option<&'a [usize; 3]>,
}

impl Enqueue<'_> {
    /// # Safety
    /// As [`launch`]. `event` is null, or a place for the event.
    #[inline(always)]
    unsafe fn now(&self, waits: &[ClEvent], event: *mut ClEvent) -> Result<()> {
        let Enqueue { queue, kernel, slot, grid, from, group } = *self;
        let (driver, raw) = (queue.raw.driver(), queue.raw.raw);
        let (dims, global) = (grid.dims as u32, grid.global.as_ptr());
        let sizes = |given: Option<&[usize; 3]>| given.map_or(ptr::null(), |given| given.as_ptr());
        let (from, local) = (sizes(from), sizes(group));
        let (count, list) = match waits {
            [] => (0, ptr::null()),
            waits => (waits.len() as u32, waits.as_ptr()),
        };
        // SAFETY: live objects of one context, three sizes each; the caller's promise about the kernel.
        let enqueued = unsafe {
            driver
                .cl
                .enqueue_nd_range_kernel(raw, slot, dims, from, global, local, count, list, event)
        };
        enqueued.map_err(|status| conv::launch(status, &kernel.name, grid, &driver.info.name))
    }

    /// Launches after other events, and returns an event. Waits for the launch if the driver reads its arguments late.
    ///
    /// # Safety
    /// As [`launch`].
    #[inline(never)]
    unsafe fn with_event(&self, after: Events<'_, Queue>) -> Result<Event> {
        let (queue, mut event) = (self.queue, ClEvent::NULL);
        let waits = queue.waits(after)?;
        // SAFETY: the caller's promise.
        unsafe { self.now(&waits, &raw mut event) }?;
        queue.waited(after);
        let event = queue.raw.event("clEnqueueNDRangeKernel", event)?;
        if queue.raw.driver().quirks.reads_arguments_late {
            // The driver may read the arguments until the launch is over.
            hal::Event::wait(&event, queue.raw.driver().post.limit())?;
        }
        Ok(event)
    }
}

impl Kernel {
    /// The size of a group: the requested one, the one the kernel was compiled for, or one work-item if the grid has only
    /// one; otherwise the driver chooses.
    #[inline]
    fn group<'a>(
        &'a self,
        grid: &'a Grid,
        plain: bool,
        driver: &Driver,
    ) -> Result<Option<&'a [usize; 3]>> {
        let asked = grid.local.as_ref().or(self.limits.group.as_ref());
        if asked.is_some() || !plain {
            return self.checked(grid, asked, driver).map(|()| asked);
        }
        // One work-item is a group of one, so the driver need not choose a size.
        let [x, y, z] = grid.global;
        Ok(Some(&[1; 3]).filter(|_| x | y | z == 1))
    }

    #[inline(never)]
    fn checked(&self, grid: &Grid, group: Option<&[usize; 3]>, driver: &Driver) -> Result<()> {
        let wrong = wrong_grid(grid).or_else(|| self.wrong_group(grid, group?, driver));
        let Some(why) = wrong else { return Ok(()) };
        let (name, grid) = (&self.name, conv::grid_text(grid));
        Err(Error::invalid(format!("kernel `{name}` over {grid}: {why}")))
    }

    /// Describes what is wrong with a group's size, if anything.
    fn wrong_group(&self, grid: &Grid, group: &[usize; 3], driver: &Driver) -> Option<String> {
        let (caps, limits, dims) = (&driver.info.caps, &self.limits, grid.dims);
        let local = &group[..dims];
        if let Some(only) = &limits.group
            && (*local != only[..dims] || only[dims..].iter().any(|n| *n != 1))
        {
            return Some(format!("it was compiled for groups of {only:?} only"));
        }
        if local.contains(&0) || local.iter().zip(caps.max_group_sizes).any(|(n, max)| *n > max) {
            return Some(format!("a group may have 1 to {:?}", caps.max_group_sizes));
        }
        let most = match limits.max_group {
            0 => caps.max_group_size,
            max => max.min(caps.max_group_size),
        };
        let items = local.iter().try_fold(1usize, |product, n| product.checked_mul(*n));
        if items.is_none_or(|items| items > most) {
            return Some(format!("a group may have {most} work-items in all"));
        }
        let uneven = grid.global.iter().zip(local).any(|(n, group)| !n.is_multiple_of(*group));
        if driver.version < Version::V2_0 && uneven {
            return Some("before OpenCL 2.0 groups must divide the work-items evenly".to_owned());
        }
        None
    }
}

/// Describes what is wrong with a grid, if anything.
fn wrong_grid(grid: &Grid) -> Option<String> {
    let dims = grid.dims;
    if !(1..=3).contains(&dims) {
        return Some(format!("{dims} dimensions, where 1 to 3 are possible"));
    }
    let ranges = || grid.global[..dims].iter().zip(&grid.offset);
    if ranges().any(|(n, _)| *n == 0) {
        return Some("no work-items".to_owned());
    }
    if ranges().any(|(n, from)| n.checked_add(*from).is_none()) {
        return Some(format!("an offset of {:?} is too far", &grid.offset[..dims]));
    }
    None
}

/// Which arguments are SVM pointers, one bit each.
#[cold]
fn form_of(args: Args<'_, Queue>) -> Result<u64> {
    let mut form = 0;
    for (index, arg) in args.iter().enumerate().take(FORM_ARGS) {
        if let TypedArg::Memory(memory, ..) = arg?
            && let Place::Svm { .. } = memory.place
        {
            form |= 1 << index;
        }
    }
    Ok(form)
}

#[inline]
fn has_svm(form: u64, index: usize) -> bool {
    form >> (index % FORM_ARGS) & 1 == 1
}

/// Records the queue in the memories of a launch whose wait failed, because the launch may still use them.
#[cold]
fn outlive(queue: &Queue, args: Args<'_, Queue>) {
    for arg in args.iter() {
        if let Ok(TypedArg::Memory(memory, ..)) = arg {
            memory.outlives(&queue.raw);
        }
    }
}

/// Checks the local memory of a launch. The kernel's own is left to the compiler, unless an argument adds to it.
fn check_local(kernel: &Kernel, given: u64, caps: &Caps) -> Result<()> {
    let (own, has) = (kernel.limits.local_bytes, caps.local_memory_bytes);
    if given == 0 || given.saturating_add(own) <= has {
        return Ok(());
    }
    let beside = match own {
        0 => String::new(),
        _ => format!(" beside {own} of its own"),
    };
    let name = &kernel.name;
    Err(Error::invalid(format!(
        "kernel `{name}` with {given} bytes of local memory{beside}, where the device has {has}"
    )))
}
