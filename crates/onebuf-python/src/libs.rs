//! Maths libraries on buffers, in place: matrix products and Fourier transforms.

use crate::{
    array::{Piece, PyBuffer},
    ending::{detached, enter},
    error::{Fault, Result},
    stream::has_streams,
    types::PyQueue,
};
use onebuf::{
    Complex32, Complex64, Queue, ReadView, WriteView,
    libs::{Blas, Fft, Fft1d, Gemm, Number, Op, Sample},
};
use pyo3::prelude::*;

/// Adds these functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(fft, module)?)?;
    module.add_function(wrap_pyfunction!(matmul, module)?)
}

/// Runs code for the type of numbers of that name.
macro_rules! with_number {
    ($name:expr, $what:literal, $number:ident => $body:expr) => {
        match $name {
            "float32" => {
                type $number = f32;
                $body
            }
            "float64" => {
                type $number = f64;
                $body
            }
            "complex64" => {
                type $number = onebuf::Complex32;
                $body
            }
            "complex128" => {
                type $number = onebuf::Complex64;
                $body
            }
            other => Err(onebuf::Error::invalid(format!(
                concat!($what, " of {}: float32, float64, complex64 and complex128 are possible"),
                other
            ))),
        }
    };
}
pub(crate) use with_number;

pub(crate) fn read<'b, T: Number>(
    piece: &'b Piece,
    queue: &'b Queue,
) -> onebuf::Result<ReadView<'b, T>> {
    piece.read_on(queue)?.cast()
}

pub(crate) fn write<'b, T: Number>(
    piece: &'b Piece,
    queue: &'b Queue,
) -> onebuf::Result<WriteView<'b, T>> {
    piece.write_on(queue)?.cast()
}

/// The queue that the caller names.
pub(crate) fn named(queue: Option<&Bound<'_, PyQueue>>) -> Option<Queue> {
    queue.map(|queue| queue.get().0.clone())
}

/// The default queue of the CUDA or HIP device that has the buffer, or the host's.
fn queue(of: &Piece) -> Result<Queue> {
    let root = of.root();
    let device = root.devices().iter().find(|device| has_streams(device)).cloned();
    Ok(device.unwrap_or_else(|| root.buffer.hub().host()).default_queue()?)
}

/// What kernels get of each buffer, with a look at who has it now, and the queue: the given one, or one for the first buffer. Waits where the
/// hand-over would wait for other devices' work, so that signals end the wait.
pub(crate) fn pieces(
    py: Python<'_>,
    queue: Option<Queue>,
    all: &[(&PyBuffer, bool)],
) -> Result<(Queue, Vec<Piece>)> {
    let found: Vec<Piece> = all.iter().map(|(buffer, _)| buffer.piece()).collect::<Result<_>>()?;
    let queue = queue.map_or_else(|| self::queue(&found[0]), Ok)?;
    for (piece, (_, writes)) in found.iter().zip(all) {
        piece.root().check_kernel(&queue.device(), *writes)?;
        piece.root().settle_on(py, &queue.device(), *writes)?;
    }
    Ok((queue, found))
}

/// Transforms complex signals along the last axis, in place or into `out`: by cuFFT on a CUDA device, by rocFFT on a HIP device, by the CPU else. As
/// in those libraries nothing is divided by the length: a transform and its inverse multiply by it. The call returns when the work is enqueued.
#[pyfunction]
#[pyo3(signature = (x, out=None, *, inverse=false, queue=None))]
pub(crate) fn fft(
    py: Python<'_>,
    x: &Bound<'_, PyBuffer>,
    out: Option<&Bound<'_, PyBuffer>>,
    inverse: bool,
    queue: Option<&Bound<'_, PyQueue>>,
) -> Result<()> {
    let _inside = enter(py);
    let from = x.get();
    let len = from.layout.shape.last().copied().unwrap_or(1);
    let batch = from.layout.len() / len.max(1);
    let plan = if inverse { Fft1d::inverse(len, batch) } else { Fft1d::forward(len, batch) };
    let to = out.map(|out| out.get());
    if let Some(to) = to
        && (to.dtype, &to.layout.shape) != (from.dtype, &from.layout.shape)
    {
        return Err(Fault::invalid("`out` must have the shape and the type of the signals"));
    }
    let all = [Some((from, to.is_none())), to.map(|to| (to, true))];
    let (queue, found) = pieces(py, named(queue), &all.into_iter().flatten().collect::<Vec<_>>())?;
    let name = from.dtype.name();
    let run = || match name {
        "complex64" => transform::<Complex32>(&queue, &plan, &found),
        "complex128" => transform::<Complex64>(&queue, &plan, &found),
        other => Err(onebuf::Error::invalid(format!(
            "a transform of {other}: complex64 and complex128 are possible"
        ))),
    };
    Ok(detached(py, run)?)
}

fn transform<T: Sample>(queue: &Queue, plan: &Fft1d, all: &[Piece]) -> onebuf::Result<()> {
    let fft = Fft::on(queue)?;
    match all {
        [from, to] => {
            let (from, mut to) = (read::<T>(from, queue)?, write::<T>(to, queue)?);
            fft.transform_into(plan, &from, &mut to)
        }
        _ => fft.transform(plan, &mut write::<T>(&all[0], queue)?),
    }?;
    queue.flush()
}

/// Rows and columns of a matrix.
pub(crate) fn matrix(buffer: &PyBuffer, name: &str) -> Result<[usize; 2]> {
    match buffer.layout.shape[..] {
        [rows, columns] => Ok([rows, columns]),
        _ => Err(Fault::invalid(format!(
            "`{name}` has the shape {:?}: a matrix is needed",
            buffer.layout.shape
        ))),
    }
}

/// What is done to a matrix before it is used, and the rows and columns that it then has.
fn used(buffer: &PyBuffer, name: &str, op: &str) -> Result<(Op, [usize; 2])> {
    let [rows, columns] = matrix(buffer, name)?;
    match op {
        "none" => Ok((Op::None, [rows, columns])),
        "transpose" => Ok((Op::Transpose, [columns, rows])),
        "adjoint" => Ok((Op::Adjoint, [columns, rows])),
        other => Err(Fault::invalid(format!(
            "op_{name}={other:?}: use \"none\", \"transpose\" or \"adjoint\""
        ))),
    }
}

/// The product of two matrices: `out = alpha * (a @ b) + beta * out`. By cuBLAS on a CUDA device, by rocBLAS on a HIP device, by the CPU else. All three
/// have the same type: float32, float64, complex64 or complex128. `op_a` and `op_b` are what is done to a matrix first: "none", "transpose" or "adjoint",
/// the conjugate transpose. The call returns when the work is enqueued.
#[pyfunction]
#[pyo3(signature = (a, b, out, *, alpha=1.0, beta=0.0, op_a="none", op_b="none", queue=None))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn matmul(
    py: Python<'_>,
    a: &Bound<'_, PyBuffer>,
    b: &Bound<'_, PyBuffer>,
    out: &Bound<'_, PyBuffer>,
    alpha: f64,
    beta: f64,
    op_a: &str,
    op_b: &str,
    queue: Option<&Bound<'_, PyQueue>>,
) -> Result<()> {
    let _inside = enter(py);
    let (a, b, out) = (a.get(), b.get(), out.get());
    let ((op_a, [m, k]), (op_b, [k2, n])) = (used(a, "a", op_a)?, used(b, "b", op_b)?);
    if k != k2 || matrix(out, "out")? != [m, n] {
        let (a, b, out) = (&a.layout.shape, &b.layout.shape, &out.layout.shape);
        return Err(Fault::invalid(format!("shapes {a:?} and {b:?} with the result {out:?}")));
    }
    same_type(&[a, b, out])?;
    let (queue, found) = pieces(py, named(queue), &[(out, true), (a, false), (b, false)])?;
    let product = Product { sizes: [m, n, k], ops: [op_a, op_b], alpha, beta };
    let name = out.dtype.name();
    let run = || with_number!(name, "a product", T => product.run::<T>(&queue, &found));
    Ok(detached(py, run)?)
}

/// That all have one type.
pub(crate) fn same_type(all: &[&PyBuffer]) -> Result<()> {
    if all.iter().all(|one| one.dtype == all[0].dtype) {
        return Ok(());
    }
    let names: Vec<_> = all.iter().map(|one| one.dtype.name()).collect();
    Err(Fault::invalid(format!("buffers of {}: one type is needed", names.join(", "))))
}

/// A product of matrices of rows.
struct Product {
    sizes: [usize; 3],
    ops: [Op; 2],
    alpha: f64,
    beta: f64,
}

impl Product {
    /// The libraries count by columns, where a matrix of rows is its transpose: the product of `b` and `a`, in this order, is the transpose of
    /// the result.
    fn run<T: Number + FromReal>(&self, queue: &Queue, all: &[Piece]) -> onebuf::Result<()> {
        let ([m, n, k], [op_a, op_b]) = (self.sizes, self.ops);
        let product = Gemm::<T>::new(n, m, k).a(op_b).b(op_a);
        let product = product.alpha(T::from_real(self.alpha)).beta(T::from_real(self.beta));
        let blas = Blas::on(queue)?;
        let [out, a, b] = all else { return Err(onebuf::Error::invalid("three matrices")) };
        let (a, b, mut out) = (read(a, queue)?, read(b, queue)?, write(out, queue)?);
        blas.gemm(&product, &b, &a, &mut out)?;
        drop(out);
        queue.flush()
    }
}

/// Numbers that a factor of Python's becomes.
trait FromReal {
    fn from_real(real: f64) -> Self;
}

macro_rules! from_real {
    ($($number:ty: $real:ident => $made:expr;)*) => {
        $(impl FromReal for $number {
            fn from_real($real: f64) -> Self {
                $made
            }
        })*
    };
}

from_real! {
    f32: real => real as f32;
    f64: real => real;
    Complex32: real => Complex32::new(real as f32, 0.0);
    Complex64: real => Complex64::new(real, 0.0);
}
