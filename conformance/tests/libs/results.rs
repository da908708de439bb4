//! Every call computes on a device what it computes on the host.

use super::each;
use onebuf::{
    Buffer, Complex32, Complex64, Device, Error, Hub, Queue, Result,
    libs::{Blas, Columns, Fft, Fft1d, Gemm, Number, Op, Sample, Solver, Square},
};
use onebuf_conformance::{Hardware, Random, compute_gpus, lacking, note, one_api};
use std::fmt::Debug;

const OPS: [Op; 3] = [Op::None, Op::Transpose, Op::Adjoint];

/// Numbers whose results are compared.
pub trait Checked: Number + Debug {
    const CLOSE: f64;
    fn of(re: f64, im: f64) -> Self;
    fn parts(self) -> [f64; 2];
}

macro_rules! checked {
    ($type:ty, $close:literal, |$re:ident, $im:ident| $of:expr, |$x:ident| $parts:expr) => {
        impl Checked for $type {
            const CLOSE: f64 = $close;
            fn of($re: f64, $im: f64) -> Self {
                $of
            }
            fn parts(self) -> [f64; 2] {
                let $x = self;
                $parts
            }
        }
    };
}
checked!(f32, 2e-4, |re, _im| re as f32, |x| [x.into(), 0.0]);
checked!(f64, 1e-10, |re, _im| re, |x| [x, 0.0]);
checked!(Complex32, 2e-4, |re, im| Complex32::new(re as f32, im as f32), |x| [
    x.re.into(),
    x.im.into()
]);
checked!(Complex64, 1e-10, |re, im| Complex64::new(re, im), |x| [x.re, x.im]);

fn random<T: Checked>(seed: u64, len: usize) -> Vec<T> {
    let mut words = Random::new(seed);
    let mut part = || f64::from(words.word()) / f64::from(u32::MAX) * 2.0 - 1.0;
    (0..len).map(|_| T::of(part(), part())).collect()
}

/// A device and the host, each with a queue.
struct Pair<'a> {
    hub: &'a Hub,
    device: &'a Device,
    queues: [Queue; 2],
}

impl<'a> Pair<'a> {
    fn new(device: &'a Device) -> Result<Self> {
        let hub = device.hub();
        Ok(Pair { hub, device, queues: [device.queue()?, hub.host().queue()?] })
    }

    /// Buffers with the same contents on both, in separate memory.
    fn twice<T: Checked>(&self, contents: &[T]) -> Result<[Buffer<T>; 2]> {
        let make = |device: &Device| {
            let buffer = self.hub.buffer::<T>(contents.len()).shared_with([device]).build()?;
            buffer.write(contents)?;
            Ok::<_, onebuf::Error>(buffer)
        };
        Ok([make(self.device)?, make(&self.hub.host())?])
    }
}

fn assert_near<T: Checked>([found, wanted]: &[Buffer<T>; 2], scale: f64, what: &str) -> Result<()> {
    for (i, (found, wanted)) in found.to_vec()?.iter().zip(wanted.to_vec()?).enumerate() {
        let ([a, b], [c, d]) = (found.parts(), wanted.parts());
        let near = (a - c).hypot(b - d) <= T::CLOSE * scale;
        assert!(near, "{what}: element {i} is {found:?}, the host has {wanted:?}");
    }
    Ok(())
}

fn products<T: Checked>(device: &Device, seed: u64, largest: usize) -> Result<()> {
    let pair = Pair::new(device)?;
    for round in 0..9usize {
        let [m, n, k] = [largest, largest / 2 + round, largest / 3 + 1];
        let (op_a, op_b) = (OPS[round % 3], OPS[round / 3]);
        let rows = |op, rows, columns| if op == Op::None { rows } else { columns };
        let lds = [rows(op_a, m, k) + round % 2, rows(op_b, k, n) + round % 3, m + round % 2];
        let columns = [rows(op_a, k, m), rows(op_b, n, k), n];
        let make = |i: usize| pair.twice(&random::<T>(seed + i as u64, lds[i] * columns[i]));
        let (a, b, c) = (make(0)?, make(1)?, make(2)?);
        let beta = if round % 2 == 0 { T::of(0.0, 0.0) } else { T::of(-0.5, 0.25) };
        let gemm = Gemm::new(m, n, k).a(op_a).b(op_b).lda(lds[0]).ldb(lds[1]).ldc(lds[2]);
        let gemm = gemm.alpha(T::of(1.5, -2.0)).beta(beta);
        for (i, queue) in pair.queues.iter().enumerate() {
            let (x, y, mut z) = (a[i].read_on(queue)?, b[i].read_on(queue)?, c[i].write_on(queue)?);
            Blas::on(queue)?.gemm(&gemm, &x, &y, &mut z)?;
        }
        assert_near(&c, 4.0 + k as f64, &format!("{gemm:?}"))?;
    }
    Ok(())
}

fn transforms<T: Checked + Sample>(device: &Device, seed: u64, longest: usize) -> Result<()> {
    let pair = Pair::new(device)?;
    for (len, batch) in [(1, 2), (8, 3), (30, 2), (longest, 5)] {
        for plan in [Fft1d::forward(len, batch), Fft1d::inverse(len, batch)] {
            let contents = random::<T>(seed, len * batch);
            let (x, y) = (pair.twice(&contents)?, pair.twice(&random::<T>(9, len * batch))?);
            for (i, queue) in pair.queues.iter().enumerate() {
                let fft = Fft::on(queue)?;
                fft.transform_into(&plan, &x[i].read_on(queue)?, &mut y[i].write_on(queue)?)?;
            }
            assert_near(&y, len as f64, &format!("{plan:?} elsewhere"))?;
            assert_eq!(x[0].to_vec()?, contents, "the input stays");
            for (i, queue) in pair.queues.iter().enumerate() {
                Fft::on(queue)?.transform(&plan, &mut x[i].write_on(queue)?)?;
            }
            assert_near(&x, len as f64, &format!("{plan:?} in place"))?;
        }
    }
    Ok(())
}

fn systems<T: Checked>(device: &Device, seed: u64, largest: usize) -> Result<()> {
    let pair = Pair::new(device)?;
    for (round, op) in OPS.into_iter().enumerate() {
        let (n, columns) = (largest - round, 2 + round);
        let (ld, ldb) = (n + round, n + round % 2);
        let mut matrix = random::<T>(seed, ld * n);
        // A dominant diagonal keeps rounding errors small on both sides.
        (0..n).for_each(|i| matrix[i * (ld + 1)] = T::of(n as f64, i as f64));
        let (a, b) = (pair.twice(&matrix)?, pair.twice(&random::<T>(seed + 1, ldb * columns))?);
        let inverse = pair.twice(&vec![T::of(3.0, 4.0); n * n])?;
        for (i, queue) in pair.queues.iter().enumerate() {
            let solver = Solver::on(queue)?;
            let lu = solver.factor(Square::new(n).ld(ld), &mut a[i].write_on(queue)?)?;
            let factors = a[i].read_on(queue)?;
            let (mut sides, shape) = (b[i].write_on(queue)?, Columns::new(columns).ld(ldb));
            solver.solve(&lu, op, &factors, shape, &mut sides)?;
            solver.invert(&lu, &factors, &mut inverse[i].write_on(queue)?)?;
        }
        assert_near(&b, 1.0, &format!("{op:?} {n}"))?;
        assert_near(&inverse, 1.0, &format!("the inverse of {n} rows"))?;
    }
    Ok(())
}

fn singular(device: &Device) -> Result<()> {
    let queue = device.queue()?;
    let a = device.hub().buffer::<f32>(9).shared_with([device]).build()?;
    a.write(&[1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 1.0, 1.0, 5.0])?;
    let outcome = Solver::on(&queue)?.factor(Square::new(3), &mut a.write_on(&queue)?);
    let said = outcome.unwrap_err().to_string();
    assert!(said.contains("3 x 3 matrix is singular: pivot 1 (counted from zero)"), "{said}");
    Ok(())
}

/// A transform on one queue, a product on a second queue of the same device: the view waits for the transform.
fn two_queues(device: &Device, len: usize) -> Result<()> {
    let (hub, first, second) = (device.hub(), device.queue()?, device.queue()?);
    let make = |len: usize| hub.buffer::<Complex32>(len).shared_with([device]).build();
    let (signal, weights, sum) = (make(len)?, make(len)?, make(1)?);
    signal.write(&vec![Complex32::ONE; len])?;
    weights.write(&vec![Complex32::ONE; len])?;
    for round in 1..=3 {
        Fft::on(&first)?.transform(&Fft1d::forward(len, 1), &mut signal.write_on(&first)?)?;
        Fft::on(&first)?.transform(&Fft1d::inverse(len, 1), &mut signal.write_on(&first)?)?;
        let (x, w) = (signal.read_on(&second)?, weights.read_on(&second)?);
        let mut y = sum.write_on(&second)?;
        Blas::on(&second)?.gemm(
            &Gemm::new(1, 1, len).alpha((1.0 / len as f32).into()),
            &x,
            &w,
            &mut y,
        )?;
        drop((x, w, y));
        let (found, wanted) = (sum.to_vec()?[0], (len as f32).powi(round));
        assert!((found - wanted).norm() <= wanted * 1e-4, "{found}, not {wanted}");
    }
    Ok(())
}

fn all(device: &Device, size: usize) -> Result<()> {
    products::<f32>(device, 1, size)?;
    products::<f64>(device, 2, size)?;
    products::<Complex32>(device, 3, size)?;
    products::<Complex64>(device, 4, size)?;
    transforms::<Complex32>(device, 5, size)?;
    transforms::<Complex64>(device, 6, size)?;
    systems::<f32>(device, 7, size)?;
    systems::<f64>(device, 8, size)?;
    systems::<Complex32>(device, 9, size)?;
    systems::<Complex64>(device, 10, size)?;
    singular(device)?;
    two_queues(device, size)
}

#[test]
fn the_stub_computes_what_the_host_does() {
    each(|api, builder| {
        let hub = builder.build().unwrap();
        for device in hub.select(api) {
            all(&device, 24).unwrap();
        }
        assert_eq!(hub.ledger().implied_bytes(), 0);
    });
}

/// Real libraries on a real GPU, if both are available.
#[test]
fn real_libraries_compute_what_the_host_does() {
    let _alone = one_api();
    let hub =
        onebuf::builder().without(["vulkan", "gl"]).verdicts(Default::default()).build().unwrap();
    for device in compute_gpus(&hub) {
        let queue = device.queue().unwrap();
        let opened = [Blas::on(&queue).err(), Fft::on(&queue).err(), Solver::on(&queue).err()];
        match opened.into_iter().flatten().next() {
            None => {}
            Some(missing @ Error::Unavailable { .. }) => {
                lacking(&[Hardware::Nvidia, Hardware::Amd], &format!("{device}: {missing}"));
                continue;
            }
            Some(error) => panic!("{device}: {error}"),
        }
        all(&device, 24).unwrap();
        all(&device, 257).unwrap();
        two_queues(&device, 1 << 12).unwrap();
        assert_eq!(hub.ledger().implied_bytes(), 0);
        note(&format!("{device}: products, transforms and systems agree with the host"));
    }
}
