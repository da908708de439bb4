//! Kernels, and launching them.

use super::{
    conv,
    device::Driver,
    memory::{Memory, Place},
    program::RawProgram,
    query,
    queue::Queue,
};
use crate::{
    Error, Result, hal,
    hal::{Arg, Caps, Grid},
    sync::{Arc, Mutex, lock},
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClKernel, consts as cl},
};
use std::{any::Any, ffi::CString, ptr};

/// A `cl_kernel` that is released once.
#[derive(Debug)]
pub(super) struct RawKernel {
    program: Arc<RawProgram>,
    raw: ClKernel,
}

impl RawKernel {
    pub fn new(program: &Arc<RawProgram>, name: &str) -> Result<RawKernel> {
        let driver = &program.context.driver;
        let c_name = CString::new(name).map_err(|_| unknown(program, name))?;
        // SAFETY: a live program.
        let made = unsafe { driver.cl.create_kernel(program.raw, c_name.as_ptr()) };
        let raw = made.map_err(|status| match status {
            ClStatus::INVALID_KERNEL_NAME => unknown(program, name),
            _ => conv::status("clCreateKernel", status, &driver.info.name),
        })?;
        Ok(RawKernel { program: program.clone(), raw })
    }
}

impl Drop for RawKernel {
    fn drop(&mut self) {
        let driver = &self.program.context.driver;
        // SAFETY: this struct owns one reference.
        let released = unsafe { driver.cl.release_kernel(self.raw) };
        driver.note("clReleaseKernel", released);
    }
}

/// One kernel of a program.
#[derive(Debug)]
pub(super) struct Kernel {
    program: Arc<RawProgram>,
    name: String,
    parameters: usize,
    /// By which arguments are SVM pointers, one bit each: NVIDIA refuses a launch (-52) when an argument
    /// that was an SVM pointer becomes a `cl_mem`, so each such form has a `cl_kernel` of its own.
    ///
    /// Locked from the first argument to the enqueue: arguments are the kernel's state, and setting
    /// them is the one thing in OpenCL that two threads must not do at once.
    forms: Mutex<Vec<(u64, RawKernel)>>,
}

impl Kernel {
    /// Looks a kernel up and compares the number of its parameters.
    pub fn new(program: &Arc<RawProgram>, name: &str, parameters: usize) -> Result<Kernel> {
        let first = RawKernel::new(program, name)?;
        let (program, name, raw) = (program.clone(), name.to_owned(), first.raw);
        let kernel = Kernel { program, name, parameters, forms: Mutex::new(vec![(0, first)]) };
        kernel.check_parameters(raw)?;
        Ok(kernel)
    }

    fn driver(&self) -> &Arc<Driver> {
        &self.program.context.driver
    }

    fn check_parameters(&self, raw: ClKernel) -> Result<()> {
        let (driver, what) = (self.driver(), cl::CL_KERNEL_NUM_ARGS);
        let takes = query::value::<u32>(|n, at, len| {
            // SAFETY: a live kernel; `query` gives a place of the length it says.
            unsafe { driver.cl.get_kernel_info(raw, what, n, at, len) }
        });
        let takes = driver.check("clGetKernelInfo", takes)? as usize;
        if takes == self.parameters {
            return Ok(());
        }
        let (name, declared) = (&self.name, self.parameters);
        Err(Error::invalid(format!(
            "kernel `{name}` takes {takes} arguments, the signature declares {declared}"
        )))
    }

    /// The `cl_kernel` for arguments of these places.
    fn form(
        &self,
        forms: &mut Vec<(u64, RawKernel)>,
        places: &[Option<Place>],
    ) -> Result<ClKernel> {
        let svm = |place: &Option<Place>| matches!(place, Some(Place::Svm { .. }));
        let bit = |(at, place)| u64::from(svm(place)).checked_shl(at).unwrap_or(0);
        let form = (0..).zip(places).map(bit).fold(0, |form, bit| form | bit);
        if let Some((_, known)) = forms.iter().find(|(known, _)| *known == form) {
            return Ok(known.raw);
        }
        forms.push((form, RawKernel::new(&self.program, &self.name)?));
        Ok(forms[forms.len() - 1].1.raw)
    }

    /// # Safety
    /// The arguments' mutex is held, and the memory lives until the kernel was enqueued.
    unsafe fn set(
        &self,
        raw: ClKernel,
        index: usize,
        arg: &Arg<'_>,
        place: Option<Place>,
    ) -> Result<()> {
        let (cl, at) = (&self.driver().cl, index as u32);
        let call = match place {
            Some(Place::Svm { .. }) => "clSetKernelArgSVMPointer",
            _ => "clSetKernelArg",
        };
        // SAFETY: a live kernel, nobody else sets arguments, values of the lengths said. An SVM
        // pointer is of this context.
        let set = unsafe {
            match (arg, place) {
                (Arg::Bytes(bytes), _) => {
                    cl.set_kernel_arg(raw, at, bytes.len(), bytes.as_ptr().cast())
                }
                (Arg::Local(bytes), _) => cl.set_kernel_arg(raw, at, *bytes, ptr::null()),
                (_, Some(Place::Svm { pointer, .. })) => {
                    cl.set_kernel_arg_svm_pointer(raw, at, pointer.void())
                }
                (_, Some(Place::Object(mem))) => {
                    cl.set_kernel_arg(raw, at, size_of_val(&mem), (&raw const mem).cast())
                }
                (Arg::Memory(..), None) => Err(ClStatus::INVALID_MEM_OBJECT),
            }
        };
        set.map_err(|status| {
            let which = format!("argument {index} of kernel `{}` ({})", self.name, described(arg));
            conv::argument(call, status, &which, &self.driver().info.name)
        })
    }
}

impl hal::Kernel for Kernel {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn unknown(program: &RawProgram, name: &str) -> Error {
    match program.kernel_names() {
        Some(names) => Error::invalid(format!("no kernel `{name}` in the program; it has {names}")),
        None => Error::invalid(format!("no kernel `{name}` in the program")),
    }
}

fn described(arg: &Arg<'_>) -> String {
    match arg {
        Arg::Memory(memory, access) => format!("memory of {} bytes for {access}", memory.bytes()),
        Arg::Bytes(bytes) => format!("a value of {} bytes", bytes.len()),
        Arg::Local(bytes) => format!("{bytes} bytes of local memory"),
    }
}

/// Sets the arguments and enqueues.
///
/// # Safety
/// The kernel stays inside the memories given and does to each only what its access says.
pub(super) unsafe fn launch(
    queue: &Queue,
    kernel: &dyn hal::Kernel,
    grid: &Grid,
    args: &[Arg<'_>],
) -> Result<()> {
    let driver = queue.raw.driver();
    let kernel = kernel.as_any().downcast_ref::<Kernel>();
    let kernel = kernel.ok_or_else(|| driver.foreign("a kernel", None))?;
    driver.same_domain("a kernel", kernel.driver().domain)?;
    check_grid(&kernel.name, grid, &driver.info.caps)?;
    check_args(kernel, args, &driver.info.caps)?;

    let places = args.iter().map(|arg| memory(queue, arg)).collect::<Result<Vec<_>>>()?;
    let mut forms = lock(&kernel.forms);
    let raw = kernel.form(&mut forms, &places)?;
    for (index, (arg, place)) in args.iter().zip(places).enumerate() {
        // SAFETY: the mutex is held; the memory is borrowed until the enqueue below.
        unsafe { kernel.set(raw, index, arg, place) }?;
    }
    // SAFETY: the caller's promise.
    unsafe { enqueue(queue, kernel, raw, grid) }
}

/// What an argument's memory is known by, after noting that this queue uses it.
fn memory(queue: &Queue, arg: &Arg<'_>) -> Result<Option<Place>> {
    let Arg::Memory(memory, access) = arg else { return Ok(None) };
    let memory: &Memory = queue.own(*memory)?;
    memory.check_access(*access)?;
    memory.start_use(&queue.raw, access.writes())?;
    Ok(Some(memory.place()))
}

/// # Safety
/// As [`launch`], with the arguments set and their mutex held.
unsafe fn enqueue(queue: &Queue, kernel: &Kernel, form: ClKernel, grid: &Grid) -> Result<()> {
    let (driver, raw) = (queue.raw.driver(), queue.raw.raw);
    let (dims, global) = (grid.dims as u32, grid.global.as_ptr());
    let local = grid.local.as_ref().map_or(ptr::null(), |local| local.as_ptr());
    // SAFETY: live objects of one context, three sizes each; the caller's promise about the kernel.
    let enqueued = unsafe {
        let (cl, from, wait, no) = (&driver.cl, ptr::null(), ptr::null(), ptr::null_mut());
        cl.enqueue_nd_range_kernel(raw, form, dims, from, global, local, 0, wait, no)
    };
    enqueued.map_err(|status| conv::launch(status, &kernel.name, grid, &driver.info.name))
}

fn check_grid(kernel: &str, grid: &Grid, caps: &Caps) -> Result<()> {
    let wrong = |why: String| {
        let grid = conv::grid_text(grid);
        Err(Error::invalid(format!("kernel `{kernel}` over {grid}: {why}")))
    };
    if !(1..=3).contains(&grid.dims) {
        return wrong(format!("{} dimensions, where 1 to 3 are possible", grid.dims));
    }
    if grid.global[..grid.dims].contains(&0) {
        return wrong("no work-items".to_owned());
    }
    let Some(local) = grid.local else { return Ok(()) };
    let local = &local[..grid.dims];
    if local.contains(&0) || local.iter().zip(caps.max_group_sizes).any(|(n, max)| *n > max) {
        return wrong(format!("a group may have 1 to {:?}", caps.max_group_sizes));
    }
    let items = local.iter().try_fold(1usize, |product, n| product.checked_mul(*n));
    if items.is_none_or(|items| items > caps.max_group_size) {
        return wrong(format!("a group may have {} work-items in all", caps.max_group_size));
    }
    Ok(())
}

fn check_args(kernel: &Kernel, args: &[Arg<'_>], caps: &Caps) -> Result<()> {
    let (name, takes, given) = (&kernel.name, kernel.parameters, args.len());
    if takes != given {
        return Err(Error::invalid(format!(
            "kernel `{name}` takes {takes} arguments, {given} given"
        )));
    }
    let local_bytes = |arg: &Arg<'_>| if let Arg::Local(bytes) = arg { *bytes as u64 } else { 0 };
    let local = args.iter().map(local_bytes).fold(0, u64::saturating_add);
    if local > caps.local_memory_bytes {
        let has = caps.local_memory_bytes;
        return Err(Error::invalid(format!(
            "kernel `{name}` with {local} bytes of local memory, where the device has {has}"
        )));
    }
    Ok(())
}
