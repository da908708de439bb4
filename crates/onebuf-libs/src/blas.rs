//! Matrix products.

use super::{
    engine::Engine,
    native,
    number::Number,
    operand::{Operand, Wanted, extent},
};
use crate::operand::Written;
use onebuf_core::{Queue, WriteView, internals::Hold};
use onebuf_hal::{Access, Result};
use std::fmt;

/// The operation applied to a matrix before it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Op {
    /// None.
    #[default]
    None,
    /// Transpose.
    Transpose,
    /// Conjugate transpose; for real numbers the same as transpose.
    Adjoint,
}

impl Op {
    /// The rows and columns in memory of a matrix that is used as `rows` x `columns`.
    fn stored(self, rows: usize, columns: usize) -> [usize; 2] {
        if self == Op::None { [rows, columns] } else { [columns, rows] }
    }
}

/// A product `C = alpha op(A) op(B) + beta C` of column-major matrices: op(A) is m x k, op(B) is k x n, C is m x n. If `beta`
/// is zero, C is not read.
///
/// ```
/// use onebuf::libs::{Gemm, Op};
/// let plain = Gemm::<f32>::new(4, 3, 2);                       // packed, alpha 1, beta 0
/// let other = plain.a(Op::Transpose).ldc(16).alpha(2.0).beta(1.0);
/// assert_ne!(plain, other);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "it does nothing until given to `Blas::gemm`"]
pub struct Gemm<T> {
    sizes: [usize; 3],
    ops: [Op; 2],
    lds: [Option<usize>; 3],
    alpha: T,
    beta: T,
}

impl<T: Number> Gemm<T> {
    /// `C = A B`, all packed.
    pub fn new(m: usize, n: usize, k: usize) -> Self {
        let (alpha, beta) = (T::ONE, T::ZERO);
        Self { sizes: [m, n, k], ops: [Op::None; 2], lds: [None; 3], alpha, beta }
    }

    /// Sets the operation on A.
    pub fn a(mut self, op: Op) -> Self {
        self.ops[0] = op;
        self
    }

    /// Sets the operation on B.
    pub fn b(mut self, op: Op) -> Self {
        self.ops[1] = op;
        self
    }

    /// Sets the leading dimension of A as stored.
    pub fn lda(mut self, ld: usize) -> Self {
        self.lds[0] = Some(ld);
        self
    }

    /// Sets the leading dimension of B as stored.
    pub fn ldb(mut self, ld: usize) -> Self {
        self.lds[1] = Some(ld);
        self
    }

    /// Sets the leading dimension of C.
    pub fn ldc(mut self, ld: usize) -> Self {
        self.lds[2] = Some(ld);
        self
    }

    /// Sets the factor of the product.
    pub fn alpha(mut self, alpha: T) -> Self {
        self.alpha = alpha;
        self
    }

    /// Sets the factor of C before the product is added.
    pub fn beta(mut self, beta: T) -> Self {
        self.beta = beta;
        self
    }

    /// Checks all sizes and fills in the defaults.
    fn settle(&self) -> Result<Product<T>> {
        let ([m, n, k], [op_a, op_b]) = (self.sizes, self.ops);
        let stored = [op_a.stored(m, k), op_b.stored(k, n), [m, n]];
        let (mut lds, mut elements) = ([0; 3], [0; 3]);
        for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
            let [rows, columns] = stored[i];
            lds[i] = self.lds[i].unwrap_or(rows);
            elements[i] = extent(name, rows, columns, lds[i])?;
        }
        let Self { sizes, ops, alpha, beta, .. } = *self;
        Ok(Product { sizes, ops, lds, elements, alpha, beta })
    }
}

/// A product with checked sizes: each is above zero and fits 32 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product<T> {
    pub sizes: [usize; 3],
    pub ops: [Op; 2],
    pub lds: [usize; 3],
    /// The number of elements from each matrix's first to its last.
    pub elements: [usize; 3],
    pub alpha: T,
    pub beta: T,
}

impl<T: Number> Product<T> {
    fn check(&self, queue: &Queue, views: [&Hold<'_>; 3]) -> Result<()> {
        let output = if self.beta == T::ZERO { Access::Write } else { Access::ReadWrite };
        let [a, b, c] = self.elements;
        let wanted = [("a", a, Access::Read), ("b", b, Access::Read), ("c", c, output)];
        for ((name, elements, access), view) in wanted.into_iter().zip(views) {
            Wanted::new(name, elements, access).check::<T>(queue, view)?;
        }
        Ok(())
    }
}

/// Matrix products on one queue. Cheap to create: the queue caches the library's handle.
#[derive(Clone)]
pub struct Blas {
    queue: Queue,
    engine: Engine,
}

impl Blas {
    /// Opens the library for a queue's device.
    ///
    /// # Errors
    /// [`Error::Unsupported`](onebuf_hal::Error::Unsupported) if the device has no such library,
    /// [`Error::Unavailable`](onebuf_hal::Error::Unavailable) if it is not installed.
    pub fn on(queue: &Queue) -> Result<Blas> {
        let engine = Engine::of(queue, "a matrix product")?;
        if let Some(flavor) = engine.native() {
            native::open_blas(queue, flavor)?;
        }
        Ok(Blas { queue: queue.clone(), engine })
    }

    /// Multiplies, see [`Gemm`]. On a GPU the call enqueues and returns; on the host it computes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](onebuf_hal::Error::InvalidArgument) if a size is zero or exceeds a view, a leading
    /// dimension is too small, or a view is on another queue. The data is unchanged then.
    pub fn gemm<T: Number>(
        &self,
        gemm: &Gemm<T>,
        a: &impl Operand<T>,
        b: &impl Operand<T>,
        c: &mut WriteView<'_, T>,
    ) -> Result<()> {
        let product = gemm.settle()?;
        product.check(&self.queue, [a.held().0, b.held().0, c.hold()])?;
        super::told(&self.queue, "gemm", || match self.engine {
            #[cfg(feature = "cpu-libs")]
            Engine::Host => super::cpu::gemm(&product, a.held().0, b.held().0, c.hold_mut()),
            Engine::Native(flavor) => {
                native::gemm(&self.queue, flavor, &product, [a.held().0, b.held().0, c.hold()])
            }
        })
    }
}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blas({:?}, {:?})", self.queue, self.engine)
    }
}
