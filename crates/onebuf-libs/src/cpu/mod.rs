//! The CPU implementation, for host queues. Calls compute on the calling thread and on further threads up to the number of
//! cores, and are complete when they return.

mod block;
mod lu;
#[cfg(test)]
mod tests;
mod transforms;

pub use transforms::Planners;

use super::{
    blas::{Op, Product},
    fft::Fft1d,
    native::Shelf,
    number::{Number, Sample},
    operand::check_apart,
};
use block::{Block, BlockMut};
use bytemuck::Pod;
use onebuf_core::{Complex32, Complex64, Queue, internals::Hold};
use onebuf_hal::{Error, Result};

/// A view's bytes as numbers. On an out-of-order queue this waits for preceding work.
fn input<'a, T: Pod>(hold: &'a Hold<'_>) -> Result<&'a [T]> {
    hold.raw()?;
    let bytes = hold.host_bytes().ok_or_else(not_ours)?;
    bytemuck::try_cast_slice(bytes).map_err(misaligned)
}

fn output<'a, T: Pod>(hold: &'a mut Hold<'_>) -> Result<&'a mut [T]> {
    hold.raw()?;
    let bytes = hold.host_bytes_mut().ok_or_else(not_ours)?;
    bytemuck::try_cast_slice_mut(bytes).map_err(misaligned)
}

fn not_ours() -> Error {
    Error::invalid("the view is not on the host")
}

fn misaligned(why: bytemuck::PodCastError) -> Error {
    Error::invalid(format!("the view's bytes cannot be read as its element type: {why}"))
}

fn range<T>(slice: &[T]) -> (usize, usize) {
    (slice.as_ptr().addr(), size_of_val(slice))
}

pub fn gemm<T: Number>(
    product: &Product<T>,
    a: &Hold<'_>,
    b: &Hold<'_>,
    c: &mut Hold<'_>,
) -> Result<()> {
    let (a, b, c) = (input::<T>(a)?, input::<T>(b)?, output::<T>(c)?);
    for (name, input) in [("a", a), ("b", b)] {
        check_apart(range(c), range(input), name)?;
    }
    multiply(product, a, b, c);
    Ok(())
}

/// Multiplies slices whose lengths are checked.
fn multiply<T: Number>(product: &Product<T>, a: &[T], b: &[T], c: &mut [T]) {
    let ([m, n, k], [lda, ldb, ldc]) = (product.sizes, product.lds);
    let used = |op: Op, slice, rows, columns, ld| match op {
        Op::None => Block::new(slice, [rows, columns], ld),
        _ => Block::new(slice, [columns, rows], ld).transposed(op),
    };
    let [op_a, op_b] = product.ops;
    let (a, b) = (used(op_a, a, m, k, lda), used(op_b, b, k, n, ldb));
    block::gemm(product.alpha, a, b, product.beta, &mut BlockMut::new(c, [m, n], ldc));
}

pub fn fft<T: Sample>(
    queue: &Queue,
    plan: &Fft1d,
    from: Option<&Hold<'_>>,
    to: &mut Hold<'_>,
) -> Result<()> {
    let data = output::<T>(to)?;
    let total = plan.len() * plan.batch();
    if let Some(from) = from {
        let from = input::<T>(from)?;
        check_apart(range(data), range(from), "from")?;
        data[..total].copy_from_slice(&from[..total]);
    }
    let planners = &Shelf::of(queue).planners;
    let data = &mut data[..total];
    match T::IS_DOUBLE {
        true => planners.double(plan, bytemuck::cast_slice_mut::<T, Complex64>(data)),
        false => planners.single(plan, bytemuck::cast_slice_mut::<T, Complex32>(data)),
    }
    Ok(())
}

/// Factors a matrix. Returns the pivots, and the first column without a pivot.
pub fn factor<T: Number>(
    n: usize,
    ld: usize,
    a: &mut Hold<'_>,
) -> Result<(Vec<usize>, Option<usize>)> {
    let mut pivots = vec![0; n];
    let zero = lu::factor(BlockMut::new(output::<T>(a)?, [n, n], ld), &mut pivots);
    Ok((pivots, zero))
}

pub fn solve<T: Number>(
    op: Op,
    [n, ld]: [usize; 2],
    a: &Hold<'_>,
    pivots: &[usize],
    [columns, ldb]: [usize; 2],
    b: &mut Hold<'_>,
) -> Result<()> {
    let (a, b) = (input::<T>(a)?, output::<T>(b)?);
    check_apart(range(b), range(a), "a")?;
    let (a, b) = (Block::new(a, [n, n], ld), BlockMut::new(b, [n, columns], ldb));
    lu::solve(op, a, pivots, b);
    Ok(())
}

pub fn set_identity<T: Number>(n: usize, to: &mut Hold<'_>) -> Result<()> {
    let to = &mut output::<T>(to)?[..n * n];
    to.fill(T::ZERO);
    to.iter_mut().step_by(n + 1).for_each(|x| *x = T::ONE);
    Ok(())
}
