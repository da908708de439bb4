//! Declared kernels, and launching them.
//!
//! # Safety
//! Every launch is checked against the signature that was declared in an unsafe call.

#![allow(unsafe_code)]

use super::{Arg, Call, Grid, Signature, signature::Param};
use crate::{
    Error, Result,
    device::Device,
    hal::{self, Event},
    queue::Queue,
    sync::{Arc, lock},
    trace::What,
};
use std::{fmt, mem::MaybeUninit};

/// Kernels with more parameters cost an allocation per launch.
const FEW: usize = 8;

struct Shared {
    name: String,
    device: Device,
    hal: Arc<dyn hal::Kernel>,
    signature: Signature,
}

/// A declared kernel. Launching it is safe; see [`Queue::launch`]. Cheap to clone.
#[derive(Clone)]
pub struct Kernel(Arc<Shared>);

impl Kernel {
    pub(super) fn new(
        name: &str,
        device: &Device,
        hal: Arc<dyn hal::Kernel>,
        signature: Signature,
    ) -> Self {
        Self(Arc::new(Shared { name: name.into(), device: device.clone(), hal, signature }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The device it was built for.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Checks, and launches.
    pub(crate) fn launch_plain(&self, queue: &Queue, grid: Grid, args: &[Arg<'_>]) -> Result<()> {
        match self.launch_on(queue, grid, args, false) {
            Ok(_) => Ok(()),
            Err(error) => failed(error),
        }
    }

    /// Checks, and launches; gives the launch's own event when asked for one.
    #[inline]
    pub(crate) fn launch_on(
        &self,
        queue: &Queue,
        grid: Grid,
        args: &[Arg<'_>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let Signature { params, offsets, require } = &self.0.signature;
        self.check_place(queue)?;
        if params.len() != args.len() {
            return Err(self.miscounted(args.len()));
        }
        grid.check(&self.0.name, *offsets)?;
        let (mut few, mut many) = ([const { MaybeUninit::uninit() }; FEW], Vec::new());
        let room = room(&mut few, &mut many, args.len());
        for (index, (to, (arg, param))) in room.iter_mut().zip(args.iter().zip(params)).enumerate()
        {
            let Some(fit) = arg.fit(queue, param) else {
                return Err(self.misfit(index, arg, param));
            };
            to.write(fit);
        }
        // SAFETY: there are as many places as arguments and parameters, and each was written.
        let hal_args = unsafe { &*(&raw const *room as *const [hal::Arg<'_>]) };
        if let Some(require) = require {
            require(&Call { grid: &grid, args }).map_err(|why| self.refuses(&why))?;
        }
        match queue.line.is_in_order() {
            true if !args.iter().any(Arg::is_watched) => {
                self.start(queue, &grid, hal_args, &[], wants_event)
            }
            true => self.start_watched(queue, &grid, args, hal_args, wants_event),
            false => self.start_unordered(queue, &grid, args, hal_args, wants_event),
        }
    }

    /// On memory whose owner wants it back: the views note the launch.
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

    /// On an out-of-order queue, where the views tell what to wait for, and note the launch.
    #[inline(never)]
    fn start_unordered(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[Arg<'_>],
        hal_args: &[hal::Arg<'_>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let _turn = lock(&queue.line.launching);
        let mut after = Vec::new();
        args.iter().try_for_each(|arg| arg.collect_waits(&mut after))?;
        let event = self.start(queue, grid, hal_args, &after, true)?;
        Ok(event.and_then(|event| note(args, event, wants_event)))
    }

    #[inline]
    fn start(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[hal::Arg<'_>],
        after: &[Arc<dyn Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        if queue.line.tap.is_on() {
            return self.start_traced(queue, grid, args, after, wants_event);
        }
        // SAFETY: the signature, declared in an unsafe call, says that the kernel stays in bounds and
        // honours each access; `launch_on` made sure that the arguments fit it.
        unsafe { queue.line.hal.launch(&*self.0.hal, &grid.0, args, after, wants_event) }
    }

    /// The same, recorded; where the device times it, with the event that tells.
    #[cold]
    fn start_traced(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[hal::Arg<'_>],
        after: &[Arc<dyn Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let line = &queue.line;
        let began = line.tap.begin(What::Launch);
        let timed = line.spec.profiling && line.tap.recorder().is_some();
        let wants_event = wants_event || timed;
        // SAFETY: as for `start`.
        let launched = unsafe { line.hal.launch(&*self.0.hal, &grid.0, args, after, wants_event) };
        let event = launched.as_ref().ok().and_then(Clone::clone).filter(|_| timed);
        began.end_timed(line, event, |event| {
            event.name.clone_from(&self.0.name);
            event.failed = launched.is_err();
        });
        launched
    }

    /// Whether it can run there.
    #[inline]
    fn check_place(&self, queue: &Queue) -> Result<()> {
        let mine = &self.0.device;
        match mine.hub().is(&queue.hub) && mine.index() == queue.line.device {
            true => Ok(()),
            false => Err(self.misplaced(queue)),
        }
    }

    #[cold]
    fn misplaced(&self, queue: &Queue) -> Error {
        let (name, mine, its) = (&self.0.name, &self.0.device, queue.device());
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

/// Tells the views of a launch; its event goes to the last of them, unless the caller wants it as well.
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

/// Kept out of the way: moving an error that is not there is what a short launch would wait for.
#[cold]
fn failed(error: Error) -> Result<()> {
    Err(error)
}

/// So many places: those of the stack, where they are enough. Nothing is written there yet.
#[inline]
fn room<'a, T>(
    few: &'a mut [MaybeUninit<T>; FEW],
    many: &'a mut Vec<MaybeUninit<T>>,
    count: usize,
) -> &'a mut [MaybeUninit<T>] {
    if count <= FEW {
        return &mut few[..count];
    }
    allocate(many, count)
}

#[cold]
fn allocate<T>(many: &mut Vec<MaybeUninit<T>>, count: usize) -> &mut [MaybeUninit<T>] {
    many.resize_with(count, MaybeUninit::uninit);
    many
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} on {}, {:?})", self.0.name, self.0.device, self.0.signature)
    }
}
