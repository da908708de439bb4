//! Adaptive weights: a beam passes signals from its direction unchanged and suppresses everything else as far as
//! possible (Capon's beamformer, MVDR).
//!
//! ```text
//!   spectrum X of K channels ──gemm──► R = Xᴴ X / L ──LU──► R⁻¹ ──gemm──► R⁻¹ W ──scaled──► weights
//! ```
//!
//! The libraries of the device that forms beams solve it, or those of the host if that device has none; the calls are the same.

use crate::{
    Expected, Frame, Pipeline, Setup, Shape,
    setup::{double, single, worse},
};
use onebuf::{
    Buffer, Complex32, Complex64, Device, Error, Queue, ReadView, Result,
    libs::{Blas, Gemm, Op, Solver, Square},
};

/// Diagonal loading, as a share of the mean power. It keeps weights small if a beam looks slightly beside a source, and
/// makes single precision sufficient for the inverse.
const LOADING: f64 = 0.01;

/// Weights, and how they were computed.
pub struct Adapted {
    /// One beam after another.
    pub weights: Vec<Complex32>,
    /// The device that solved them.
    pub device: Device,
    /// The largest error of any weight, relative to its beam's largest.
    pub max_rel_error: f64,
}

/// The libraries, and their device.
struct Libraries {
    device: Device,
    queue: Queue,
    blas: Blas,
    solver: Solver,
}

impl Pipeline {
    /// Weights adapted to a frame of samples, checked against double precision.
    ///
    /// # Errors
    /// The drivers' errors; [`Error::Unavailable`] if a library is not installed, [`Error::InvalidArgument`] for
    /// silence.
    pub fn adapt(&self, frame: &Frame, samples: &[Complex32]) -> Result<Adapted> {
        frame.signal.write(samples)?;
        self.run_first(frame)?;
        let libraries = Libraries::near(&self.devices[1])?;
        let loaded = self.covariance(&libraries, frame)?;
        let weights = self.weights(&libraries, &loaded)?;
        let max_rel_error = off(&self.setup, samples, &weights);
        Ok(Adapted { weights, device: libraries.device, max_rel_error })
    }

    fn covariance(&self, at: &Libraries, frame: &Frame) -> Result<Buffer<Complex32>> {
        let (k, Shape { length, .. }) = (self.setup.used, self.setup.shape);
        let covariance = at.buffer(k * k)?;
        let product = Gemm::new(k, k, length).a(Op::Adjoint);
        let product = product.alpha(Complex32::new(1.0 / length as f32, 0.0));
        let multiply = |x: &ReadView<'_, Complex32>| {
            at.blas.gemm(&product, x, x, &mut covariance.write_on(&at.queue)?)
        };
        if at.device.index() == self.devices[1].index() {
            multiply(&frame.signal.read_on(&at.queue)?)?;
        } else {
            let mut spectrum = vec![Complex32::ZERO; k * length];
            frame.signal.read_range(..k * length, &mut spectrum)?;
            let there = at.buffer(k * length)?;
            there.write(&spectrum)?;
            multiply(&there.read_on(&at.queue)?)?;
        }
        let mut numbers = covariance.to_vec()?;
        load(&mut numbers, k)?;
        covariance.write(&numbers)?;
        Ok(covariance)
    }

    fn weights(&self, at: &Libraries, covariance: &Buffer<Complex32>) -> Result<Vec<Complex32>> {
        let (k, beams) = (self.setup.used, self.setup.shape.beams);
        let (inverse, steering) = (at.buffer(k * k)?, at.buffer(k * beams)?);
        let lu = at.solver.factor(Square::new(k), &mut covariance.write_on(&at.queue)?)?;
        let factors = covariance.read_on(&at.queue)?;
        at.solver.invert(&lu, &factors, &mut inverse.write_on(&at.queue)?)?;
        steering.write(&self.setup.weights)?;
        let out = at.buffer(k * beams)?;
        let (r, w) = (inverse.read_on(&at.queue)?, steering.read_on(&at.queue)?);
        at.blas.gemm(&Gemm::new(k, beams, k), &r, &w, &mut out.write_on(&at.queue)?)?;
        let solved: Vec<Complex64> = out.to_vec()?.into_iter().map(double).collect();
        Ok(scaled(&self.setup, &solved).into_iter().map(single).collect())
    }
}

impl Libraries {
    /// The device's own libraries; OpenCL and other devices have none, and CUDA's or HIP's may be missing: the host's are used there.
    fn near(device: &Device) -> Result<Self> {
        match Self::of(device) {
            Err(Error::Unsupported { .. } | Error::Unavailable { .. }) => {
                Self::of(&device.hub().host())
            }
            found => found,
        }
    }

    fn of(device: &Device) -> Result<Self> {
        let queue = device.queue()?;
        let (blas, solver) = (Blas::on(&queue)?, Solver::on(&queue)?);
        Ok(Self { device: device.clone(), queue, blas, solver })
    }

    fn buffer(&self, numbers: usize) -> Result<Buffer<Complex32>> {
        self.device.hub().buffer(numbers).shared_with([&self.device]).build()
    }
}

/// Adds to the diagonal.
fn load(covariance: &mut [Complex32], k: usize) -> Result<()> {
    let diagonal = || (0..k).map(|i| i * (k + 1));
    let mean = diagonal().map(|i| f64::from(covariance[i].re)).sum::<f64>() / k as f64;
    if mean.is_nan() || mean <= 0.0 {
        return Err(Error::invalid("weights for silence: there is nothing to adapt to"));
    }
    diagonal().for_each(|i| covariance[i].re += (LOADING * mean) as f32);
    Ok(())
}

/// Scales weights so that signals from a beam's direction are as loud as with the fixed weights.
fn scaled(setup: &Setup, solved: &[Complex64]) -> Vec<Complex64> {
    let k = setup.used;
    let beams = solved.chunks(k).zip(setup.weights.chunks(k));
    let beam = |(solved, steering): (&[Complex64], &[Complex32])| {
        let ahead = solved.iter().zip(steering).map(|(w, s)| w * double(*s).conj());
        let scale = k as f64 / ahead.sum::<Complex64>();
        solved.iter().map(move |w| w * scale).collect::<Vec<_>>()
    };
    beams.flat_map(beam).collect()
}

/// Computes the weights in double precision from the samples, and returns the deviation.
fn off(setup: &Setup, samples: &[Complex32], weights: &[Complex32]) -> f64 {
    let (k, length) = (setup.used, setup.shape.length);
    let spectrum = Expected::spectrum(setup, &samples[..k * length]);
    let channels: Vec<&[Complex64]> = spectrum.chunks(length).collect();
    let product = |i: usize, j: usize| {
        let terms = channels[i].iter().zip(channels[j]).map(|(x, y)| x.conj() * y);
        terms.sum::<Complex64>() / length as f64
    };
    let mut rows: Vec<Vec<Complex64>> =
        (0..k).map(|i| (0..k).map(|j| product(i, j)).collect()).collect();
    let mean = (0..k).map(|i| rows[i][i].re).sum::<f64>() / k as f64;
    for (i, row) in rows.iter_mut().enumerate() {
        row[i] += LOADING * mean;
        row.extend(setup.weights.iter().skip(i).step_by(k).map(|w| double(*w)));
    }
    let wanted = scaled(setup, &solve(rows, k));
    let beams = wanted.chunks(k).zip(weights.chunks(k)).map(|(wanted, found)| {
        let largest = wanted.iter().map(|w| w.norm()).fold(0.0, f64::max);
        let off = wanted.iter().zip(found).map(|(w, x)| (double(*x) - w).norm());
        off.fold(0.0, worse) / largest
    });
    beams.fold(0.0, worse)
}

/// Gaussian elimination of rows that have the right-hand sides appended. No pivoting: the matrix is a covariance, so
/// that no pivot is small. Returns the solutions one after another.
fn solve(mut rows: Vec<Vec<Complex64>>, k: usize) -> Vec<Complex64> {
    for step in 0..k {
        let pivot = rows[step].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(number, _)| *number != step) {
            let factor = row[step] / pivot[step];
            row.iter_mut().zip(&pivot).skip(step).for_each(|(x, p)| *x -= factor * p);
        }
    }
    let sides = rows.first().map_or(0, |row| row.len() - k);
    let solution =
        |side: usize| rows.iter().enumerate().map(move |(i, row)| row[k + side] / row[i]);
    (0..sides).flat_map(solution).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Interpolator, cable, phase, setup::noise};
    use std::f64::consts::TAU;

    fn setup() -> Setup {
        let shape = Shape { length: 64, channels: 12, beams: 4 };
        Setup::new(shape, Interpolator::new(3).unwrap()).of_channels(8)
    }

    /// A wave from a direction that no beam looks in, with noise.
    fn samples(from: f64) -> Vec<Complex32> {
        let wave = |at: usize| {
            let n = (at % 64) as f64 - cable(at / 64);
            single(phase(at / 64, from) * Complex64::cis(TAU * 0.125 * n))
        };
        let noise = noise(64 * 12).into_iter().enumerate();
        noise.map(|(at, x)| wave(at) + x * 0.05).collect()
    }

    fn adapted(device: &Device, setup: &Setup, samples: &[Complex32]) -> Result<Adapted> {
        let devices = [device.clone(), device.clone()];
        let pipeline = Pipeline::open(&devices, setup.clone())?;
        let builder = device.hub().buffer::<Complex32>(samples.len()).shared_with([device]);
        pipeline.adapt(&pipeline.frame(&builder)?, samples)
    }

    /// How loud a wave is in each beam.
    fn heard(weights: &[Complex32], from: f64) -> Vec<f64> {
        let beam = |weights: &[Complex32]| {
            let terms = weights.iter().enumerate().map(|(c, w)| double(*w) * phase(c, from));
            terms.sum::<Complex64>().norm()
        };
        weights.chunks(8).map(beam).collect()
    }

    #[test]
    fn what_comes_from_elsewhere_is_not_heard() {
        let (setup, from, hub) = (setup(), 0.1, onebuf::discover().unwrap());
        let found = adapted(&hub.host(), &setup, &samples(from)).unwrap();
        assert!(found.max_rel_error < 1e-3, "{}", found.max_rel_error);
        for beam in 0..4 {
            let ahead = crate::direction(beam, 4);
            assert!((heard(&found.weights, ahead)[beam] - 8.0).abs() < 1e-3, "as loud as before");
            let (now, before) = (heard(&found.weights, from), heard(&setup.weights, from));
            assert!(
                now[beam] < 0.1 && before[beam] > 0.5,
                "{beam}: {} {}",
                now[beam],
                before[beam]
            );
        }
    }

    #[test]
    fn wrong_weights_are_seen() {
        let (setup, samples) = (setup(), samples(0.1));
        let hub = onebuf::discover().unwrap();
        let mut found = adapted(&hub.host(), &setup, &samples).unwrap().weights;
        assert!(off(&setup, &samples, &setup.weights) > 0.1, "those that only look there");
        found[9].re += 0.1;
        assert!(off(&setup, &samples, &found) > 1e-2);
        found[9].re = f32::NAN;
        assert!(off(&setup, &samples, &found).is_nan());
    }

    #[test]
    fn every_device_adapts_and_silence_is_told() {
        let (setup, hub) = (setup(), onebuf::discover().unwrap());
        for device in hub.select("opencl") {
            let found = adapted(&device, &setup, &samples(0.1)).unwrap();
            assert!(found.max_rel_error < 1e-3, "{device}: {}", found.max_rel_error);
            assert_eq!(found.device.id(), "host", "OpenCL has no such library");
        }
        let silence = vec![Complex32::ZERO; 64 * 12];
        let why = adapted(&hub.host(), &setup, &silence).err().unwrap();
        assert!(why.to_string().contains("silence"), "{why}");
    }
}
