//! Submatrices and their product.
//!
//! # Safety
//! A block is created from a slice that holds all of its elements, and its parts lie inside. A `BlockMut` is created from an
//! exclusive slice and is never copied; [`BlockMut::quarters`] splits it into disjoint blocks. Every address below is
//! therefore in bounds, and written elements have no other reader.

#![allow(unsafe_code)]

use crate::{
    Op,
    number::{Kind, Number},
};
use gemm::Parallelism;
use onebuf_core::{Complex32, Complex64};
use std::marker::PhantomData;

/// The layout of a matrix in memory.
#[derive(Clone, Copy, Debug)]
struct Shape<T> {
    at: *mut T,
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

impl<T> Shape<T> {
    fn of(at: *mut T, len: usize, [rows, columns]: [usize; 2], ld: usize) -> Self {
        let fits = rows == 0 || columns == 0 || ld * (columns - 1) + rows <= len;
        assert!(fits && ld >= rows, "{rows} x {columns} by {ld} in {len} elements");
        Shape { at, rows, columns, row_step: 1, column_step: ld }
    }

    /// The same layout with another name of the element type.
    fn cast<U>(&self) -> Shape<U> {
        let Shape { at, rows, columns, row_step, column_step } = *self;
        Shape { at: at.cast(), rows, columns, row_step, column_step }
    }

    fn part(&self, row: usize, column: usize, rows: usize, columns: usize) -> Self {
        assert!(row + rows <= self.rows && column + columns <= self.columns);
        let Shape { at, row_step, column_step, .. } = *self;
        // The address may be out of bounds for an empty part only, and is not dereferenced then.
        let at = at.wrapping_add(row * row_step + column * column_step);
        Shape { at, rows, columns, row_step, column_step }
    }

    #[inline]
    fn place(&self, row: usize, column: usize) -> *mut T {
        debug_assert!(row < self.rows && column < self.columns);
        self.at.wrapping_add(row * self.row_step + column * self.column_step)
    }
}

/// A read-only matrix.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a, T> {
    shape: Shape<T>,
    conjugate: bool,
    of: PhantomData<&'a [T]>,
}

impl<'a, T: Number> Block<'a, T> {
    /// A column-major matrix.
    pub fn new(slice: &'a [T], sizes: [usize; 2], ld: usize) -> Self {
        let shape = Shape::of(slice.as_ptr().cast_mut(), slice.len(), sizes, ld);
        Block { shape, conjugate: false, of: PhantomData }
    }

    /// Applies the operation to the layout.
    pub fn transposed(self, op: Op) -> Self {
        let Shape { at, rows, columns, row_step, column_step } = self.shape;
        let turned = Shape {
            at,
            rows: columns,
            columns: rows,
            row_step: column_step,
            column_step: row_step,
        };
        match op {
            Op::None => self,
            Op::Transpose => Block { shape: turned, ..self },
            Op::Adjoint => Block { shape: turned, conjugate: !self.conjugate, ..self },
        }
    }

    pub fn rows(&self) -> usize {
        self.shape.rows
    }

    /// The submatrix of the given sizes that starts at a row and a column.
    pub fn part(&self, [row, column]: [usize; 2], [rows, columns]: [usize; 2]) -> Self {
        Block { shape: self.shape.part(row, column, rows, columns), ..*self }
    }

    #[inline]
    pub fn get(&self, row: usize, column: usize) -> T {
        // SAFETY: see the module's safety section.
        let value = unsafe { *self.shape.place(row, column) };
        if self.conjugate { value.conjugate() } else { value }
    }
}

/// A mutable matrix.
#[derive(Debug)]
pub struct BlockMut<'a, T> {
    shape: Shape<T>,
    of: PhantomData<&'a mut [T]>,
}

impl<'a, T: Number> BlockMut<'a, T> {
    /// A column-major matrix.
    pub fn new(slice: &'a mut [T], sizes: [usize; 2], ld: usize) -> Self {
        let shape = Shape::of(slice.as_mut_ptr(), slice.len(), sizes, ld);
        BlockMut { shape, of: PhantomData }
    }

    pub fn rows(&self) -> usize {
        self.shape.rows
    }

    pub fn columns(&self) -> usize {
        self.shape.columns
    }

    /// Reborrows for reading.
    pub fn read(&self) -> Block<'_, T> {
        Block { shape: self.shape, conjugate: false, of: PhantomData }
    }

    /// Reborrows for writing.
    pub fn again(&mut self) -> BlockMut<'_, T> {
        BlockMut { shape: self.shape, of: PhantomData }
    }

    /// Splits at a row and a column into top left, top right, bottom left and bottom right.
    pub fn quarters(self, row: usize, column: usize) -> [BlockMut<'a, T>; 4] {
        let (rows, columns) = (self.rows() - row, self.columns() - column);
        let part = |r, c, rows, columns| BlockMut {
            shape: self.shape.part(r, c, rows, columns),
            of: PhantomData,
        };
        [
            part(0, 0, row, column),
            part(0, column, row, columns),
            part(row, 0, rows, column),
            part(row, column, rows, columns),
        ]
    }

    #[inline]
    pub fn get(&self, row: usize, column: usize) -> T {
        // SAFETY: see the module's safety section.
        unsafe { *self.shape.place(row, column) }
    }

    #[inline]
    pub fn set(&mut self, row: usize, column: usize, value: T) {
        // SAFETY: see the module's safety section.
        unsafe { *self.shape.place(row, column) = value };
    }

    /// Subtracts `factor` times a column of `other` from a column of this block.
    pub fn subtract(&mut self, column: usize, factor: T, other: &Block<'_, T>, of: usize) {
        for row in 0..self.rows() {
            let value = self.get(row, column) - factor * other.get(row, of);
            self.set(row, column, value);
        }
    }

    pub fn swap_rows(&mut self, a: usize, b: usize) {
        if a == b {
            return;
        }
        for column in 0..self.columns() {
            let (x, y) = (self.get(a, column), self.get(b, column));
            self.set(a, column, y);
            self.set(b, column, x);
        }
    }
}

/// `C = alpha A B + beta C`. If `beta` is zero, C is not read.
pub fn gemm<T: Number>(
    alpha: T,
    a: Block<'_, T>,
    b: Block<'_, T>,
    beta: T,
    c: &mut BlockMut<'_, T>,
) {
    let (m, n, k) = (c.rows(), c.columns(), a.shape.columns);
    assert!(a.rows() == m && b.rows() == k && b.shape.columns == n, "sizes of a product");
    if m == 0 || n == 0 {
        return;
    }
    let scalars = [alpha, beta];
    let call =
        Call { scalars, a: a.shape, b: b.shape, c: c.shape, conjugate: [a.conjugate, b.conjugate] };
    // SAFETY: see the module's safety section. The element type is the one of this kind.
    unsafe {
        match T::KIND {
            Kind::S => multiply_f32(&call.cast()),
            Kind::D => multiply_f64(&call.cast()),
            Kind::C => multiply_complex32(&call.cast()),
            Kind::Z => multiply_complex64(&call.cast()),
        }
    }
}

/// The arguments of a product. Its sizes fit.
struct Call<T> {
    /// `alpha` and `beta`.
    scalars: [T; 2],
    a: Shape<T>,
    b: Shape<T>,
    c: Shape<T>,
    conjugate: [bool; 2],
}

impl<T: Number> Call<T> {
    /// The same call with the name of its element type that a concrete function has.
    fn cast<U: Number>(&self) -> Call<U> {
        let Call { scalars, a, b, c, conjugate } = self;
        let (a, b, c) = (a.cast(), b.cast(), c.cast());
        Call { scalars: scalars.map(bytemuck::cast), a, b, c, conjugate: *conjugate }
    }
}

// The library is large and generic. A function for each element type has it compiled with this crate: otherwise every crate
// that multiplies matrices would compile it again.
macro_rules! multiply {
    ($($name:ident: $type:ty),+) => {$(
        /// # Safety
        /// The blocks are valid, and that of `c` is exclusive.
        #[inline(never)]
        unsafe fn $name(call: &Call<$type>) {
            // SAFETY: the caller's contract.
            unsafe { multiply(call) }
        }
    )+};
}

multiply!(
    multiply_f32: f32,
    multiply_f64: f64,
    multiply_complex32: Complex32,
    multiply_complex64: Complex64
);

/// # Safety
/// The blocks are valid, and that of `c` is exclusive.
unsafe fn multiply<T: Number>(call: &Call<T>) {
    let Call { scalars: [alpha, beta], a, b, c, conjugate } = call;
    let step = |n: usize| n as isize;
    // SAFETY: the caller's contract; the library accesses only the elements given by sizes and strides.
    unsafe {
        gemm::gemm(
            c.rows,
            c.columns,
            a.columns,
            c.at,
            step(c.column_step),
            step(c.row_step),
            *beta != T::ZERO,
            a.at,
            step(a.column_step),
            step(a.row_step),
            b.at,
            step(b.column_step),
            step(b.row_step),
            *beta,
            *alpha,
            false,
            conjugate[0],
            conjugate[1],
            Parallelism::Rayon(0),
        );
    }
}
