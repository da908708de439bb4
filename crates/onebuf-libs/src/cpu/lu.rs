//! Recursive LU factorization with partial pivoting. Nearly all work is matrix products.

use super::block::{Block, BlockMut, gemm};
use crate::{Op, number::Number};

/// With this many columns or fewer, recursion costs more than it saves.
const SMALL: usize = 16;

/// Replaces the block by its factors. Row i was exchanged with row `pivots[i]`, in this order. Returns the first column
/// without a pivot.
pub fn factor<T: Number>(mut a: BlockMut<'_, T>, pivots: &mut [usize]) -> Option<usize> {
    let columns = a.columns();
    if columns <= SMALL {
        return factor_small(&mut a, pivots);
    }
    let half = columns / 2;
    let rows = a.rows();
    let [mut left, mut right, ..] = a.again().quarters(rows, half);
    let (first, last) = pivots.split_at_mut(half);
    let zero = factor(left.again(), first);
    exchange(&mut right, first);
    let [l11, _, l21, _] = left.again().quarters(half, half);
    let [mut u12, _, mut rest, _] = right.again().quarters(half, columns - half);
    solve_lower(l11.read(), true, u12.again());
    gemm(-T::ONE, l21.read(), u12.read(), T::ONE, &mut rest);
    let later = factor(rest, last);
    let [_, _, mut below, _] = left.quarters(half, half);
    exchange(&mut below, last);
    last.iter_mut().for_each(|row| *row += half);
    zero.or(later.map(|column| column + half))
}

fn factor_small<T: Number>(a: &mut BlockMut<'_, T>, pivots: &mut [usize]) -> Option<usize> {
    let mut zero = None;
    for (j, pivot) in pivots.iter_mut().enumerate() {
        *pivot = largest(a, j);
        a.swap_rows(j, *pivot);
        let diagonal = a.get(j, j);
        if diagonal == T::ZERO {
            zero = zero.or(Some(j));
            continue;
        }
        for i in j + 1..a.rows() {
            a.set(i, j, a.get(i, j) / diagonal);
        }
        let (columns, rows) = (a.columns(), a.rows());
        let [_, top, left, mut rest] = a.again().quarters(j + 1, j + 1);
        let (top, left) = (top.read(), left.read());
        for column in 0..columns - j - 1 {
            rest.subtract(column, top.get(j, column), &left.part([0, j], [rows - j - 1, 1]), 0);
        }
    }
    zero
}

/// The row of a column's largest element, from the diagonal down.
fn largest<T: Number>(a: &BlockMut<'_, T>, column: usize) -> usize {
    let size = |row: usize| a.get(row, column).size();
    (column + 1..a.rows()).fold(column, |best, row| if size(row) > size(best) { row } else { best })
}

fn exchange<T: Number>(a: &mut BlockMut<'_, T>, pivots: &[usize]) {
    pivots.iter().enumerate().for_each(|(row, with)| a.swap_rows(row, *with));
}

/// Replaces B by the solution of `op(A) X = B`.
pub fn solve<T: Number>(op: Op, lu: Block<'_, T>, pivots: &[usize], mut b: BlockMut<'_, T>) {
    if op == Op::None {
        exchange(&mut b, pivots);
        solve_lower(lu, true, b.again());
        return solve_upper(lu, false, b);
    }
    // (L U)' = U' L', and the row exchanges come last, in reverse order.
    let turned = lu.transposed(op);
    solve_lower(turned, false, b.again());
    solve_upper(turned, true, b.again());
    pivots.iter().enumerate().rev().for_each(|(row, with)| b.swap_rows(row, *with));
}

/// Replaces B by the solution of `L X = B`. Reads the lower triangle only, without the diagonal if `is_unit`.
fn solve_lower<T: Number>(l: Block<'_, T>, is_unit: bool, mut b: BlockMut<'_, T>) {
    let n = l.rows();
    if n <= SMALL {
        return (0..n).for_each(|i| eliminate(&l, is_unit, i, i + 1..n, &mut b));
    }
    let half = n / 2;
    let columns = b.columns();
    let [mut top, _, mut bottom, _] = b.quarters(half, columns);
    solve_lower(l.part([0, 0], [half, half]), is_unit, top.again());
    gemm(-T::ONE, l.part([half, 0], [n - half, half]), top.read(), T::ONE, &mut bottom);
    solve_lower(l.part([half, half], [n - half, n - half]), is_unit, bottom);
}

/// Replaces B by the solution of `U X = B`. Reads the upper triangle only, without the diagonal if `is_unit`.
fn solve_upper<T: Number>(u: Block<'_, T>, is_unit: bool, mut b: BlockMut<'_, T>) {
    let n = u.rows();
    if n <= SMALL {
        return (0..n).rev().for_each(|i| eliminate(&u, is_unit, i, 0..i, &mut b));
    }
    let half = n / 2;
    let columns = b.columns();
    let [mut top, _, mut bottom, _] = b.quarters(half, columns);
    solve_upper(u.part([half, half], [n - half, n - half]), is_unit, bottom.again());
    gemm(-T::ONE, u.part([0, half], [half, n - half]), bottom.read(), T::ONE, &mut top);
    solve_upper(u.part([0, 0], [half, half]), is_unit, top);
}

/// Finishes row i of B and eliminates it from the `others`.
fn eliminate<T: Number>(
    triangle: &Block<'_, T>,
    is_unit: bool,
    i: usize,
    others: std::ops::Range<usize>,
    b: &mut BlockMut<'_, T>,
) {
    for column in 0..b.columns() {
        let mut x = b.get(i, column);
        if !is_unit {
            x = x / triangle.get(i, i);
            b.set(i, column, x);
        }
        for row in others.clone() {
            b.set(row, column, b.get(row, column) - triangle.get(row, i) * x);
        }
    }
}
