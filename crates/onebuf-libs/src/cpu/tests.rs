//! The CPU implementation against simple reference code, and every call that must be refused.

use crate::{Blas, Columns, Fft, Fft1d, Gemm, Number, Op, Sample, Solver, Square};
use onebuf_core::{Buffer, Complex32, Complex64, Hub, Queue};
use onebuf_hal::{Access, Error, Result};
use std::{f64::consts::TAU, fmt::Debug};

const OPS: [Op; 3] = [Op::None, Op::Transpose, Op::Adjoint];

/// Deterministic pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn up_to(&mut self, most: usize) -> usize {
        1 + (self.next() >> 33) as usize % most
    }

    fn vec<T: Plain>(&mut self, len: usize) -> Vec<T> {
        let mut part = || (self.next() >> 40) as f64 / (1u64 << 23) as f64 - 1.0;
        (0..len).map(|_| T::of(Complex64::new(part(), part()))).collect()
    }
}

/// Element types as the reference computes with them.
trait Plain: Number + Debug {
    const CLOSE: f64;
    fn of(z: Complex64) -> Self;
    fn wide(self) -> Complex64;
}

macro_rules! plain {
    ($type:ty, $close:literal, |$z:ident| $of:expr, |$x:ident| $wide:expr) => {
        impl Plain for $type {
            const CLOSE: f64 = $close;
            fn of($z: Complex64) -> Self {
                $of
            }
            fn wide(self) -> Complex64 {
                let $x = self;
                $wide
            }
        }
    };
}
plain!(f32, 1e-4, |z| z.re as f32, |x| f64::from(x).into());
plain!(f64, 1e-11, |z| z.re, |x| x.into());
plain!(Complex32, 1e-4, |z| Complex32::new(z.re as f32, z.im as f32), |x| Complex64::new(
    x.re.into(),
    x.im.into()
));
plain!(Complex64, 1e-11, |z| z, |x| x);

fn host() -> Hub {
    let builder = onebuf::builder().only(["host"]);
    builder.verdicts(Default::default()).build().unwrap()
}

fn filled<T: Plain>(hub: &Hub, contents: &[T]) -> Buffer<T> {
    let buffer = hub.buffer::<T>(contents.len()).build().unwrap();
    buffer.write(contents).unwrap();
    buffer
}

fn assert_near<T: Plain>(found: &[T], wanted: &[Complex64], scale: f64, what: &str) {
    assert_eq!(found.len(), wanted.len());
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let apart = (found.wide() - wanted).norm();
        assert!(apart <= T::CLOSE * scale, "{what}: element {i} is {found:?}, not {wanted}");
    }
}

fn element<T: Plain>(op: Op, x: &[T], ld: usize, row: usize, column: usize) -> Complex64 {
    match op {
        Op::None => x[row + column * ld].wide(),
        Op::Transpose => x[column + row * ld].wide(),
        Op::Adjoint => x[column + row * ld].wide().conj(),
    }
}

fn products<T: Plain>(seed: u64) {
    let (hub, mut random) = (host(), Random(seed));
    let queue = hub.host().queue().unwrap();
    let blas = Blas::on(&queue).unwrap();
    for round in 0..36 {
        let [m, n, k] = [0; 3].map(|_| random.up_to(if round < 18 { 9 } else { 70 }));
        let (op_a, op_b) = (OPS[round % 3], OPS[round / 3 % 3]);
        let stored =
            |op, rows, columns| if op == Op::None { (rows, columns) } else { (columns, rows) };
        let ((rows_a, columns_a), (rows_b, columns_b)) = (stored(op_a, m, k), stored(op_b, k, n));
        let [lda, ldb, ldc] = [rows_a, rows_b, m].map(|rows| rows + random.up_to(4) - 1);
        let a: Vec<T> = random.vec(lda * columns_a);
        let (b, mut c) = (random.vec::<T>(ldb * columns_b), random.vec::<T>(ldc * n));
        let [alpha, beta] = random.vec::<T>(2)[..] else { unreachable!() };
        let beta = if round % 4 == 0 { T::of(0.0.into()) } else { beta };
        if round % 4 == 0 {
            c.fill(T::of(Complex64::new(f64::NAN, f64::NAN))); // must not be read
        }
        let what = format!("{op_a:?} {op_b:?} {m} {n} {k} by {lda} {ldb} {ldc}");
        let wanted: Vec<_> = (0..ldc * n)
            .map(|i| match (i % ldc, i / ldc) {
                (row, _) if row >= m => c[i].wide(), // padding between columns is unchanged
                (row, column) => {
                    let product =
                        |l| element(op_a, &a, lda, row, l) * element(op_b, &b, ldb, l, column);
                    let sum: Complex64 = (0..k).map(product).sum();
                    let old = if beta == T::of(0.0.into()) {
                        0.0.into()
                    } else {
                        beta.wide() * c[i].wide()
                    };
                    alpha.wide() * sum + old
                }
            })
            .collect();
        let (a, b, target) = (filled(&hub, &a), filled(&hub, &b), filled(&hub, &c));
        let gemm = Gemm::new(m, n, k).a(op_a).b(op_b).lda(lda).ldb(ldb).ldc(ldc);
        let (x, y) = (a.read_on(&queue).unwrap(), b.read_on(&queue).unwrap());
        let mut z = target.write_on(&queue).unwrap();
        blas.gemm(&gemm.alpha(alpha).beta(beta), &x, &y, &mut z).unwrap();
        drop(z);
        let (mut found, mut wanted) = (target.to_vec().unwrap(), wanted);
        for i in (0..ldc * n).filter(|i| i % ldc >= m) {
            assert!(found[i] == c[i] || !c[i].wide().re.is_finite(), "{what}: between columns");
            (found[i], wanted[i]) = (T::of(0.0.into()), 0.0.into());
        }
        assert_near(&found, &wanted, 4.0 + k as f64, &what);
    }
}

#[test]
fn products_are_those_of_the_definition() {
    products::<f32>(1);
    products::<f64>(2);
    products::<Complex32>(3);
    products::<Complex64>(4);
}

#[test]
fn a_packed_product_takes_a_write_view_as_input_too() {
    let hub = host();
    let queue = hub.host().queue().unwrap();
    let (a, b, c) =
        (filled(&hub, &[1f32, 2.0]), filled(&hub, &[3f32, 4.0]), filled(&hub, &[0f32; 4]));
    let (x, y) = (a.write_on(&queue).unwrap(), b.read_on(&queue).unwrap());
    let mut z = c.write_on(&queue).unwrap();
    Blas::on(&queue).unwrap().gemm(&Gemm::new(2, 2, 1), &x, &y, &mut z).unwrap();
    drop(z);
    assert_eq!(c.to_vec().unwrap(), [3.0, 6.0, 4.0, 8.0]);
}

fn transforms<T: Plain + Sample>(seed: u64) {
    let (hub, mut random) = (host(), Random(seed));
    let queue = hub.host().queue().unwrap();
    let fft = Fft::on(&queue).unwrap();
    for (len, batch) in [(1, 3), (2, 1), (3, 5), (8, 2), (30, 3), (64, 1), (97, 2)] {
        for (plan, sign) in [(Fft1d::forward(len, batch), -1.0), (Fft1d::inverse(len, batch), 1.0)]
        {
            let x: Vec<T> = random.vec(len * batch);
            let wanted: Vec<_> = (0..len * batch)
                .map(|i| {
                    let (start, k) = (i / len * len, i % len);
                    let turn = |j: usize| {
                        Complex64::from_polar(1.0, sign * TAU * (j * k % len) as f64 / len as f64)
                    };
                    (0..len).map(|j| x[start + j].wide() * turn(j)).sum()
                })
                .collect();
            let (from, to) = (filled(&hub, &x), filled(&hub, &random.vec::<T>(len * batch + 3)));
            let end = to.to_vec().unwrap()[len * batch..].to_vec();
            let view = from.read_on(&queue).unwrap();
            fft.transform_into(&plan, &view, &mut to.write_on(&queue).unwrap()).unwrap();
            drop(view);
            assert_eq!(from.to_vec().unwrap(), x, "the input stays");
            let found = to.to_vec().unwrap();
            assert_near(&found[..len * batch], &wanted, len as f64, &format!("{plan:?}"));
            assert_eq!(found[len * batch..], end, "what lies behind stays");
            fft.transform(&plan, &mut from.write_on(&queue).unwrap()).unwrap();
            assert_near(&from.to_vec().unwrap(), &wanted, len as f64, "in place");
        }
    }
}

#[test]
fn transforms_are_those_of_the_definition() {
    transforms::<Complex32>(5);
    transforms::<Complex64>(6);
}

/// Enough samples to be divided among threads, in uneven shares.
#[test]
fn large_batches_come_back() {
    let (hub, mut random) = (host(), Random(7));
    let queue = hub.host().queue().unwrap();
    let fft = Fft::on(&queue).unwrap();
    let (len, batch) = (24, 8193);
    let x: Vec<Complex32> = random.vec(len * batch);
    let buffer = filled(&hub, &x);
    let mut view = buffer.write_on(&queue).unwrap();
    fft.transform(&Fft1d::forward(len, batch), &mut view).unwrap();
    fft.transform(&Fft1d::inverse(len, batch), &mut view).unwrap();
    drop(view);
    let wanted: Vec<_> = x.iter().map(|x| x.wide() * len as f64).collect();
    assert_near(&buffer.to_vec().unwrap(), &wanted, len as f64, "there and back");
}

fn systems<T: Plain>(seed: u64) {
    let (hub, mut random) = (host(), Random(seed));
    let queue = hub.host().queue().unwrap();
    let solver = Solver::on(&queue).unwrap();
    for round in 0..24 {
        let n = [1, 2, 3, 15, 16, 17, 33, 40, 65, 100, 131, 70][round % 12];
        let (op, columns) = (OPS[round % 3], random.up_to(5));
        let (ld, ldb) = (n + round % 2 * 3, n + round % 3);
        let a: Vec<T> = random.vec(ld * n);
        let x: Vec<T> = random.vec(ldb * columns);
        let mut b = x.clone();
        for (i, b) in b.iter_mut().enumerate().filter(|(i, _)| i % ldb < n) {
            let product = |j| element(op, &a, ld, i % ldb, j) * x[i / ldb * ldb + j].wide();
            *b = T::of((0..n).map(product).sum());
        }
        let (matrix, right) = (filled(&hub, &a), filled(&hub, &b));
        let lu =
            solver.factor(Square::new(n).ld(ld), &mut matrix.write_on(&queue).unwrap()).unwrap();
        let (view, mut solution) =
            (matrix.read_on(&queue).unwrap(), right.write_on(&queue).unwrap());
        let sides = Columns::new(columns).ld(ldb);
        solver.solve(&lu, op, &view, sides, &mut solution).unwrap();
        drop((view, solution));
        let wanted: Vec<_> = x.iter().map(|x| x.wide()).collect();
        // A random matrix of 131 rows loses two or three digits.
        assert_near(&right.to_vec().unwrap(), &wanted, 400.0, &format!("{op:?} {n} by {ld}"));
        let factors = matrix.to_vec().unwrap();
        assert!((0..ld * n).filter(|i| i % ld >= n).all(|i| factors[i] == a[i]), "between columns");
        inverse(&hub, &solver, &queue, &lu, (&matrix, &a, n, ld));
    }
}

fn inverse<T: Plain>(
    hub: &Hub,
    solver: &Solver,
    queue: &Queue,
    lu: &crate::Lu<T>,
    (matrix, a, n, ld): (&Buffer<T>, &[T], usize, usize),
) {
    let inverse = filled(hub, &vec![T::of(7.0.into()); n * n]);
    let view = matrix.read_on(queue).unwrap();
    solver.invert(lu, &view, &mut inverse.write_on(queue).unwrap()).unwrap();
    let inverse = inverse.to_vec().unwrap();
    for i in 0..n * n {
        let product = |j: usize| a[i % n + j * ld].wide() * inverse[j + i / n * n].wide();
        let (sum, wanted): (Complex64, _) =
            ((0..n).map(product).sum(), f64::from(u8::from(i % n == i / n)));
        assert!(
            (sum - wanted).norm() < 2000.0 * T::CLOSE,
            "{n}: element {i} of A inverse(A) is {sum}"
        );
    }
}

#[test]
fn systems_are_solved() {
    systems::<f32>(8);
    systems::<f64>(9);
    systems::<Complex32>(10);
    systems::<Complex64>(11);
}

#[test]
fn singular_matrices_are_named() {
    let hub = host();
    let queue = hub.host().queue().unwrap();
    let solver = Solver::on(&queue).unwrap();
    let factor = |n: usize, a: &[f32]| {
        let matrix = filled(&hub, a);
        let mut view = matrix.write_on(&queue).unwrap();
        solver.factor(Square::new(n), &mut view).map(drop).map_err(|e| e.to_string())
    };
    factor(3, &[0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 4.0, 0.0]).unwrap(); // needs row exchanges only
    assert!(factor(1, &[0.0]).unwrap_err().contains("1 x 1 matrix is singular: pivot 0"));
    let ones = factor(40, &[1.0; 1600]).unwrap_err();
    assert!(ones.contains("pivot 1 (counted"), "{ones}");
    let mut last = [0.0; 40 * 40];
    (0..39).for_each(|i| last[i * 41] = 1.0);
    let last = factor(40, &last).unwrap_err();
    assert!(last.contains("pivot 39 (counted"), "{last}");
}

/// Asserts that a call fails as an invalid argument with this message.
fn refused(outcome: Result<()>, words: &str) {
    match outcome {
        Err(Error::InvalidArgument(said)) => assert!(said.contains(words), "{said}, not {words}"),
        other => panic!("{other:?}, not {words}"),
    }
}

#[test]
fn wrong_products_are_refused() {
    let hub = host();
    let (queue, other) = (hub.host().queue().unwrap(), hub.host().queue().unwrap());
    let blas = Blas::on(&queue).unwrap();
    let make = |len: usize| filled(&hub, &vec![1f32; len]);
    let (a, b, c) = (make(6), make(12), make(8));
    let (x, y) = (a.read_on(&queue).unwrap(), b.read_on(&queue).unwrap());
    let mut z = c.write_on(&queue).unwrap();
    let good = Gemm::new(2, 4, 3);
    blas.gemm(&good, &x, &y, &mut z).unwrap();
    for (gemm, words) in [
        (Gemm::new(0, 4, 3), "`a`: 0 x 3 is empty"),
        (Gemm::new(2, 0, 3), "`b`: 3 x 0 is empty"),
        (Gemm::new(2, 4, 0), "`a`: 2 x 0 is empty"),
        (good.lda(1), "`a`: a leading dimension of 1 is less than the 2 rows"),
        (good.a(Op::Transpose).lda(2), "`a`: a leading dimension of 2 is less than the 3 rows"),
        (good.ldb(2), "`b`: a leading dimension of 2"),
        (good.ldc(1), "`c`: a leading dimension of 1"),
        (good.lda(3), "`a`: the call needs 8 elements, the view has 6"),
        (Gemm::new(2, 5, 3), "`b`: the call needs 15 elements, the view has 12"),
        (good.ldc(3), "`c`: the call needs 11 elements, the view has 8"),
        (Gemm::new(1 << 31, 1, 1), "does not fit 32 bits"),
        (good.ldc(usize::MAX), "does not fit 32 bits"),
    ] {
        refused(blas.gemm(&gemm, &x, &y, &mut z), words);
    }
    drop((x, y, z));
    let (x, y) = (a.read_on(&other).unwrap(), b.read_on(&queue).unwrap());
    let mut z = c.write_on(&queue).unwrap();
    refused(blas.gemm(&good, &x, &y, &mut z), "`a`: the view was taken on another queue");
    drop((x, z));
    let (x, mut z) = (a.read_on(&queue).unwrap(), c.write_on(&other).unwrap());
    refused(blas.gemm(&good, &x, &y, &mut z), "`c`: the view was taken on another queue");
    drop((x, y, z));
    assert!(c.to_vec().unwrap().iter().all(|c| *c == 3.0), "as after the one good product");
}

#[test]
fn buffers_that_kernels_may_not_write_are_refused() {
    let hub = host();
    let queue = hub.host().queue().unwrap();
    let made_for = |access| hub.buffer::<Complex32>(8).access(access).build().unwrap();
    let (read_only, write_only) = (made_for(Access::Read), made_for(Access::Write));
    let fft = Fft::on(&queue).unwrap();
    let plan = Fft1d::forward(8, 1);
    // Either taking the view or the call must fail.
    let in_place = |x: &Buffer<Complex32>| fft.transform(&plan, &mut x.write_on(&queue)?);
    assert!(in_place(&read_only).is_err());
    refused(in_place(&write_only), "`x`: the buffer was created for");
}

#[test]
fn wrong_transforms_are_refused() {
    let hub = host();
    let (queue, other) = (hub.host().queue().unwrap(), hub.host().queue().unwrap());
    let fft = Fft::on(&queue).unwrap();
    let (x, y) = (filled(&hub, &[Complex32::ONE; 8]), filled(&hub, &[Complex32::ONE; 4]));
    let mut view = x.write_on(&queue).unwrap();
    for (plan, words) in [
        (Fft1d::forward(0, 1), "1 transforms of 0 samples"),
        (Fft1d::forward(8, 0), "0 transforms of 8 samples"),
        (Fft1d::forward(3, 3), "`x`: the call needs 9 elements, the view has 8"),
        (Fft1d::inverse(1 << 31, 1), "does not fit 32 bits"),
        (Fft1d::inverse(1, 1 << 40), "does not fit 32 bits"),
    ] {
        refused(fft.transform(&plan, &mut view), words);
    }
    let (short, plan) = (y.read_on(&queue).unwrap(), Fft1d::forward(8, 1));
    refused(fft.transform_into(&plan, &short, &mut view), "`from`: the call needs 8");
    drop((short, view));
    let mut foreign = x.write_on(&other).unwrap();
    refused(fft.transform(&plan, &mut foreign), "`x`: the view was taken on another queue");
    drop(foreign);
    let (long, mut view) = (x.read_on(&queue).unwrap(), y.write_on(&queue).unwrap());
    refused(fft.transform_into(&plan, &long, &mut view), "`to`: the call needs 8");
}

#[test]
fn wrong_systems_are_refused() {
    let (hub, stranger) = (host(), host());
    let queue = hub.host().queue().unwrap();
    let solver = Solver::on(&queue).unwrap();
    let identity = [1f32, 0.0, 0.0, 1.0];
    let (a, b) = (filled(&hub, &identity), filled(&hub, &[1f32; 6]));
    let mut view = a.write_on(&queue).unwrap();
    for (square, words) in [
        (Square::new(0), "`a`: 0 x 0 is empty"),
        (Square::new(3), "`a`: the call needs 9 elements, the view has 4"),
        (Square::new(2).ld(1), "`a`: a leading dimension of 1"),
        (Square::new(2).ld(4), "`a`: the call needs 6 elements"),
        (Square::new(1 << 31), "does not fit 32 bits"),
    ] {
        refused(solver.factor(square, &mut view).map(drop), words);
    }
    let lu = solver.factor(Square::new(2), &mut view).unwrap();
    drop(view);
    let (view, mut sides) = (a.read_on(&queue).unwrap(), b.write_on(&queue).unwrap());
    for (columns, words) in [
        (Columns::new(0), "`b`: 2 x 0 is empty"),
        (Columns::new(4), "`b`: the call needs 8 elements, the view has 6"),
        (Columns::new(2).ld(1), "`b`: a leading dimension of 1"),
        (Columns::new(2).ld(5), "`b`: the call needs 7 elements"),
    ] {
        refused(solver.solve(&lu, Op::None, &view, columns, &mut sides), words);
    }
    drop(sides);
    let small = filled(&hub, &[0f32; 3]);
    let mut small = small.write_on(&queue).unwrap();
    refused(solver.invert(&lu, &view, &mut small), "`inverse`: the call needs 4 elements");
    let theirs = stranger.host().queue().unwrap();
    let (a, b) = (filled(&stranger, &identity), filled(&stranger, &[1f32; 2]));
    let (view, mut sides) = (a.read_on(&theirs).unwrap(), b.write_on(&theirs).unwrap());
    let outcome =
        Solver::on(&theirs).unwrap().solve(&lu, Op::None, &view, Columns::new(1), &mut sides);
    refused(outcome, "factored on host, but the queue is of host");
}
