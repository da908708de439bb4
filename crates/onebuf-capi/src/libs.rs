//! Libraries
//!
//! Matrix products, Fourier transforms and linear systems on buffers, in place: by cuBLAS, cuFFT and cuSOLVER on a CUDA
//! queue, by rocBLAS, rocFFT and rocSOLVER on a HIP queue, by the CPU on the host's queue. Each call takes its views
//! itself, as a launch does, and enqueues; on the host it computes. Matrices are column-major: element (i, j) lies at
//! `i + j * ld`. ONEBUF_UNAVAILABLE if the library is not installed; ONEBUF_INVALID_ARGUMENT, before anything is done,
//! if the sizes exceed the buffers.

use crate::{
    buffer::onebuf_buffer,
    entry::{entry, free},
    fault::{Fault, Result},
    handle::{Noun, noun},
    input::{Options, Slot, array, options, out},
    kept::Buf,
    queue::onebuf_queue,
    status::onebuf_status,
};
use onebuf::{
    Complex32, Complex64, Queue, ReadView, WriteView,
    libs::{Blas, Columns, Direction, Fft, Fft1d, Gemm, Lu, Number, Op, Sample, Solver, Square},
};

/// The element type of matrices and signals.
pub type onebuf_number = u32;
/// `float`.
pub const ONEBUF_F32: onebuf_number = 0;
/// `double`.
pub const ONEBUF_F64: onebuf_number = 1;
/// Two `float`s, real and imaginary.
pub const ONEBUF_C32: onebuf_number = 2;
/// Two `double`s, real and imaginary.
pub const ONEBUF_C64: onebuf_number = 3;

/// The operation applied to a matrix before it is used.
pub type onebuf_op = u32;
/// Nothing.
pub const ONEBUF_OP_NONE: onebuf_op = 0;
/// Transpose.
pub const ONEBUF_OP_TRANSPOSE: onebuf_op = 1;
/// Conjugate transpose.
pub const ONEBUF_OP_ADJOINT: onebuf_op = 2;

/// A matrix product: `C = alpha op(A) op(B) + beta C`, where op(A) is m x k, op(B) is k x n, C is m x n.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_gemm_options {
    /// `sizeof(onebuf_gemm_options)`.
    pub size: usize,
    /// Element type of the matrices.
    pub number: onebuf_number,
    /// Operation on A.
    pub op_a: onebuf_op,
    /// Operation on B.
    pub op_b: onebuf_op,
    /// Must be zero.
    pub reserved: u32,
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Columns of op(A).
    pub k: usize,
    /// Leading dimension of A; zero: its number of rows.
    pub lda: usize,
    /// Leading dimension of B; zero: its number of rows.
    pub ldb: usize,
    /// Leading dimension of C; zero: its number of rows.
    pub ldc: usize,
    /// Two numbers, real and imaginary; NULL: one.
    pub alpha: *const f64,
    /// Two numbers, real and imaginary; NULL: zero, and the contents of C do not matter.
    pub beta: *const f64,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_gemm_options {}

/// Transforms of complex signals that are stored one after another. The result is not divided by the length.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_fft_options {
    /// `sizeof(onebuf_fft_options)`.
    pub size: usize,
    /// ONEBUF_C32 or ONEBUF_C64.
    pub number: onebuf_number,
    /// Not zero: the inverse transform, by exp(+2 pi i j k / n).
    pub inverse: u32,
    /// Samples per signal.
    pub len: usize,
    /// Number of signals; zero: one.
    pub batch: usize,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_fft_options {}

/// The row permutation of a factored matrix. Free it with onebuf_lu_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_lu {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_lu, Factored, 15);

/// One variant per element type.
#[doc(hidden)]
pub enum Factored {
    F32(Lu<f32>),
    F64(Lu<f64>),
    C32(Lu<Complex32>),
    C64(Lu<Complex64>),
}

/// A number type that C can pass.
trait Scalar: Number {
    fn of(parts: [f64; 2]) -> Result<Self>;
    fn keep(lu: Lu<Self>) -> Factored;
}

macro_rules! real {
    ($type:ty, $kept:ident) => {
        impl Scalar for $type {
            fn of([re, im]: [f64; 2]) -> Result<Self> {
                match im == 0.0 {
                    true => Ok(re as $type),
                    false => Err(Fault::invalid("an imaginary part with real matrices")),
                }
            }

            fn keep(lu: Lu<Self>) -> Factored {
                Factored::$kept(lu)
            }
        }
    };
}
real!(f32, F32);
real!(f64, F64);

macro_rules! complex {
    ($type:ty, $part:ty, $kept:ident) => {
        impl Scalar for $type {
            fn of([re, im]: [f64; 2]) -> Result<Self> {
                Ok(Self::new(re as $part, im as $part))
            }

            fn keep(lu: Lu<Self>) -> Factored {
                Factored::$kept(lu)
            }
        }
    };
}
complex!(Complex32, f32, C32);
complex!(Complex64, f64, C64);

fn op(number: onebuf_op) -> Result<Op> {
    match number {
        ONEBUF_OP_NONE => Ok(Op::None),
        ONEBUF_OP_TRANSPOSE => Ok(Op::Transpose),
        ONEBUF_OP_ADJOINT => Ok(Op::Adjoint),
        _ => Err(Fault::invalid(format!("op {number}: choose one of 0 to 2"))),
    }
}

fn no_number(number: onebuf_number, choices: &str) -> Fault {
    Fault::invalid(format!("number {number}: choose one of {choices}"))
}

/// A view of bytes as a view of numbers.
fn read<'b, T: Number>(buffer: &'b Buf, queue: &'b Queue) -> Result<ReadView<'b, T>> {
    Ok(match buffer {
        Buf::Whole(buffer) => buffer.read_on(queue)?.cast()?,
        Buf::Region { region, .. } => region.read_on(queue)?.cast()?,
    })
}

fn write<'b, T: Number>(buffer: &'b Buf, queue: &'b Queue) -> Result<WriteView<'b, T>> {
    Ok(match buffer {
        Buf::Whole(buffer) => buffer.write_on(queue)?.cast()?,
        Buf::Region { region, .. } => region.write_on(queue)?.cast()?,
    })
}

/// # Safety
/// Null, or two numbers.
unsafe fn scalar<T: Scalar>(given: *const f64, name: &'static str) -> Result<Option<T>> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    let parts = unsafe { array(given, 2, name)? };
    T::of([parts[0], parts[1]]).map(Some)
}

/// # Safety
/// The pointers of the options are valid as the header requires.
unsafe fn gemm<T: Scalar>(
    queue: &Queue,
    given: &onebuf_gemm_options,
    [a, b, c]: [&Buf; 3],
) -> Result<()> {
    let mut product = Gemm::<T>::new(given.m, given.n, given.k);
    product = product.a(op(given.op_a)?).b(op(given.op_b)?);
    let set = |product: Gemm<T>, ld, way: fn(Gemm<T>, usize) -> Gemm<T>| match ld {
        0 => product,
        ld => way(product, ld),
    };
    product = set(product, given.lda, Gemm::lda);
    product = set(product, given.ldb, Gemm::ldb);
    product = set(product, given.ldc, Gemm::ldc);
    // SAFETY: guaranteed by the caller.
    let (alpha, beta) = unsafe { (scalar(given.alpha, "alpha")?, scalar(given.beta, "beta")?) };
    product = alpha.into_iter().fold(product, Gemm::alpha);
    product = beta.into_iter().fold(product, Gemm::beta);
    let blas = Blas::on(queue)?;
    let (a, b, mut c) = (read(a, queue)?, read(b, queue)?, write(c, queue)?);
    Ok(blas.gemm(&product, &a, &b, &mut c)?)
}

/// A library of the device.
pub type onebuf_library = u32;
/// Matrix products: cuBLAS, rocBLAS.
pub const ONEBUF_LIBRARY_BLAS: onebuf_library = 0;
/// Fourier transforms: cuFFT, rocFFT.
pub const ONEBUF_LIBRARY_FFT: onebuf_library = 1;
/// Linear systems: cuSOLVER, rocSOLVER.
pub const ONEBUF_LIBRARY_SOLVER: onebuf_library = 2;

/// Loads a library for the queue in advance, and creates its handles, which the first use does otherwise. ONEBUF_UNSUPPORTED if the
/// device has none; ONEBUF_UNAVAILABLE if it is not installed.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_library_open(
    queue: onebuf_queue,
    library: onebuf_library,
) -> onebuf_status {
    entry(|| {
        let queue = queue.get()?;
        match library {
            ONEBUF_LIBRARY_BLAS => Blas::on(&queue).map(drop)?,
            ONEBUF_LIBRARY_FFT => Fft::on(&queue).map(drop)?,
            ONEBUF_LIBRARY_SOLVER => Solver::on(&queue).map(drop)?,
            other => return Err(Fault::invalid(format!("library {other}: choose one of 0 to 2"))),
        }
        Ok(())
    })
}

/// Computes a matrix product on the queue. A and B may be the same buffer; C must be another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_gemm(
    queue: onebuf_queue,
    options: *const onebuf_gemm_options,
    a: onebuf_buffer,
    b: onebuf_buffer,
    c: onebuf_buffer,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller.
        let given = unsafe { self::options(options)? };
        let queue = queue.get()?;
        let [a, b, c] = [a.get()?, b.get()?, c.get()?];
        let all = [&a.buf, &b.buf, &c.buf];
        // SAFETY: guaranteed by the caller, for each type.
        unsafe {
            match given.number {
                ONEBUF_F32 => gemm::<f32>(&queue, &given, all),
                ONEBUF_F64 => gemm::<f64>(&queue, &given, all),
                ONEBUF_C32 => gemm::<Complex32>(&queue, &given, all),
                ONEBUF_C64 => gemm::<Complex64>(&queue, &given, all),
                other => Err(no_number(other, "0 to 3")),
            }
        }
    })
}

fn fft<T: Sample>(queue: &Queue, plan: &Fft1d, from: &Buf, to: Option<&Buf>) -> Result<()> {
    let fft = Fft::on(queue)?;
    let Some(to) = to else {
        return Ok(fft.transform(plan, &mut write::<T>(from, queue)?)?);
    };
    let (from, mut to) = (read::<T>(from, queue)?, write::<T>(to, queue)?);
    Ok(fft.transform_into(plan, &from, &mut to)?)
}

/// Transforms `from` into `to` on the queue; in place if `to` is the null handle or the same buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_fft(
    queue: onebuf_queue,
    options: *const onebuf_fft_options,
    from: onebuf_buffer,
    to: onebuf_buffer,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller.
        let given = unsafe { self::options(options)? };
        let (queue, source) = (queue.get()?, from.get()?);
        let target = if to.id == 0 || to.id == from.id { None } else { Some(to.get()?) };
        let (batch, to) = (given.batch.max(1), target.as_ref().map(|to| &to.buf));
        let plan = match direction(given.inverse) {
            Direction::Forward => Fft1d::forward(given.len, batch),
            Direction::Inverse => Fft1d::inverse(given.len, batch),
        };
        match given.number {
            ONEBUF_C32 => fft::<Complex32>(&queue, &plan, &source, to),
            ONEBUF_C64 => fft::<Complex64>(&queue, &plan, &source, to),
            other => Err(no_number(other, "2 and 3: a transform is of complex numbers")),
        }
    })
}

fn direction(inverse: u32) -> Direction {
    if inverse == 0 { Direction::Forward } else { Direction::Inverse }
}

fn factor<T: Scalar>(queue: &Queue, square: Square, a: &Buf) -> Result<Factored> {
    let lu = Solver::on(queue)?.factor(square, &mut write::<T>(a, queue)?)?;
    Ok(T::keep(lu))
}

/// Replaces the n x n matrix in `a` by its LU factors and returns the row permutation. `ld` is the leading dimension,
/// or zero for n. Waits for the device. ONEBUF_INVALID_ARGUMENT for a singular matrix, whose contents are lost.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_lu_factor(
    queue: onebuf_queue,
    number: onebuf_number,
    n: usize,
    ld: usize,
    a: onebuf_buffer,
    lu: Slot<'_, onebuf_lu>,
) -> onebuf_status {
    entry(|| {
        let lu = out(lu, "lu")?;
        let (queue, a) = (queue.get()?, a.get()?);
        let square = if ld == 0 { Square::new(n) } else { Square::new(n).ld(ld) };
        let factored = match number {
            ONEBUF_F32 => factor::<f32>(&queue, square, &a)?,
            ONEBUF_F64 => factor::<f64>(&queue, square, &a)?,
            ONEBUF_C32 => factor::<Complex32>(&queue, square, &a)?,
            ONEBUF_C64 => factor::<Complex64>(&queue, square, &a)?,
            other => return Err(no_number(other, "0 to 3")),
        };
        *lu = onebuf_lu::put(factored)?;
        Ok(())
    })
}

fn solve<T: Number>(
    queue: &Queue,
    (lu, op): (&Lu<T>, Op),
    a: &Buf,
    columns: Columns,
    b: &Buf,
) -> Result<()> {
    let solver = Solver::on(queue)?;
    let (a, mut b) = (read::<T>(a, queue)?, write::<T>(b, queue)?);
    Ok(solver.solve(lu, op, &a, columns, &mut b)?)
}

/// Solves `op(A) X = B`: replaces the columns of `b`, the right-hand sides, by the solutions; `a` holds the factors.
/// `ldb` is the leading dimension of `b`, or zero for its number of rows.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_lu_solve(
    queue: onebuf_queue,
    lu: onebuf_lu,
    op: onebuf_op,
    a: onebuf_buffer,
    columns: usize,
    ldb: usize,
    b: onebuf_buffer,
) -> onebuf_status {
    entry(|| {
        let (queue, lu, op) = (queue.get()?, lu.get()?, self::op(op)?);
        let (a, b) = (a.get()?, b.get()?);
        let columns = Columns::new(columns);
        let columns = if ldb == 0 { columns } else { columns.ld(ldb) };
        match &*lu {
            Factored::F32(lu) => solve(&queue, (lu, op), &a, columns, &b),
            Factored::F64(lu) => solve(&queue, (lu, op), &a, columns, &b),
            Factored::C32(lu) => solve(&queue, (lu, op), &a, columns, &b),
            Factored::C64(lu) => solve(&queue, (lu, op), &a, columns, &b),
        }
    })
}

fn invert<T: Number>(queue: &Queue, lu: &Lu<T>, a: &Buf, inverse: &Buf) -> Result<()> {
    let solver = Solver::on(queue)?;
    let (a, mut inverse) = (read::<T>(a, queue)?, write::<T>(inverse, queue)?);
    Ok(solver.invert(lu, &a, &mut inverse)?)
}

/// Writes the inverse of the matrix whose factors are in `a` into `inverse`, column-major without padding.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_lu_invert(
    queue: onebuf_queue,
    lu: onebuf_lu,
    a: onebuf_buffer,
    inverse: onebuf_buffer,
) -> onebuf_status {
    entry(|| {
        let (queue, lu) = (queue.get()?, lu.get()?);
        let (a, inverse) = (a.get()?, inverse.get()?);
        match &*lu {
            Factored::F32(lu) => invert(&queue, lu, &a, &inverse),
            Factored::F64(lu) => invert(&queue, lu, &a, &inverse),
            Factored::C32(lu) => invert(&queue, lu, &a, &inverse),
            Factored::C64(lu) => invert(&queue, lu, &a, &inverse),
        }
    })
}

/// Frees the row permutation. The factors stay in the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_lu_free(lu: onebuf_lu) -> onebuf_status {
    free(lu)
}
