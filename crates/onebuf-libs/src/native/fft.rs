//! cuFFT and rocFFT.

#![allow(unsafe_code)] // See the safety section of `mod.rs`.

use super::{Kept, Shelf, address, address_of, blas, range, within};
use crate::operand::native;
use crate::{
    fft::{Direction, Fft1d},
    libraries::{Libraries, check},
    number::Sample,
    operand::{check_apart, narrow},
};
use onebuf_core::{Queue, internals::Hold};
use onebuf_hal::{
    Memory, Result,
    locks::{Arc, lock},
};
use onebuf_sys::{
    Flavor,
    cuda_like::{
        CufftPlan, DevicePtr, Fft, RocfftInfo, RocfftPlan,
        fft::{cufft, rocfft},
    },
};
use std::ptr;

/// The maximum number of cached plans per queue. Each may hold device memory.
const MOST_PLANS: usize = 32;

/// The queue's plans, most recently used last.
#[derive(Debug, Default)]
pub(super) struct Plans(Vec<(Key, Plan)>);

/// What a plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    len: usize,
    batch: usize,
    is_double: bool,
    /// `None` for cuFFT, whose plans serve both directions.
    direction: Option<Direction>,
}

#[derive(Debug)]
enum Plan {
    Cuda(Arc<Fft>, Kept<CufftPlan>),
    Hip(Arc<Fft>, Rocfft),
}

/// A rocFFT plan and its execution info.
#[derive(Debug)]
struct Rocfft {
    plan: Kept<RocfftPlan>,
    info: Kept<RocfftInfo>,
    /// The plan's work memory.
    work: Option<Arc<dyn Memory>>,
}

impl Plans {
    fn get(&mut self, queue: &Queue, flavor: Flavor, key: Key) -> Result<&Plan> {
        let entry = match self.0.iter().position(|(own, _)| *own == key) {
            Some(at) => self.0.remove(at),
            None => (key, Plan::new(queue, flavor, key)?),
        };
        if self.0.len() == MOST_PLANS {
            self.0.remove(0);
        }
        self.0.push(entry);
        Ok(&self.0[self.0.len() - 1].1)
    }
}

impl Plan {
    fn new(queue: &Queue, flavor: Flavor, key: Key) -> Result<Plan> {
        let table = Libraries::fft(queue.hub(), flavor)?;
        match flavor {
            Flavor::Cuda => Ok(Plan::Cuda(table.clone(), cufft_plan(queue, &table, key)?)),
            Flavor::Hip => Ok(Plan::Hip(table.clone(), rocfft_plan(queue, &table, key)?)),
        }
    }

    /// The work memory of a run.
    fn work(&self) -> Option<&dyn Memory> {
        match self {
            Plan::Cuda(..) => None,
            Plan::Hip(_, roc) => roc.work.as_deref(),
        }
    }

    /// Executes the plan. The context must be current.
    fn run(
        &self,
        is_double: bool,
        direction: Direction,
        from: DevicePtr,
        to: DevicePtr,
    ) -> Result<()> {
        match self {
            Plan::Cuda(table, plan) => {
                let way = match direction {
                    Direction::Forward => cufft::FORWARD,
                    Direction::Inverse => cufft::INVERSE,
                };
                // SAFETY: see `mod.rs`.
                let answer = unsafe {
                    match is_double {
                        false => table.exec_c2c(plan.handle, from, to, way),
                        true => table.exec_z2z(plan.handle, from, to, way),
                    }
                };
                check(&**table, answer)
            }
            Plan::Hip(table, roc) => {
                let (mut data, info) = (to, roc.info.handle);
                let data = &raw mut data;
                // SAFETY: see `mod.rs`; in place, with one address for input and output.
                let answer = unsafe { table.roc_execute(roc.plan.handle, data, data, info) };
                check(&**table, answer)
            }
        }
    }
}

fn cufft_plan(queue: &Queue, table: &Arc<Fft>, key: Key) -> Result<Kept<CufftPlan>> {
    let (mut len, batch) = (narrow("a length", key.len)?, narrow("a batch", key.batch)?);
    let kind = if key.is_double { cufft::Z2Z } else { cufft::C2C };
    // SAFETY: `within` makes the context current.
    let made = within(queue, &[], |_| check(&**table, unsafe { table.create() }))?;
    let to_free = table.clone();
    // SAFETY: created above, destroyed once.
    let plan =
        Kept::new(queue, made, move |plan| check(&*to_free, unsafe { to_free.destroy(plan) }));
    within(queue, &[], |stream| {
        let (mut work, none) = (0usize, ptr::null_mut());
        // Without `inembed` and `onembed` the data is packed; strides and distances are ignored.
        // SAFETY: the plan is live, with one length for one dimension and memory for a size.
        let answer = unsafe {
            let (len, work) = (&raw mut len, &raw mut work);
            table
                .make_plan_many(made, 1, len, none, 1, 0, none, 1, 0, kind, batch, work)
                .and_then(|()| table.set_stream(made, stream))
        };
        check(&**table, answer)
    })?;
    Ok(plan)
}

fn rocfft_plan(queue: &Queue, table: &Arc<Fft>, key: Key) -> Result<Rocfft> {
    set_up(queue, table)?;
    let (len, batch) = (key.len, key.batch);
    let kind = match key.direction {
        Some(Direction::Inverse) => rocfft::COMPLEX_INVERSE,
        _ => rocfft::COMPLEX_FORWARD,
    };
    let precision = if key.is_double { rocfft::PRECISION_DOUBLE } else { rocfft::PRECISION_SINGLE };
    let place = rocfft::PLACEMENT_INPLACE;
    let made = within(queue, &[], |_| {
        let (len, none) = (&raw const len, ptr::null());
        // SAFETY: one length for one dimension; without a description the data is packed.
        let made = unsafe { table.roc_plan_create(place, kind, precision, 1, len, batch, none) };
        check(&**table, made)
    })?;
    let to_free = table.clone();
    let plan = Kept::new(queue, made, move |plan| {
        // SAFETY: created above, destroyed once.
        check(&*to_free, unsafe { to_free.roc_plan_destroy(plan) })
    });
    // SAFETY: the call has no preconditions.
    let info = within(queue, &[], |_| check(&**table, unsafe { table.roc_info_create() }))?;
    let to_free = table.clone();
    let info = Kept::new(queue, info, move |info| {
        // SAFETY: created above, destroyed once.
        check(&*to_free, unsafe { to_free.roc_info_destroy(info) })
    });
    let mut roc = Rocfft { plan, info, work: None };
    roc.prepare(queue, table)?;
    Ok(roc)
}

impl Rocfft {
    /// Sets the stream and allocates the work memory.
    fn prepare(&mut self, queue: &Queue, table: &Fft) -> Result<()> {
        let (plan, info) = (self.plan.handle, self.info.handle);
        let mut bytes = 0usize;
        within(queue, &[], |stream| {
            // SAFETY: the objects are live, the stream belongs to the current context, and `bytes` holds a size.
            let answer = unsafe {
                let set = table.roc_info_set_stream(info, stream);
                set.and_then(|()| table.roc_work_bytes(plan, &raw mut bytes))
            };
            check(table, answer)
        })?;
        if bytes == 0 {
            return Ok(());
        }
        let work = super::allocate(queue, bytes, onebuf_hal::MemoryKind::Device)?;
        let at = address_of(&*work)?;
        // SAFETY: the memory has `bytes` bytes and is kept with the plan.
        within(queue, &[], |_| check(table, unsafe { table.roc_info_set_work(info, at, bytes) }))?;
        self.work = Some(work);
        Ok(())
    }
}

/// rocFFT requires this once per process before any other call. It is never undone, because the library stays loaded.
fn set_up(queue: &Queue, table: &Fft) -> Result<()> {
    static IS_UP: std::sync::Mutex<bool> = std::sync::Mutex::new(false);
    let mut is_up = IS_UP.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !*is_up {
        // SAFETY: the call has no preconditions.
        within(queue, &[], |_| check(table, unsafe { table.roc_setup() }))?;
        *is_up = true;
    }
    Ok(())
}

pub fn fft<T: Sample>(
    queue: &Queue,
    flavor: Flavor,
    plan: &Fft1d,
    from: Option<&Hold<'_>>,
    to: &Hold<'_>,
) -> Result<()> {
    let (total, target) = (plan.len() * plan.batch(), address(to)?);
    let mut source = target;
    if let Some(from) = from {
        source = address(from)?;
        check_apart(range::<T>(target, total), range::<T>(source, total), "from")?;
    }
    let (is_double, direction) = (T::IS_DOUBLE, plan.direction());
    let key = Key {
        len: plan.len(),
        batch: plan.batch(),
        is_double,
        direction: flavor.pick([None, Some(direction)]),
    };
    let mut things = lock(&Shelf::of(queue).things);
    // Creates the plan before anything is written, because it may fail.
    things.plans.get(queue, flavor, key)?;
    let from = from.map(Hold::memory);
    if let (Flavor::Hip, Some(from)) = (flavor, from) {
        // rocFFT may overwrite its input even if the result goes elsewhere, and others may be reading the input.
        let (hal, ends) = (native(queue), [from, to.memory()]);
        match ends.iter().all(|memory| memory.takes_transfers()) {
            true => hal.copy(from, 0, to.memory(), 0, total * size_of::<T>())?,
            false => blas::copy::<T>(queue, flavor, &mut things, total, ends)?,
        }
    }
    let plan = things.plans.get(queue, flavor, key)?;
    let mut uses = vec![to.memory()];
    uses.extend(from.into_iter().chain(plan.work()));
    within(queue, &uses, |_| plan.run(is_double, direction, source, target))
}
