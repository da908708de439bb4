//! cuSOLVER and rocSOLVER.

#![allow(unsafe_code)] // See the safety section of `mod.rs`.

use super::{
    Kept, Shelf, Things, address, address_of, allocate, blas::number, range, refusal, within,
};
use crate::{
    Op,
    libraries::{Libraries, Named, check},
    number::{Kind, Number},
    operand::{check_apart, narrow},
};
use onebuf_core::{Queue, internals::Hold};
use onebuf_hal::{
    Error, Memory, MemoryKind, Result,
    locks::{Arc, lock},
};
use onebuf_sys::{
    Flavor, Refused,
    cuda_like::{Blas, BlasHandle, DevicePtr, Solver, SolverHandle},
};

/// One queue's library handle, and the function table.
#[derive(Debug)]
pub(super) struct QueueSolver {
    table: Arc<Solver>,
    own: Own,
}

#[derive(Debug)]
enum Own {
    Cuda(Kept<SolverHandle>),
    /// rocSOLVER uses rocBLAS's handle and returns rocBLAS's status codes. The handle is the queue's own.
    Hip(BlasHandle, Arc<Blas>),
}

/// The pivots of a matrix, on the device.
pub struct DevicePivots(Arc<dyn Memory>);

/// A system to solve, with checked sizes.
pub struct System<'a> {
    pub op: Op,
    pub n: usize,
    pub ld: usize,
    pub columns: usize,
    pub ldb: usize,
    pub pivots: &'a DevicePivots,
}

impl QueueSolver {
    fn new(queue: &Queue, flavor: Flavor, things: &mut Things) -> Result<QueueSolver> {
        let table = Libraries::solver(queue.hub(), flavor)?;
        if flavor == Flavor::Hip {
            let blas = things.blas(queue, flavor)?;
            return Ok(QueueSolver { table, own: Own::Hip(blas.raw(), blas.table.clone()) });
        }
        // SAFETY: `within` makes the context current.
        let made = within(queue, &[], |_| check(&*table, unsafe { table.create() }))?;
        let to_free = table.clone();
        let kept = Kept::new(queue, made, move |handle| {
            // SAFETY: created above, destroyed once.
            check(&*to_free, unsafe { to_free.destroy(handle) })
        });
        // SAFETY: the handle is live, and the stream belongs to the current context.
        within(queue, &[], |stream| check(&*table, unsafe { table.set_stream(made, stream) }))?;
        Ok(QueueSolver { table, own: Own::Cuda(kept) })
    }

    fn check<T>(&self, answer: Result<T, Refused>) -> Result<T> {
        match &self.own {
            Own::Cuda(_) => check(&*self.table, answer),
            Own::Hip(_, blas) => answer.map_err(|refused| {
                refusal(self.table.api(), blas.error_name(refused.status), refused)
            }),
        }
    }

    /// The size of the work memory for factoring, in elements. The context must be current.
    fn work(&self, kind: Kind, n: i32, a: DevicePtr, ld: i32) -> Result<i32> {
        let Own::Cuda(kept) = &self.own else { return Ok(0) };
        let (h, table, mut size) = (kept.handle, &*self.table, 0i32);
        let at = &raw mut size;
        // SAFETY: the handle is live, and `size` is live.
        let answer = unsafe {
            match kind {
                Kind::S => table.sgetrf_size(h, n, n, a, ld, at),
                Kind::D => table.dgetrf_size(h, n, n, a, ld, at),
                Kind::C => table.cgetrf_size(h, n, n, a, ld, at),
                Kind::Z => table.zgetrf_size(h, n, n, a, ld, at),
            }
        };
        self.check(answer).map(|()| size)
    }

    /// Calls `getrf`. The context must be current.
    fn factor(
        &self,
        kind: Kind,
        (n, a, ld): (i32, DevicePtr, i32),
        work: DevicePtr,
        pivots: DevicePtr,
        info: DevicePtr,
    ) -> Result<()> {
        let table = &*self.table;
        // SAFETY: see `mod.rs`; `pivots` has n elements, `info` one, and `work` as many as `Self::work` returned.
        let answer = unsafe {
            match (&self.own, kind) {
                (Own::Cuda(h), Kind::S) => table.sgetrf(h.handle, n, n, a, ld, work, pivots, info),
                (Own::Cuda(h), Kind::D) => table.dgetrf(h.handle, n, n, a, ld, work, pivots, info),
                (Own::Cuda(h), Kind::C) => table.cgetrf(h.handle, n, n, a, ld, work, pivots, info),
                (Own::Cuda(h), Kind::Z) => table.zgetrf(h.handle, n, n, a, ld, work, pivots, info),
                (Own::Hip(h, _), Kind::S) => table.roc_sgetrf(*h, n, n, a, ld, pivots, info),
                (Own::Hip(h, _), Kind::D) => table.roc_dgetrf(*h, n, n, a, ld, pivots, info),
                (Own::Hip(h, _), Kind::C) => table.roc_cgetrf(*h, n, n, a, ld, pivots, info),
                (Own::Hip(h, _), Kind::Z) => table.roc_zgetrf(*h, n, n, a, ld, pivots, info),
            }
        };
        self.check(answer)
    }

    /// Calls `getrs`. The context must be current.
    fn solve(
        &self,
        kind: Kind,
        op: i32,
        (n, a, ld): (i32, DevicePtr, i32),
        pivots: DevicePtr,
        (m, b, ldb): (i32, DevicePtr, i32),
        info: DevicePtr,
    ) -> Result<()> {
        let (t, p) = (&*self.table, pivots);
        // SAFETY: see `mod.rs`; the pivots belong to a matrix of n rows.
        let answer = unsafe {
            match (&self.own, kind) {
                (Own::Cuda(h), Kind::S) => t.sgetrs(h.handle, op, n, m, a, ld, p, b, ldb, info),
                (Own::Cuda(h), Kind::D) => t.dgetrs(h.handle, op, n, m, a, ld, p, b, ldb, info),
                (Own::Cuda(h), Kind::C) => t.cgetrs(h.handle, op, n, m, a, ld, p, b, ldb, info),
                (Own::Cuda(h), Kind::Z) => t.zgetrs(h.handle, op, n, m, a, ld, p, b, ldb, info),
                (Own::Hip(h, _), Kind::S) => t.roc_sgetrs(*h, op, n, m, a, ld, p, b, ldb),
                (Own::Hip(h, _), Kind::D) => t.roc_dgetrs(*h, op, n, m, a, ld, p, b, ldb),
                (Own::Hip(h, _), Kind::C) => t.roc_cgetrs(*h, op, n, m, a, ld, p, b, ldb),
                (Own::Hip(h, _), Kind::Z) => t.roc_zgetrs(*h, op, n, m, a, ld, p, b, ldb),
            }
        };
        self.check(answer)
    }
}

impl Things {
    fn solver(&mut self, queue: &Queue, flavor: Flavor) -> Result<&QueueSolver> {
        let handle = match self.solver.take() {
            Some(handle) => handle,
            None => QueueSolver::new(queue, flavor, self)?,
        };
        Ok(self.solver.insert(handle))
    }
}

pub fn open_solver(queue: &Queue, flavor: Flavor) -> Result<()> {
    lock(&Shelf::of(queue).things).solver(queue, flavor).map(drop)
}

/// Factors and waits. Returns the pivots, and the first column without a pivot.
pub fn factor<T: Number>(
    queue: &Queue,
    flavor: Flavor,
    [n, ld]: [usize; 2],
    view: &Hold<'_>,
) -> Result<(DevicePivots, Option<usize>)> {
    let (rows, lda, a) = (narrow("n", n)?, narrow("lda", ld)?, address(view)?);
    // The lock is held until `info` is read, because the next call uses it too.
    let mut things = lock(&Shelf::of(queue).things);
    let info = things.info(queue)?;
    let pivots = allocate(queue, n * size_of::<i32>(), MemoryKind::Device)?;
    let handle = things.solver(queue, flavor)?;
    let elements = within(queue, &[], |_| handle.work(T::KIND, rows, a, lda))?;
    let bytes = usize::try_from(elements).unwrap_or(0).max(1) * size_of::<T>();
    let work = things.scratch(queue, bytes)?;
    let (w, p, i) = (address_of(&*work)?, address_of(&*pivots)?, address_of(&*info)?);
    let handle = things.solver(queue, flavor)?;
    within(queue, &[view.memory(), &*work, &*pivots, &*info], |_| {
        handle.factor(T::KIND, (rows, a, lda), w, p, i)
    })?;
    queue.finish()?;
    match read(&*info)? {
        0 => Ok((DevicePivots(pivots), None)),
        column @ 1.. => Ok((DevicePivots(pivots), Some(column as usize - 1))),
        wrong => Err(Error::Driver {
            api: handle.table.api(),
            call: flavor.pick(["cusolverDn<t>getrf", "rocsolver_<t>getrf"]),
            code: wrong,
            name: format!("argument {} was refused", -wrong),
        }),
    }
}

/// Reads the number that a finished library call wrote.
fn read(info: &dyn Memory) -> Result<i32> {
    let at = info.host_pointer().ok_or_else(|| {
        Error::unsupported(
            "reading a result of this device",
            "pinned memory that host and device share",
        )
    })?;
    // SAFETY: pinned, aligned memory of four bytes, whose only writer has finished.
    Ok(unsafe { at.cast::<i32>().as_ptr().read_volatile() })
}

pub fn solve<T: Number>(
    queue: &Queue,
    flavor: Flavor,
    system: &System<'_>,
    [a_view, b_view]: [&Hold<'_>; 2],
) -> Result<()> {
    let System { op, n, ld, columns, ldb, pivots: DevicePivots(pivots) } = *system;
    let (rows, lda, a) = (narrow("n", n)?, narrow("lda", ld)?, address(a_view)?);
    let (count, ldb_, b) = (narrow("columns", columns)?, narrow("ldb", ldb)?, address(b_view)?);
    let (a_len, b_len) = (ld * (n - 1) + n, ldb * (columns - 1) + n);
    check_apart(range::<T>(b, b_len), range::<T>(a, a_len), "a")?;
    let mut things = lock(&Shelf::of(queue).things);
    let info = things.info(queue)?;
    let (p, i) = (address_of(&**pivots)?, address_of(&*info)?);
    let handle = things.solver(queue, flavor)?;
    let uses = [a_view.memory(), b_view.memory(), &**pivots, &*info];
    within(queue, &uses, |_| {
        let op = number(op, flavor);
        handle.solve(T::KIND, op, (rows, a, lda), p, (count, b, ldb_), i)
    })
}
