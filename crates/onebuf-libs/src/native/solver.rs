//! cuSOLVER and rocSOLVER.

#![allow(unsafe_code)] // See the head of `mod.rs`.

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

/// One queue's handle and the table to call it by.
#[derive(Debug)]
pub(super) struct Handle {
    table: Arc<Solver>,
    own: Own,
}

#[derive(Debug)]
enum Own {
    Cuda(Kept<SolverHandle>),
    /// rocSOLVER works on rocBLAS's handle, and answers with its statuses. The handle is the queue's own one.
    Hip(BlasHandle, Arc<Blas>),
}

/// The row exchanges of a matrix, on the device.
pub struct Pivots(Arc<dyn Memory>);

/// A system to be solved, its sizes checked.
pub struct System<'a> {
    pub op: Op,
    pub n: usize,
    pub ld: usize,
    pub columns: usize,
    pub ldb: usize,
    pub pivots: &'a Pivots,
}

impl Handle {
    fn new(queue: &Queue, flavor: Flavor, things: &mut Things) -> Result<Handle> {
        let table = Libraries::solver(queue.hub(), flavor)?;
        if flavor == Flavor::Hip {
            let blas = things.blas(queue, flavor)?;
            return Ok(Handle { table, own: Own::Hip(blas.raw(), blas.table.clone()) });
        }
        // SAFETY: the context is current.
        let made = within(queue, &[], |_| check(&*table, unsafe { table.create() }))?;
        let to_free = table.clone();
        let kept = Kept::new(queue, made, move |handle| {
            // SAFETY: made above, destroyed once.
            check(&*to_free, unsafe { to_free.destroy(handle) })
        });
        // SAFETY: a live handle and a stream of the context that is current.
        within(queue, &[], |stream| check(&*table, unsafe { table.set_stream(made, stream) }))?;
        Ok(Handle { table, own: Own::Cuda(kept) })
    }

    fn check<T>(&self, answer: Result<T, Refused>) -> Result<T> {
        match &self.own {
            Own::Cuda(_) => check(&*self.table, answer),
            Own::Hip(_, blas) => answer.map_err(|refused| {
                refusal(self.table.api(), blas.error_name(refused.status), refused)
            }),
        }
    }

    /// How many elements factoring works in. The context is current.
    fn work(&self, kind: Kind, n: i32, a: DevicePtr, ld: i32) -> Result<i32> {
        let Own::Cuda(kept) = &self.own else { return Ok(0) };
        let (h, table, mut size) = (kept.handle, &*self.table, 0i32);
        let at = &raw mut size;
        // SAFETY: a live handle, a place for a size.
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

    /// The context is current.
    fn factor(
        &self,
        kind: Kind,
        (n, a, ld): (i32, DevicePtr, i32),
        work: DevicePtr,
        pivots: DevicePtr,
        info: DevicePtr,
    ) -> Result<()> {
        let table = &*self.table;
        // SAFETY: see the head of `mod.rs`; there are n pivots, one number of information, and as much to work
        // in as was asked for.
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

    /// The context is current.
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
        // SAFETY: see the head of `mod.rs`; the pivots are those of a matrix of n rows.
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
    fn solver(&mut self, queue: &Queue, flavor: Flavor) -> Result<&Handle> {
        let handle = match self.solver.take() {
            Some(handle) => handle,
            None => Handle::new(queue, flavor, self)?,
        };
        Ok(self.solver.insert(handle))
    }
}

pub fn open_solver(queue: &Queue, flavor: Flavor) -> Result<()> {
    lock(&Shelf::of(queue).things).solver(queue, flavor).map(drop)
}

/// Factors and waits. The row exchanges, and the first column without a pivot.
pub fn factor<T: Number>(
    queue: &Queue,
    flavor: Flavor,
    [n, ld]: [usize; 2],
    view: &Hold<'_>,
) -> Result<(Pivots, Option<usize>)> {
    let (rows, lda, a) = (narrow("n", n)?, narrow("lda", ld)?, address(view)?);
    // The lock is held until the number is read: it is the next call's too.
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
        0 => Ok((Pivots(pivots), None)),
        column @ 1.. => Ok((Pivots(pivots), Some(column as usize - 1))),
        wrong => Err(Error::Driver {
            api: handle.table.api(),
            call: flavor.pick(["cusolverDn<t>getrf", "rocsolver_<t>getrf"]),
            code: wrong,
            name: format!("argument {} was refused", -wrong),
        }),
    }
}

/// The number that a library wrote, which is done.
fn read(info: &dyn Memory) -> Result<i32> {
    let at = info.host_pointer().ok_or_else(|| {
        Error::unsupported("a number from this device", "pinned memory that both sides see")
    })?;
    // SAFETY: pinned memory of four bytes, aligned, whose only writer has run.
    Ok(unsafe { at.cast::<i32>().as_ptr().read_volatile() })
}

pub fn solve<T: Number>(
    queue: &Queue,
    flavor: Flavor,
    system: &System<'_>,
    [a_view, b_view]: [&Hold<'_>; 2],
) -> Result<()> {
    let System { op, n, ld, columns, ldb, pivots: Pivots(pivots) } = *system;
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
