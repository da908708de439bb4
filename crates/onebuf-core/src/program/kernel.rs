//! Declared kernels, and launching them.
//!
//! # Safety
//! Every launch is checked against the signature that was declared in an unsafe call.

#![allow(unsafe_code)]

use super::{Arg, Call, Grid, Program, Signature, param::Param, reflect};
use crate::{
    device::Device,
    observe::{Timed, What},
    queues::Queue,
};
use onebuf_hal::{
    self as hal, Error, Event, Result,
    locks::{Arc, lock},
};
use std::{fmt, mem::MaybeUninit, sync::OnceLock};

/// Launches of kernels with more parameters allocate.
const FEW: usize = 8;

struct Shared {
    name: String,
    program: Program,
    hal: Arc<dyn hal::Kernel>,
    signature: Signature,
    /// The kernel grafted onto another device.
    grafted: OnceLock<Kernel>,
}

/// A declared kernel. Launching it is safe; see [`Queue::launch`]. Cheap to clone.
#[derive(Clone)]
pub struct Kernel(Arc<Shared>);

impl Program {
    /// Returns a kernel of this program, with the declared use of its parameters.
    ///
    /// The declaration is compared with the kernel's own parameters if they are known: from an OpenCL driver since 1.2, for
    /// programs that are built from text; from the module of an OpenCL program in SPIR-V; from the text of a CUDA program in
    /// PTX; and their number and sizes from CUDA's driver since 12.4. Compared are the kind (buffer, value
    /// or local memory), the size of a number and whether it is an integer, `const`, and the size of an element for
    /// [`Signature::each`]. Structures and signs are not compared, and a buffer of `u8` matches a buffer of anything. If the
    /// parameters are not known, the declaration is trusted. No driver reports bounds.
    ///
    /// # Safety
    /// For every launch whose arguments match the signature and pass its requirement, the kernel stays
    /// inside the given buffers, reads only those declared for reading, writes only those declared
    /// for writing, and terminates.
    ///
    /// # Errors
    /// [`onebuf_hal::Error::InvalidArgument`] if there is no such kernel, if its number of parameters differs, or, naming the
    /// parameter, if the kernel declares it otherwise.
    pub unsafe fn kernel(&self, name: &str, signature: Signature) -> Result<Kernel> {
        let hal = self.hal().kernel(name, signature.params.len())?;
        reflect::check(&signature, self, &*hal)?;
        Ok(Kernel::new(name, self, hal, signature))
    }
}

impl Kernel {
    fn new(name: &str, program: &Program, hal: Arc<dyn hal::Kernel>, signature: Signature) -> Self {
        let (name, program, grafted) = (name.into(), program.clone(), OnceLock::new());
        Self(Arc::new(Shared { name, program, hal, signature, grafted }))
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The device that the kernel was built for.
    pub fn device(&self) -> &Device {
        self.0.program.device()
    }

    /// The kernel's program.
    pub(super) fn program(&self) -> &Program {
        &self.0.program
    }

    /// The kernel's declared signature.
    pub(super) fn signature(&self) -> &Signature {
        &self.0.signature
    }

    /// The kernel grafted onto another device, if it was.
    pub(super) fn grafted(&self) -> &OnceLock<Kernel> {
        &self.0.grafted
    }

    /// Checks and launches.
    pub(crate) fn launch_plain(&self, queue: &Queue, grid: Grid, args: &[Arg<'_>]) -> Result<()> {
        match self.launch_here(queue, &grid, args, false) {
            Ok(_) => Ok(()),
            Err(error) => failed(error),
        }
    }

    /// Checks and launches. Returns the launch's own event if requested.
    #[inline(never)]
    pub(crate) fn launch_on(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[Arg<'_>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        self.launch_here(queue, grid, args, wants_event)
    }

    /// Inlined into both callers: calls are a considerable part of a short launch's overhead above the driver.
    #[inline(always)]
    fn launch_here(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[Arg<'_>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        if !self.is_of(queue) {
            return self.launch_grafted(queue, grid, args, wants_event);
        }
        if self.0.signature.params.len() != args.len() {
            return Err(self.miscounted(args.len()));
        }
        grid.check(&self.0.name, self.0.signature.offsets)?;
        if args.len() > FEW {
            return self.launch_many(queue, grid, args, wants_event);
        }
        let mut few = [const { MaybeUninit::uninit() }; FEW];
        self.launch_checked(queue, grid, args, &mut few[..args.len()], wants_event)
    }

    #[inline(never)]
    fn launch_many(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[Arg<'_>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let mut room: Vec<_> = args.iter().map(|_| MaybeUninit::uninit()).collect();
        self.launch_checked(queue, grid, args, &mut room, wants_event)
    }

    /// Converts each argument into `room`, which has a place for each parameter, and launches.
    #[inline(always)]
    fn launch_checked<'a>(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &'a [Arg<'_>],
        room: &mut [MaybeUninit<hal::Arg<'a>>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let params = &self.0.signature.params;
        let mut watched = false;
        for (index, arg) in args.iter().enumerate() {
            let Some(fit) = arg.fit(queue, &params[index], &mut watched) else {
                if arg.is_part() {
                    return self.launch_taking(queue, grid, args, wants_event);
                }
                return Err(self.misfit(index, arg, &params[index]));
            };
            room[index].write(fit);
        }
        // SAFETY: there are as many places as arguments, and each was written.
        let hal_args = unsafe { &*(&raw const *room as *const [hal::Arg<'_>]) };
        if self.0.signature.has_requirements() {
            self.0.signature.check(&Call { grid, args }).map_err(|why| self.refuses(&why))?;
        }
        match queue.queue_state.is_in_order() {
            true if !watched => self.start(queue, grid, hal_args, &[], wants_event),
            true => self.start_watched(queue, grid, args, hal_args, wants_event),
            false => self.start_unordered(queue, grid, args, hal_args, wants_event),
        }
    }

    /// Takes the views of buffers that were passed without one, launches, and releases them.
    #[inline(never)]
    fn launch_taking(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[Arg<'_>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let params = &self.0.signature.params;
        let pairs = || args.iter().zip(params);
        if let Some(index) = pairs().position(|(arg, param)| !arg.suits(queue, param)) {
            return Err(self.misfit(index, &args[index], &params[index]));
        }
        // Before anything is taken: a refused launch moves no bytes.
        self.0.signature.check(&Call { grid, args }).map_err(|why| self.refuses(&why))?;
        let held: Result<Vec<_>> = pairs().map(|(arg, param)| arg.held(queue, param)).collect();
        self.launch_on(queue, grid, &held?, wants_event)
    }

    /// Launches on a queue of the device that the kernel was grafted onto, if any.
    #[inline(never)]
    fn launch_grafted(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[Arg<'_>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        match self.0.grafted.get().filter(|grafted| grafted.is_of(queue)) {
            Some(grafted) => grafted.launch_on(queue, grid, args, wants_event),
            None => Err(self.misplaced(queue)),
        }
    }

    /// Launches on memory whose owner needs it back: the views record the launch.
    #[inline(never)]
    fn start_watched(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[Arg<'_>],
        hal_args: &[hal::Arg<'_>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let event = self.start(queue, grid, hal_args, &[], true)?;
        Ok(event.and_then(|event| note(args, event, wants_event)))
    }

    /// Launches on an out-of-order queue: the views have the events to wait for, and record the launch.
    #[inline(never)]
    fn start_unordered(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[Arg<'_>],
        hal_args: &[hal::Arg<'_>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let _turn = lock(&queue.queue_state.launching);
        let mut after = Vec::new();
        args.iter().try_for_each(|arg| arg.collect_waits(&mut after))?;
        let event = self.start(queue, grid, hal_args, &after, true)?;
        Ok(event.and_then(|event| note(args, event, wants_event)))
    }

    #[inline(always)]
    fn start(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[hal::Arg<'_>],
        after: &[Arc<dyn Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        if queue.queue_state.tracer.is_on() {
            return self.start_traced(queue, grid, args, after, wants_event);
        }
        // SAFETY: the signature, declared in an unsafe call, guarantees that the kernel stays in bounds and
        // honours each access; `launch_checked` has checked that the arguments match it.
        unsafe { queue.queue_state.hal.launch(&*self.0.hal, &grid.0, args, after, wants_event) }
    }

    /// Launches like `start`, and records it, with the event that has the device's times on a profiling queue.
    #[cold]
    fn start_traced(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[hal::Arg<'_>],
        after: &[Arc<dyn Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let queue_state = &queue.queue_state;
        let began = queue_state.tracer.begin(What::Launch);
        let timed = queue_state.spec.profiling && queue_state.tracer.has_observer();
        let wants_event = wants_event || timed;
        // SAFETY: as for `start`.
        let launched =
            unsafe { queue_state.hal.launch(&*self.0.hal, &grid.0, args, after, wants_event) };
        let event = launched.as_ref().ok().and_then(Clone::clone).filter(|_| timed);
        began.end_timed(queue_state, event.map(Timed::own), |event| {
            event.name.clone_from(&self.0.name);
            event.failed = launched.is_err();
        });
        launched
    }

    /// Launches with native arguments, for front ends whose users keep memory and order themselves: an address is passed as its
    /// bytes where the kernel takes a buffer. Only the device and the number of arguments are checked here.
    ///
    /// # Safety
    /// The arguments are those that the signature declares. Each address is memory that the kernel may use as declared, in order
    /// with the queue, until the launch has ended.
    #[doc(hidden)]
    pub unsafe fn launch_native(
        &self,
        queue: &Queue,
        grid: Grid,
        args: &[hal::Arg<'_>],
    ) -> Result<()> {
        if !self.is_of(queue) {
            return Err(self.misplaced(queue));
        }
        if self.0.signature.params.len() != args.len() {
            return Err(self.miscounted(args.len()));
        }
        grid.check(&self.0.name, self.0.signature.offsets)?;
        self.start(queue, &grid, args, &[], false).map(drop)
    }

    /// Whether the queue belongs to the kernel's device.
    #[inline]
    fn is_of(&self, queue: &Queue) -> bool {
        let mine = self.device();
        mine.hub().is(&queue.hub) && mine.index() == queue.queue_state.device
    }

    #[cold]
    fn misplaced(&self, queue: &Queue) -> Error {
        let (name, mine, its) = (&self.0.name, self.device(), queue.device());
        if mine.info() == its.info() {
            return Error::ForeignContext {
                have: format!("kernel `{name}` of the context of {mine}"),
                want: format!("one built for {its}, whose queue it is"),
            };
        }
        Error::invalid(format!(
            "kernel `{name}` was built for {mine}, the queue is of {its}: build the program for {its} too"
        ))
    }

    #[cold]
    fn miscounted(&self, given: usize) -> Error {
        let (name, takes) = (&self.0.name, self.0.signature.params.len());
        Error::invalid(format!("kernel `{name}` takes {takes} arguments, {given} were given"))
    }

    #[cold]
    fn misfit(&self, index: usize, arg: &Arg<'_>, param: &Param) -> Error {
        let (name, why) = (&self.0.name, arg.misfit(param));
        Error::invalid(format!("argument {index} of kernel `{name}`: {why}"))
    }

    #[cold]
    fn refuses(&self, why: &str) -> Error {
        Error::invalid(format!("kernel `{}` refuses this launch: {why}", self.0.name))
    }
}

/// Notifies the views of a launch. The last one gets the event itself, unless the caller also wants it.
fn note(args: &[Arg<'_>], event: Arc<dyn Event>, wants_event: bool) -> Option<Arc<dyn Event>> {
    let mut watched = args.iter().filter(|arg| arg.is_watched());
    let last = if wants_event { None } else { watched.next_back() };
    watched.for_each(|arg| arg.launched(event.clone()));
    match last {
        Some(arg) => arg.launched(event),
        None => return Some(event),
    }
    None
}

/// Out of line: moving the error would slow down the successful path of short launches.
#[cold]
fn failed(error: Error) -> Result<()> {
    Err(error)
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} on {}, {:?})", self.0.name, self.device(), self.0.signature)
    }
}
