//! cuBLAS and rocBLAS.

#![allow(unsafe_code)] // See the head of `mod.rs`.

use super::{Kept, Things, address, address_of, range, within};
use crate::{
    Queue, Result,
    libs::{
        Op,
        blas::Product,
        libraries::check,
        number::{Kind, Number},
        operand::{check_apart, narrow},
    },
    sync::{Arc, lock},
    view::Hold,
};
use onebuf_sys::{
    Flavor,
    cuda_like::{Blas, BlasHandle, Operation},
};
use std::ffi::c_void;

/// One queue's handle and the table to call it by.
#[derive(Debug)]
pub(super) struct Handle {
    pub table: Arc<Blas>,
    kept: Kept<BlasHandle>,
}

impl Handle {
    fn new(queue: &Queue, flavor: Flavor) -> Result<Handle> {
        let table = queue.hub.maths().blas(flavor)?;
        let to_free = table.clone();
        // SAFETY: the context is current.
        let made = within(queue, &[], |_| check(&*table, unsafe { table.create() }))?;
        let kept = Kept::new(queue, made, move |handle| {
            // SAFETY: made above, destroyed once.
            check(&*to_free, unsafe { to_free.destroy(handle) })
        });
        // SAFETY: a live handle and a stream of the context that is current.
        within(queue, &[], |stream| check(&*table, unsafe { table.set_stream(made, stream) }))?;
        Ok(Handle { table, kept })
    }

    pub fn raw(&self) -> BlasHandle {
        self.kept.handle
    }
}

impl Things {
    /// The queue's handle, made now if it is the first to be asked for.
    pub(super) fn blas(&mut self, queue: &Queue, flavor: Flavor) -> Result<&Handle> {
        let handle = match self.blas.take() {
            Some(handle) => handle,
            None => Handle::new(queue, flavor)?,
        };
        Ok(self.blas.insert(handle))
    }
}

pub fn open_blas(queue: &Queue, flavor: Flavor) -> Result<()> {
    lock(&queue.line.libs.things).blas(queue, flavor).map(drop)
}

/// As the libraries number it.
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
    let mut things = lock(&queue.line.libs.things);
    let handle = things.blas(queue, flavor)?;
    let (h, table) = (handle.raw(), &*handle.table);
    within(queue, &views.map(Hold::memory), |_| {
        // SAFETY: see the head of `mod.rs`; the numbers are on the host, and read by the call.
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

/// Ones on the diagonal of a packed matrix, zeros elsewhere: all zeros, then a column of ones copied with a
/// step from each diagonal element to the next.
pub fn set_identity<T: Number>(
    queue: &Queue,
    flavor: Flavor,
    n: usize,
    to: &Hold<'_>,
) -> Result<()> {
    let (rows, step, at) = (narrow("n", n)?, narrow("n", n + 1)?, address(to)?);
    let mut things = lock(&queue.line.libs.things);
    let ones = things.scratch(queue, n * size_of::<T>())?;
    let x = address_of(&*ones)?;
    queue.line.hal.fill(to.memory(), 0, n * n * size_of::<T>(), &[0])?;
    queue.line.hal.fill(&*ones, 0, n * size_of::<T>(), bytemuck::bytes_of(&T::ONE))?;
    let handle = things.blas(queue, flavor)?;
    let (h, table) = (handle.raw(), &*handle.table);
    within(queue, &[&*ones, to.memory()], |_| {
        // SAFETY: see the head of `mod.rs`; n elements with a step of n + 1 end with the last of n x n.
        let answer = unsafe {
            match T::KIND {
                Kind::S => table.scopy(h, rows, x, 1, at, step),
                Kind::D => table.dcopy(h, rows, x, 1, at, step),
                Kind::C => table.ccopy(h, rows, x, 1, at, step),
                Kind::Z => table.zcopy(h, rows, x, 1, at, step),
            }
        };
        check(table, answer)
    })
}
