//! Linear systems.

use crate::{
    array::{Piece, PyBuffer},
    ending::{detached, enter},
    error::{Fault, Result},
    libs::{matrix, named, pieces, read, same_type, with_number, write},
    types::PyQueue,
};
use onebuf::{
    Complex32, Complex64, Error, Queue,
    libs::{Columns, Lu, Number, Op, Solver, Square},
};
use pyo3::prelude::*;

/// Adds these to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyLu>()?;
    module.add_function(wrap_pyfunction!(lu, module)?)?;
    module.add_function(wrap_pyfunction!(solve, module)?)
}

/// A square matrix that was factored: made by `onebuf.lu`. Its factors are in the matrix's own buffer, which must not change while this is used.
#[pyclass(frozen, module = "onebuf", name = "LU")]
pub(crate) struct PyLu {
    pivots: Pivots,
    a: Py<PyBuffer>,
    size: usize,
    /// The queue that factored it.
    queue: Queue,
}

/// The pivots, by the type of the numbers.
enum Pivots {
    F32(Lu<f32>),
    F64(Lu<f64>),
    C32(Lu<Complex32>),
    C64(Lu<Complex64>),
}

/// The pivots of a type of numbers.
trait Pivoted: Number {
    fn wrap(lu: Lu<Self>) -> Pivots;
    fn find(pivots: &Pivots) -> Option<&Lu<Self>>;
}

macro_rules! pivoted {
    ($($number:ty => $variant:ident;)*) => {
        $(impl Pivoted for $number {
            fn wrap(lu: Lu<Self>) -> Pivots {
                Pivots::$variant(lu)
            }

            fn find(pivots: &Pivots) -> Option<&Lu<Self>> {
                match pivots {
                    Pivots::$variant(lu) => Some(lu),
                    _ => None,
                }
            }
        })*
    };
}

pivoted! {
    f32 => F32;
    f64 => F64;
    Complex32 => C32;
    Complex64 => C64;
}

fn pivots<T: Pivoted>(pivots: &Pivots) -> onebuf::Result<&Lu<T>> {
    T::find(pivots).ok_or_else(|| Error::invalid("the matrix was factored with another type"))
}

/// Factors a square matrix in place: L and U replace it, with rows exchanged. By cuSOLVER on a CUDA device that shares it, by rocSOLVER on a HIP device, by
/// the CPU else. The call waits, because whether a matrix is singular must be read back: then it raises `InvalidArgument`, and the contents are lost.
#[pyfunction]
#[pyo3(signature = (a, *, queue=None))]
pub(crate) fn lu(
    py: Python<'_>,
    a: &Bound<'_, PyBuffer>,
    queue: Option<&Bound<'_, PyQueue>>,
) -> Result<PyLu> {
    let _inside = enter(py);
    let buffer = a.get();
    let [size, columns] = matrix(buffer, "a")?;
    if size != columns {
        return Err(Fault::invalid(format!(
            "a matrix of {size} x {columns}: a square one is needed"
        )));
    }
    let (queue, found) = pieces(py, named(queue), &[(buffer, true)])?;
    let name = buffer.dtype.name();
    let run = || with_number!(name, "a system", T => factor::<T>(&queue, size, &found[0]));
    let pivots = detached(py, run)?;
    Ok(PyLu { pivots, a: a.clone().unbind(), size, queue })
}

fn factor<T: Pivoted>(queue: &Queue, size: usize, a: &Piece) -> onebuf::Result<Pivots> {
    let solver = Solver::on(queue)?;
    let lu = solver.factor(Square::new(size), &mut write::<T>(a, queue)?)?;
    queue.flush()?;
    Ok(T::wrap(lu))
}

#[pymethods]
impl PyLu {
    /// Replaces `b` by the solution of `A x = b`. `b` is a vector, or a matrix whose rows are the vectors of several systems. With `transpose` the system is
    /// `A.T x = b`. The call returns when the work is enqueued.
    #[pyo3(signature = (b, *, transpose=false, queue=None))]
    fn solve(
        &self,
        py: Python<'_>,
        b: &Bound<'_, PyBuffer>,
        transpose: bool,
        queue: Option<&Bound<'_, PyQueue>>,
    ) -> Result<()> {
        let _inside = enter(py);
        let (a, b) = (self.a.get(), b.get());
        let count = vectors(b, self.size)?;
        same_type(&[a, b])?;
        let (queue, found) = pieces(py, self.on(queue), &[(a, false), (b, true)])?;
        // The libraries count by columns, so that they have factored the transpose.
        let op = if transpose { Op::None } else { Op::Transpose };
        let name = a.dtype.name();
        let run =
            || with_number!(name, "a system", T => self.solved::<T>(&queue, op, count, &found));
        Ok(detached(py, run)?)
    }

    /// Writes the inverse of the matrix to `out`. The call returns when the work is enqueued.
    #[pyo3(signature = (out, *, queue=None))]
    fn invert(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyBuffer>,
        queue: Option<&Bound<'_, PyQueue>>,
    ) -> Result<()> {
        let _inside = enter(py);
        let (a, out) = (self.a.get(), out.get());
        if matrix(out, "out")? != [self.size; 2] {
            let (size, shape) = (self.size, &out.layout.shape);
            return Err(Fault::invalid(format!(
                "the inverse is {size} x {size}, `out` is {shape:?}"
            )));
        }
        same_type(&[a, out])?;
        let (queue, found) = pieces(py, self.on(queue), &[(a, false), (out, true)])?;
        let name = a.dtype.name();
        let run = || with_number!(name, "a system", T => self.inverted::<T>(&queue, &found));
        Ok(detached(py, run)?)
    }

    /// The number of rows.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    fn __repr__(&self) -> String {
        format!("<onebuf.LU of a {0} x {0} matrix>", self.size)
    }
}

impl PyLu {
    /// The queue that the caller names, or the one that factored the matrix.
    fn on(&self, queue: Option<&Bound<'_, PyQueue>>) -> Option<Queue> {
        named(queue).or_else(|| Some(self.queue.clone()))
    }

    fn solved<T: Pivoted>(
        &self,
        queue: &Queue,
        op: Op,
        count: usize,
        all: &[Piece],
    ) -> onebuf::Result<()> {
        let lu = pivots::<T>(&self.pivots)?;
        let (a, mut b) = (read::<T>(&all[0], queue)?, write::<T>(&all[1], queue)?);
        Solver::on(queue)?.solve(lu, op, &a, Columns::new(count), &mut b)?;
        queue.flush()
    }

    fn inverted<T: Pivoted>(&self, queue: &Queue, all: &[Piece]) -> onebuf::Result<()> {
        let lu = pivots::<T>(&self.pivots)?;
        let (a, mut out) = (read::<T>(&all[0], queue)?, write::<T>(&all[1], queue)?);
        Solver::on(queue)?.invert(lu, &a, &mut out)?;
        queue.flush()
    }
}

/// How many vectors the right-hand side has.
fn vectors(b: &PyBuffer, size: usize) -> Result<usize> {
    match b.layout.shape[..] {
        [one] if one == size => Ok(1),
        [count, one] if one == size => Ok(count),
        _ => Err(Fault::invalid(format!(
            "`b` has the shape {:?}: a vector of {size} elements, or a matrix whose rows are such vectors, is needed",
            b.layout.shape
        ))),
    }
}

/// Solves `A x = b` in place: `a` is replaced by its factors, and `b` by the solution. `b` is a vector, or a matrix whose rows are the vectors of several
/// systems. Returns the factors: see `onebuf.lu`.
#[pyfunction]
#[pyo3(signature = (a, b, *, queue=None))]
pub(crate) fn solve(
    py: Python<'_>,
    a: &Bound<'_, PyBuffer>,
    b: &Bound<'_, PyBuffer>,
    queue: Option<&Bound<'_, PyQueue>>,
) -> Result<PyLu> {
    // Before the matrix is replaced.
    same_type(&[a.get(), b.get()])?;
    vectors(b.get(), matrix(a.get(), "a")?[1])?;
    b.get().piece()?;
    let factors = lu(py, a, queue)?;
    factors.solve(py, b, false, queue)?;
    Ok(factors)
}
