//! Kernels, and launching them.
//!
//! A work-item is a thread, a group is a block. Unlike OpenCL the driver launches whole groups only, so groups must
//! divide the work-items evenly. Group-local arguments are not parameters here: their sum is the launch's dynamic
//! shared memory, which a kernel accesses as its one `extern __shared__` array, with each argument's part aligned to 16
//! bytes after the previous one. A kernel compiled for another API has a [`Packing`], which describes its parameters
//! instead.

use super::{
    conv,
    device::{Driver, Limits},
    event::Event,
    program::RawModule,
    queue::Queue,
};
use onebuf_hal::{
    self as hal, Arg, Domain, Error, Grid, Result,
    locks::Arc,
    packing::{Hidden, Packing, Slot},
    typed::{Args, Events, TypedArg},
};
use onebuf_sys::{
    Flavor,
    cuda_like::{CuFunction, CuStatus, DevicePtr, consts},
};
use std::{ffi::CString, ffi::c_void, ptr};

/// Most work-items of a group whose size the caller does not choose; larger groups seldom help.
const USUAL_GROUP: usize = 256;
/// Alignment of each argument's part of dynamic shared memory.
const SHARED_ALIGN: usize = 16;
/// Launches with more arguments than this allocate.
const FEW: usize = 16;

/// One kernel of a module.
#[derive(Debug)]
pub struct Kernel {
    module: Arc<RawModule>,
    domain: Domain,
    name: String,
    parameters: usize,
    function: CuFunction,
    /// Largest group, in work-items.
    max_group: usize,
    /// Static shared memory, in bytes.
    shared_bytes: u64,
    /// The sizes of the parameters, if the driver reports them.
    sizes: Option<Vec<usize>>,
    /// The parameter layout of a kernel compiled for another API.
    packing: Option<Packing>,
}

impl Kernel {
    /// Looks up a kernel. The arguments that are parameters are counted at launch.
    pub(super) fn new(
        module: &Arc<RawModule>,
        packing: Option<Packing>,
        name: &str,
        parameters: usize,
    ) -> Result<Kernel> {
        let driver = &module.context.driver;
        let c_name = CString::new(name)
            .map_err(|_| Error::invalid(format!("a zero byte in the kernel's name {name:?}")))?;
        let _current = module.context.enter()?;
        // SAFETY: a live module, a string; the context is current.
        let found = unsafe { driver.table.module_function(module.raw, c_name.as_ptr()) };
        let function = match found {
            Err(refused) if refused.status == CuStatus::NOT_FOUND => return Err(unknown(name)),
            // chipStar reports a name that it does not know as a failed launch. A context in which a launch has failed
            // refuses every other call, too.
            Err(refused) if refused.status == CuStatus::LAUNCH_FAILED && accepts_calls(driver) => {
                return Err(unknown(name));
            }
            found => driver.check(found)?,
        };
        let ask = |what| attribute(driver, function, what);
        let max_group = ask(consts::FUNC_MAX_THREADS_PER_BLOCK)?
            .map_or(usize::MAX, |most| most.try_into().unwrap_or(0));
        let shared_bytes =
            ask(consts::FUNC_SHARED_SIZE_BYTES)?.unwrap_or(0).try_into().unwrap_or(0);
        let (name, sizes) = (name.to_owned(), sizes(driver, function));
        let kernel = Kernel {
            module: module.clone(),
            domain: driver.domain,
            name,
            parameters,
            function,
            max_group,
            shared_bytes,
            sizes,
            packing,
        };
        match &kernel.sizes {
            _ if kernel.packing.is_some() => kernel.check_packing().map(|()| kernel),
            Some(sizes) if sizes.len() > parameters => Err(kernel.miscounted(parameters)),
            _ => Ok(kernel),
        }
    }

    /// Checks the packing against the number of parameters and, if the driver reports them, their sizes.
    fn check_packing(&self) -> Result<()> {
        let Some(packing) = &self.packing else { return Ok(()) };
        if packing.slots.len() != self.parameters {
            return Err(self.miscounted(self.parameters));
        }
        let slots = packing.slots.iter().map(|slot| match slot {
            Slot::Value(bytes) => *bytes,
            Slot::Memory | Slot::Local(_) => size_of::<DevicePtr>(),
        });
        let wanted: Vec<_> = slots.chain(packing.hidden.iter().map(|_| size_of::<u32>())).collect();
        match &self.sizes {
            Some(sizes) if *sizes != wanted => {
                let name = &self.name;
                Err(Error::invalid(format!(
                    "kernel `{name}` has parameters of {sizes:?} bytes, its packing describes {wanted:?}"
                )))
            }
            _ => Ok(()),
        }
    }

    fn hidden(&self) -> &[Hidden] {
        self.packing.as_ref().map_or(&[], |packing| &packing.hidden)
    }

    /// Returns the alignment of a local argument that is a parameter.
    fn local_align(&self, index: usize) -> Option<usize> {
        match self.packing.as_ref()?.slots.get(index) {
            Some(Slot::Local(align)) => Some(*align),
            _ => None,
        }
    }

    #[cold]
    fn miscounted(&self, given: usize) -> Error {
        let packed = self.packing.as_ref().map(|packing| packing.slots.len());
        let takes = packed.or(self.sizes.as_ref().map(Vec::len)).unwrap_or(self.parameters);
        let name = &self.name;
        Error::invalid(format!("kernel `{name}` takes {takes} arguments, {given} given"))
    }

    #[cold]
    fn wrong(&self, grid: &Grid, group: [usize; 3], why: &str) -> Error {
        let (name, grid) = (&self.name, conv::grid_text(grid, group));
        Error::invalid(format!("kernel `{name}` over {grid}: {why}"))
    }

    /// Returns the number of groups and the group size.
    fn shape(&self, grid: &Grid, driver: &Driver) -> Result<[[u32; 3]; 2]> {
        let wrong = |group, why: &str| Err(self.wrong(grid, group, why));
        if !(1..=3).contains(&grid.dims) || grid.global[..grid.dims].contains(&0) {
            return wrong([1; 3], "1 to 3 dimensions are possible, and no empty ones");
        }
        if grid.offset != [0; 3] {
            self.check_offset(grid)?;
        }
        if grid.dims != 3 && self.packing.as_ref().is_some_and(|packing| packing.three_dims) {
            return Err(self.flat(grid));
        }
        let used = |sizes: [usize; 3]| [0, 1, 2].map(|i| if i < grid.dims { sizes[i] } else { 1 });
        let (global, caps) = (used(grid.global), &driver.info.caps);
        let most = self.max_group.clamp(1, caps.max_group_size.max(1));
        let group = match grid.local {
            Some(local) => used(local),
            None => self.fixed_group().unwrap_or_else(|| self.choose(global, most, driver)),
        };
        if self.fixed_group().is_some_and(|fixed| fixed != group) {
            return wrong(group, &format!("it is compiled for groups of {:?}", self.fixed_group()));
        }
        let items = group.iter().try_fold(1usize, |product, n| product.checked_mul(*n));
        if group.contains(&0) || items.is_none_or(|items| items > most) {
            return wrong(group, &format!("a group may have 1 to {most} work-items in all"));
        }
        if group.iter().zip(caps.max_group_sizes).any(|(n, max)| *n > max) {
            return wrong(group, &format!("a group may have at most {:?}", caps.max_group_sizes));
        }
        if global.iter().zip(group).any(|(n, group)| !n.is_multiple_of(group)) {
            return wrong(group, "the groups must divide the work-items evenly: round them up");
        }
        let groups = [0, 1, 2].map(|i| global[i] / group[i]);
        let Limits { groups: limit, .. } = driver.limits;
        if groups.iter().zip(limit).any(|(n, max)| *n > max) {
            return wrong(group, &format!("more groups than the limit {limit:?}"));
        }
        let narrow = |sizes: [usize; 3]| sizes.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Ok([narrow(groups), narrow(group)])
    }

    fn fixed_group(&self) -> Option<[usize; 3]> {
        self.packing.as_ref().and_then(|packing| packing.group)
    }

    /// Checks a grid offset: the launch call has none, but a kernel may take it as hidden parameters.
    #[cold]
    fn check_offset(&self, grid: &Grid) -> Result<()> {
        let takes = self.packing.as_ref().is_some_and(|packing| packing.takes_offsets);
        if !takes {
            let what = format!("an offset of kernel `{}`'s work-items", self.name);
            return Err(Error::unsupported(what, "an API with offsets: pass it as an argument"));
        }
        let end = |(first, count): (usize, usize)| first.saturating_add(count);
        match grid.offset.into_iter().zip(grid.global).map(end).max() {
            Some(end) if end <= i32::MAX as usize => Ok(()),
            _ => Err(self.wrong(grid, [1; 3], "no index may be 2^31 or more")),
        }
    }

    /// The error for fewer than 3 dimensions: the kernel may query their number, and would get a wrong one.
    #[cold]
    fn flat(&self, grid: &Grid) -> Error {
        let needs = match self.locals_apart() {
            true => "3 dimensions, such as [n, 1, 1]",
            false => {
                "3 dimensions, such as [n, 1, 1], or its program built with -mcode-object-version=5"
            }
        };
        let what = format!(
            "kernel `{}`, which always sees 3 dimensions, on a grid of {}",
            self.name, grid.dims
        );
        Error::unsupported(what, needs)
    }

    /// Bytes of static group-local memory before that of the arguments.
    fn static_local(&self) -> u64 {
        self.packing.as_ref().map_or(0, |packing| packing.static_local as u64)
    }

    fn locals_apart(&self) -> bool {
        self.packing.as_ref().is_some_and(|packing| packing.locals_apart)
    }

    /// Checks that the device has enough local memory, if each local argument has separate memory.
    fn check_apart(&self, bytes: u64, args: &[Arg<'_>], driver: &Driver) -> Result<()> {
        let locals = args.iter().filter(|arg| matches!(arg, Arg::Local(_))).count() as u64;
        let has = driver.info.caps.local_memory_bytes;
        if !self.locals_apart() || bytes.saturating_mul(locals) <= has {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "kernel `{}` with {bytes} bytes for each of {locals} local arguments, where the device has {has}",
            self.name
        )))
    }

    /// Chooses the group size: the usual limit, or the largest groups if those would be too many.
    fn choose(&self, global: [usize; 3], most: usize, driver: &Driver) -> [usize; 3] {
        let Limits { groups, warp, .. } = driver.limits;
        let choose = |most| chosen(global, driver.info.caps.max_group_sizes, most, warp);
        let usual = choose(most.min(USUAL_GROUP));
        let fits = (0..3).all(|i| global[i] / usual[i] <= groups[i]);
        if fits { usual } else { choose(most) }
    }

    /// Checks the size of the launch's dynamic shared memory, and opts in to more than the default where needed.
    fn shared(&self, bytes: u64, driver: &Driver) -> Result<u32> {
        let (own, has) = (self.shared_bytes, driver.info.caps.local_memory_bytes);
        if bytes.saturating_add(own) > has {
            let name = &self.name;
            return Err(Error::invalid(format!(
                "kernel `{name}` with {bytes} bytes of local memory beside {own} of its own, where \
                 the device has {has}"
            )));
        }
        let shared = u32::try_from(bytes).unwrap_or(u32::MAX);
        if bytes + own > driver.limits.plain_shared_bytes && driver.flavor() == Flavor::Cuda {
            let what = consts::FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a function of a live module; the context is current.
            driver.check(unsafe {
                driver.table.set_function_attribute(self.function, what, shared as i32)
            })?;
        }
        Ok(shared)
    }
}

/// Returns a function's attribute, or `None` if the runtime does not report it (chipStar). Then only the device's
/// limits are checked, and the driver refuses a launch beyond the function's.
fn attribute(driver: &Driver, function: CuFunction, what: i32) -> Result<Option<i32>> {
    // SAFETY: a function of a live module; the caller has made its context current.
    match unsafe { driver.table.function_attribute(what, function) } {
        Err(refused) if refused.status == CuStatus::NOT_SUPPORTED => Ok(None),
        asked => driver.check(asked).map(Some),
    }
}

#[cold]
/// Whether the current context still accepts calls.
fn accepts_calls(driver: &Driver) -> bool {
    // SAFETY: the context is current.
    let made = unsafe { driver.table.create_event(consts::EVENT_DISABLE_TIMING) };
    let Ok(event) = made else { return false };
    // SAFETY: the event is ours, and nothing was recorded in it.
    driver.note(unsafe { driver.table.destroy_event(event) });
    true
}

fn unknown(name: &str) -> Error {
    Error::invalid(format!(
        "the program has no kernel `{name}`: one is found by its C name, so declare it `extern \"C\"`"
    ))
}

/// Returns the parameters' sizes by a call of CUDA 12.4, which refuses the first index after the last.
fn sizes(driver: &Driver, function: CuFunction) -> Option<Vec<usize>> {
    if !driver.table.has_function_parameter() {
        return None;
    }
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: a function of a live module, and valid pointers for two numbers.
        let asked = unsafe {
            let (offset, bytes) = (&raw mut offset, &raw mut bytes);
            driver.table.function_parameter(function, sizes.len(), offset, bytes)
        };
        match asked {
            Ok(()) => sizes.push(bytes),
            Err(refused) if refused.status == CuStatus::INVALID_VALUE => return Some(sizes),
            Err(_) => return None,
        }
    }
}

/// Chooses a group size that divides the work-items, in whole warps where possible.
fn chosen(global: [usize; 3], max: [usize; 3], most: usize, warp: usize) -> [usize; 3] {
    let mut left = most.max(1);
    [0, 1, 2].map(|i| {
        // Every launch comes here: larger sizes need no test.
        let limit = left.min(max[i]).min(global[i]).max(1);
        let divides = |n: &usize| global[i].is_multiple_of(*n);
        let whole = (1..=limit / warp).rev().map(|n| n * warp).find(divides).filter(|_| i == 0);
        let size = whole.or_else(|| (1..=limit).rev().find(divides)).unwrap_or(1);
        left /= size;
        size
    })
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

    fn parameter_bytes(&self) -> Option<&[usize]> {
        self.sizes.as_deref().filter(|_| self.packing.is_none())
    }
}

/// The argument values of a launch, and a pointer to each for the driver.
struct Parameters {
    few: ([DevicePtr; FEW], [*mut c_void; FEW]),
    many: (Vec<DevicePtr>, Vec<*mut c_void>),
}

impl Parameters {
    fn new() -> Parameters {
        Parameters {
            few: ([DevicePtr(0); FEW], [ptr::null_mut(); FEW]),
            many: (Vec::new(), Vec::new()),
        }
    }

    fn room(&mut self, count: usize) -> (&mut [DevicePtr], &mut [*mut c_void]) {
        if count <= FEW {
            return (&mut self.few.0, &mut self.few.1);
        }
        self.many = (vec![DevicePtr(0); count], vec![ptr::null_mut(); count]);
        (&mut self.many.0, &mut self.many.1)
    }
}

/// Enqueues a kernel.
///
/// # Safety
/// The kernel stays inside the given memories and accesses each only as its access allows.
pub(super) unsafe fn launch(
    queue: &Queue,
    kernel: &Kernel,
    grid: &Grid,
    args: Args<'_, Queue>,
    after: Events<'_, Queue>,
    wants_event: bool,
) -> Result<Option<Event>> {
    let raw = &queue.raw;
    let driver = raw.driver();
    let [groups, group] = kernel.shape(grid, driver)?;
    let mut room = Parameters::new();
    let (values, places) = room.room(args.len() + kernel.hidden().len());
    let (mut count, own) = (0, kernel.static_local());
    let mut local = own;
    for (index, arg) in args.iter().enumerate() {
        let place = match arg? {
            TypedArg::Memory(memory, ..) => {
                memory.note_use(raw);
                values[count] = memory.at;
                (&raw mut values[count]).cast()
            }
            TypedArg::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
            TypedArg::Local(bytes) if kernel.locals_apart() => {
                // Each local argument gets as much as the largest, and no value is passed for it.
                local = local.max(rounded(bytes as u64, SHARED_ALIGN));
                values[count] = DevicePtr(0);
                (&raw mut values[count]).cast()
            }
            TypedArg::Local(bytes) => {
                let align = kernel.local_align(index);
                let start = rounded(local, align.unwrap_or(SHARED_ALIGN));
                local = start.saturating_add(rounded(bytes as u64, SHARED_ALIGN));
                if align.is_none() {
                    continue;
                }
                values[count] = DevicePtr(start);
                (&raw mut values[count]).cast()
            }
        };
        places[count] = place;
        count += 1;
    }
    for hidden in kernel.hidden() {
        values[count] = DevicePtr(u64::from(told(*hidden, grid)).to_le());
        places[count] = (&raw mut values[count]).cast();
        count += 1;
    }
    check_sizes(kernel, args.untyped(), count)?;
    let _current = raw.enter()?;
    let shared = kernel.shared(local - own, driver)?;
    kernel.check_apart(local, args.untyped(), driver)?;
    queue.wait_for_all(after)?;
    kernel.module.users.note(raw);
    let ([x, y, z], [bx, by, bz]) = (groups, group);
    // SAFETY: a function of a live module of the current context, a live stream, and a pointer for each parameter,
    // whose value the driver copies; the caller guarantees what the kernel does.
    let mut start = || unsafe {
        let (function, places) = (kernel.function, places.as_mut_ptr());
        driver.table.launch(function, x, y, z, bx, by, bz, shared, raw.raw, places, ptr::null_mut())
    };
    match wants_event {
        true => raw.timed(start).map(Some),
        false => driver.check(start()).map(|()| None),
    }
}

/// Rounds up to a multiple; an overflow becomes `u64::MAX`, which `Kernel::shared` refuses.
fn rounded(bytes: u64, align: usize) -> u64 {
    bytes.checked_next_multiple_of(align as u64).unwrap_or(u64::MAX)
}

/// Returns the value of a hidden parameter. `Kernel::shape` has checked that it fits.
fn told(what: Hidden, grid: &Grid) -> u32 {
    let number = match what {
        Hidden::Offset(dimension) => grid.offset[dimension],
        Hidden::Dims => grid.dims,
    };
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Checks the arguments' sizes: the driver copies as many bytes as the parameter has.
#[inline]
fn check_sizes(kernel: &Kernel, args: &[Arg<'_>], count: usize) -> Result<()> {
    if let Some(packing) = &kernel.packing {
        return check_slots(kernel, packing, args);
    }
    let Some(sizes) = &kernel.sizes else { return Ok(()) };
    if sizes.len() != count {
        return Err(kernel.miscounted(count));
    }
    let given = args.iter().filter_map(|arg| match arg {
        Arg::Memory(..) => Some(size_of::<DevicePtr>()),
        Arg::Bytes(bytes) => Some(bytes.len()),
        Arg::Local(_) => None,
    });
    match given.zip(sizes).position(|(given, wanted)| given != *wanted) {
        None => Ok(()),
        Some(at) => {
            let (name, wants) = (&kernel.name, sizes[at]);
            Err(Error::invalid(format!("parameter {at} of kernel `{name}` has {wants} bytes")))
        }
    }
}

/// Checks the arguments' sizes and kinds against a packing.
fn check_slots(kernel: &Kernel, packing: &Packing, args: &[Arg<'_>]) -> Result<()> {
    let fits = |(arg, slot): (&Arg<'_>, &Slot)| match (arg, slot) {
        (Arg::Memory(..), Slot::Memory) | (Arg::Local(_), Slot::Local(_)) => true,
        (Arg::Bytes(bytes), Slot::Value(wanted)) => bytes.len() == *wanted,
        // An address of the caller's.
        (Arg::Bytes(bytes), Slot::Memory) => bytes.len() == size_of::<DevicePtr>(),
        _ => false,
    };
    match args.iter().zip(&packing.slots).position(|pair| !fits(pair)) {
        None => Ok(()),
        Some(at) => {
            let (name, slot) = (&kernel.name, packing.slots[at]);
            Err(Error::invalid(format!("parameter {at} of kernel `{name}` is {slot}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::chosen;

    #[test]
    fn groups_divide_the_work() {
        let max = [1024, 1024, 64];
        let one = |n| chosen([n, 1, 1], max, 256, 32);
        assert_eq!(one(1 << 20), [256, 1, 1]);
        assert_eq!(one(96), [96, 1, 1]);
        assert_eq!(one(100), [100, 1, 1]);
        assert_eq!(one(1009), [1, 1, 1], "a prime");
        assert_eq!(one(1), [1, 1, 1]);
        assert_eq!(chosen([64, 64, 1], max, 256, 32), [64, 4, 1]);
        assert_eq!(chosen([7, 5, 3], max, 256, 32), [7, 5, 3]);
        assert_eq!(chosen([1, 1, 128], max, 256, 32), [1, 1, 64]);
    }
}
