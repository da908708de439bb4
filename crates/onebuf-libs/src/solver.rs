//! Linear systems by LU factorization with partial pivoting.

use super::{
    Op,
    engine::Engine,
    native,
    number::Number,
    operand::{Operand, Wanted, extent},
};
use crate::operand::Written;
use onebuf_core::{Device, Queue, WriteView};
use onebuf_hal::{Access, Error, Result};
use std::{fmt, marker::PhantomData};

/// A column-major matrix of n rows and n columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Square {
    n: usize,
    ld: usize,
}

impl Square {
    /// A packed matrix of n rows.
    pub fn new(n: usize) -> Self {
        Self { n, ld: n }
    }

    /// Sets the leading dimension.
    pub fn ld(self, ld: usize) -> Self {
        Self { ld, ..self }
    }
}

/// The right-hand sides of a system, as columns of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Columns {
    count: usize,
    ld: Option<usize>,
}

impl Columns {
    /// `count` packed columns.
    pub fn new(count: usize) -> Self {
        Self { count, ld: None }
    }

    /// Sets the leading dimension.
    pub fn ld(self, ld: usize) -> Self {
        Self { ld: Some(ld), ..self }
    }
}

/// The pivots of a factored matrix, whose factors replaced the matrix. See [`Solver::factor`].
pub struct Lu<T> {
    device: Device,
    square: Square,
    pivots: Pivots,
    number: PhantomData<T>,
}

enum Pivots {
    #[cfg(feature = "cpu-libs")]
    Host(Vec<usize>),
    Native(native::DevicePivots),
}

/// Linear systems on one queue. Cheap to create: the queue caches the library's handle.
///
/// ```
/// # #[cfg(not(feature = "cpu-libs"))] fn main() {}
/// # #[cfg(feature = "cpu-libs")] fn main() -> onebuf::Result<()> {
/// use onebuf::{libs::{Columns, Op, Solver, Square}};
///
/// let hub = onebuf::discover()?;
/// let (a, b) = (hub.buffer::<f32>(4).build()?, hub.buffer::<f32>(2).build()?);
/// a.write(&[2.0, 1.0, 0.0, 4.0])?; // columns (2, 1) and (0, 4)
/// b.write(&[2.0, 9.0])?;
///
/// let queue = hub.host().queue()?;
/// let solver = Solver::on(&queue)?;
/// let lu = solver.factor(Square::new(2), &mut a.write_on(&queue)?)?;
/// solver.solve(&lu, Op::None, &a.read_on(&queue)?, Columns::new(1), &mut b.write_on(&queue)?)?;
/// assert_eq!(b.to_vec()?, [1.0, 2.0]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Solver {
    queue: Queue,
    engine: Engine,
}

impl Solver {
    /// Opens the library for a queue's device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no such library, [`Error::Unavailable`] if it is not installed.
    pub fn on(queue: &Queue) -> Result<Solver> {
        let engine = Engine::of(queue, "a linear system")?;
        if let Some(flavor) = engine.native() {
            native::open_solver(queue, flavor)?;
        }
        Ok(Solver { queue: queue.clone(), engine })
    }

    /// Replaces a matrix by its factors L (unit lower triangle) and U, with rows exchanged by the returned pivots. Waits for
    /// the device, because the host must read whether the matrix is singular.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the matrix is singular; its contents are lost then. Also if a size is zero or exceeds
    /// the view, or the view is on another queue; the data is unchanged then.
    pub fn factor<T: Number>(&self, square: Square, a: &mut WriteView<'_, T>) -> Result<Lu<T>> {
        self.check_square::<T>(square, a.hold(), Access::ReadWrite)?;
        let Square { n, ld } = square;
        let (pivots, zero) = super::told(&self.queue, "factor", || match self.engine {
            #[cfg(feature = "cpu-libs")]
            Engine::Host => {
                let (pivots, zero) = super::cpu::factor::<T>(n, ld, a.hold_mut())?;
                Ok((Pivots::Host(pivots), zero))
            }
            Engine::Native(flavor) => {
                let (pivots, zero) = native::factor::<T>(&self.queue, flavor, [n, ld], a.hold())?;
                Ok((Pivots::Native(pivots), zero))
            }
        })?;
        match zero {
            Some(column) => Err(singular(n, column)),
            None => Ok(Lu { device: self.queue.device(), square, pivots, number: PhantomData }),
        }
    }

    /// Replaces the right-hand sides by the solutions of `op(A) X = B`. `a` holds the factors.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a size is zero or exceeds a view, a view is on another queue, or `lu` is of another
    /// device. The data is unchanged then.
    pub fn solve<T: Number>(
        &self,
        lu: &Lu<T>,
        op: Op,
        a: &impl Operand<T>,
        columns: Columns,
        b: &mut WriteView<'_, T>,
    ) -> Result<()> {
        let Square { n, ld } = lu.square;
        let (count, ldb) = (columns.count, columns.ld.unwrap_or(n));
        self.check_square::<T>(lu.square, a.held().0, Access::Read)?;
        let elements = extent("b", n, count, ldb)?;
        Wanted::new("b", elements, Access::ReadWrite).check::<T>(&self.queue, b.hold())?;
        self.check_lu(lu)?;
        super::told(&self.queue, "solve", || match (self.engine, &lu.pivots) {
            #[cfg(feature = "cpu-libs")]
            (Engine::Host, Pivots::Host(pivots)) => {
                super::cpu::solve::<T>(op, [n, ld], a.held().0, pivots, [count, ldb], b.hold_mut())
            }
            (Engine::Native(flavor), Pivots::Native(pivots)) => {
                let system = native::System { op, n, ld, columns: count, ldb, pivots };
                native::solve::<T>(&self.queue, flavor, &system, [a.held().0, b.hold()])
            }
            #[cfg(feature = "cpu-libs")]
            _ => Err(self.strange(lu)),
        })
    }

    /// Writes the inverse of the matrix whose factors `a` holds into `inverse`, packed.
    ///
    /// # Errors
    /// As for [`Solver::solve`].
    pub fn invert<T: Number>(
        &self,
        lu: &Lu<T>,
        a: &impl Operand<T>,
        inverse: &mut WriteView<'_, T>,
    ) -> Result<()> {
        let n = lu.square.n;
        self.check_square::<T>(lu.square, a.held().0, Access::Read)?;
        let elements = extent("inverse", n, n, n)?;
        Wanted::new("inverse", elements, Access::ReadWrite)
            .check::<T>(&self.queue, inverse.hold())?;
        self.check_lu(lu)?;
        match self.engine {
            #[cfg(feature = "cpu-libs")]
            Engine::Host => super::cpu::set_identity::<T>(n, inverse.hold_mut())?,
            Engine::Native(flavor) => {
                native::set_identity::<T>(&self.queue, flavor, n, inverse.hold())?
            }
        }
        self.solve(lu, Op::None, a, Columns::new(n), inverse)
    }

    fn check_square<T: Number>(
        &self,
        Square { n, ld }: Square,
        a: &onebuf_core::internals::Hold<'_>,
        access: Access,
    ) -> Result<()> {
        let elements = extent("a", n, n, ld)?;
        Wanted::new("a", elements, access).check::<T>(&self.queue, a)
    }

    fn check_lu<T>(&self, lu: &Lu<T>) -> Result<()> {
        let (device, queue) = (&lu.device, &self.queue);
        let same = device.hub().is(queue.hub()) && device.index() == queue.device().index();
        if same { Ok(()) } else { Err(self.strange(lu)) }
    }

    fn strange<T>(&self, lu: &Lu<T>) -> Error {
        let (have, own) = (&lu.device, self.queue.device());
        Error::invalid(format!("the matrix was factored on {have}, but the queue is of {own}"))
    }
}

fn singular(n: usize, column: usize) -> Error {
    Error::invalid(format!(
        "the {n} x {n} matrix is singular: pivot {column} (counted from zero) is exactly zero"
    ))
}

impl<T> fmt::Debug for Lu<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lu({:?} on {})", self.square, self.device)
    }
}

impl fmt::Debug for Solver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Solver({:?}, {:?})", self.queue, self.engine)
    }
}
