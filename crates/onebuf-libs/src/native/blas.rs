//! cuBLAS and rocBLAS.

#![allow(unsafe_code)] // See the safety section of `mod.rs`.

use super::{Kept, Shelf, Things, address, address_of, range, within};
use crate::operand::native;
use crate::{
    Op,
    blas::Product,
    libraries::{Libraries, check},
    number::{Kind, Number},
    operand::{check_apart, narrow},
};
use onebuf_core::{Queue, internals::Hold};
use onebuf_hal::{
    Memory, Result,
    locks::{Arc, lock},
};
use onebuf_sys::{
    Flavor,
    cuda_like::{Blas, BlasHandle, DevicePtr, Operation},
};
use std::ffi::c_void;

/// One queue's library handle, and the function table.
#[derive(Debug)]
pub(super) struct QueueBlas {
    pub table: Arc<Blas>,
    kept: Kept<BlasHandle>,
}

impl QueueBlas {
    fn new(queue: &Queue, flavor: Flavor) -> Result<QueueBlas> {
        let table = Libraries::blas(queue.hub(), flavor)?;
        let to_free = table.clone();
        // SAFETY: `within` makes the context current.
        let made = within(queue, &[], |_| check(&*table, unsafe { table.create() }))?;
        let kept = Kept::new(queue, made, move |handle| {
            // SAFETY: created above, destroyed once.
            check(&*to_free, unsafe { to_free.destroy(handle) })
        });
        // SAFETY: the handle is live, and the stream belongs to the current context.
        within(queue, &[], |stream| check(&*table, unsafe { table.set_stream(made, stream) }))?;
        Ok(QueueBlas { table, kept })
    }

    pub fn raw(&self) -> BlasHandle {
        self.kept.handle
    }
}

impl Things {
    /// The queue's handle, created at first use.
    pub(super) fn blas(&mut self, queue: &Queue, flavor: Flavor) -> Result<&QueueBlas> {
        let handle = match self.blas.take() {
            Some(handle) => handle,
            None => QueueBlas::new(queue, flavor)?,
        };
        Ok(self.blas.insert(handle))
    }
}

pub fn open_blas(queue: &Queue, flavor: Flavor) -> Result<()> {
    lock(&Shelf::of(queue).things).blas(queue, flavor).map(drop)
}

/// The library's number of an operation.
pub(super) fn number(op: Op, flavor: Flavor) -> i32 {
    let Operation(numbers) = match op {
        Op::None => Operation::NONE,
        Op::Transpose => Operation::TRANSPOSE,
        Op::Adjoint => Operation::CONJUGATE_TRANSPOSE,
    };
    flavor.pick(numbers)
}

pub fn gemm<T: Number>(
    queue: &Queue,
    flavor: Flavor,
    product: &Product<T>,
    views: [&Hold<'_>; 3],
) -> Result<()> {
    let [a, b, c] = [address(views[0])?, address(views[1])?, address(views[2])?];
    let output = range::<T>(c, product.elements[2]);
    check_apart(output, range::<T>(a, product.elements[0]), "a")?;
    check_apart(output, range::<T>(b, product.elements[1]), "b")?;
    let [m, n, k] = product.sizes.map(|size| narrow("a size", size));
    let [lda, ldb, ldc] = product.lds.map(|ld| narrow("a leading dimension", ld));
    let (m, n, k, lda, ldb, ldc) = (m?, n?, k?, lda?, ldb?, ldc?);
    let [op_a, op_b] = product.ops.map(|op| number(op, flavor));
    let (alpha, beta) = (&raw const product.alpha, &raw const product.beta);
    let (alpha, beta) = (alpha.cast::<c_void>(), beta.cast::<c_void>());
    let mut things = lock(&Shelf::of(queue).things);
    let handle = things.blas(queue, flavor)?;
    let (h, table) = (handle.raw(), &*handle.table);
    within(queue, &views.map(Hold::memory), |_| {
        // SAFETY: see `mod.rs`; `alpha` and `beta` are on the host and read during the call.
        let answer = unsafe {
            match T::KIND {
                Kind::S => table.sgemm(h, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc),
                Kind::D => table.dgemm(h, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc),
                Kind::C => table.cgemm(h, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc),
                Kind::Z => table.zgemm(h, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc),
            }
        };
        check(table, answer)
    })
}

/// Copies elements with a kernel of the library, for memory that the API's own copy calls do not accept.
pub(super) fn copy<T: Number>(
    queue: &Queue,
    flavor: Flavor,
    things: &mut Things,
    elements: usize,
    [from, to]: [&dyn Memory; 2],
) -> Result<()> {
    let (n, x, y) = (narrow("a length", elements)?, address_of(from)?, address_of(to)?);
    let handle = things.blas(queue, flavor)?;
    within(queue, &[from, to], |_| {
        // SAFETY: see `mod.rs`; the callers have checked that both have `elements` elements.
        unsafe { copy_strided::<T>(handle, n, (x, 1), (y, 1)) }
    })
}

/// # Safety
/// The contract of the library's call: both vectors have `n` elements with the given strides.
unsafe fn copy_strided<T: Number>(
    handle: &QueueBlas,
    n: i32,
    (x, dx): (DevicePtr, i32),
    (y, dy): (DevicePtr, i32),
) -> Result<()> {
    let (h, table) = (handle.raw(), &*handle.table);
    // SAFETY: guaranteed by the caller.
    let answer = unsafe {
        match T::KIND {
            Kind::S => table.scopy(h, n, x, dx, y, dy),
            Kind::D => table.dcopy(h, n, x, dx, y, dy),
            Kind::C => table.ccopy(h, n, x, dx, y, dy),
            Kind::Z => table.zcopy(h, n, x, dx, y, dy),
        }
    };
    check(table, answer)
}

/// Writes a packed identity matrix: zeros everywhere, then a column of ones copied with the diagonal's stride.
pub fn set_identity<T: Number>(
    queue: &Queue,
    flavor: Flavor,
    n: usize,
    to: &Hold<'_>,
) -> Result<()> {
    let (rows, step, at) = (narrow("n", n)?, narrow("n", n + 1)?, address(to)?);
    let mut things = lock(&Shelf::of(queue).things);
    let (column, all) = (n * size_of::<T>(), n * n * size_of::<T>());
    let known = to.memory().takes_transfers();
    let ones = things.scratch(queue, if known { column } else { all })?;
    let x = address_of(&*ones)?;
    // Memory that the API's fill does not accept is zeroed by copying zeros.
    native(queue).fill(if known { to.memory() } else { &*ones }, 0, all, &[0])?;
    if !known {
        copy::<T>(queue, flavor, &mut things, n * n, [&*ones, to.memory()])?;
    }
    native(queue).fill(&*ones, 0, column, bytemuck::bytes_of(&T::ONE))?;
    let handle = things.blas(queue, flavor)?;
    within(queue, &[&*ones, to.memory()], |_| {
        // SAFETY: see `mod.rs`; n elements with a stride of n + 1 end at the last of n x n.
        unsafe { copy_strided::<T>(handle, rows, (x, 1), (at, step)) }
    })
}
