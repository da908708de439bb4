//! References for clFFT and CLBlast, computed on the CPU in double precision.

use onebuf::Complex32;

/// Samples between -1 and 1.
pub fn samples(seed: u64, n: usize) -> Vec<Complex32> {
    let words = onebuf_conformance::random_words(seed, 2 * n);
    let real = |word: u32| word as f32 / (1u64 << 31) as f32 - 1.0;
    words.chunks(2).map(|pair| Complex32::new(real(pair[0]), real(pair[1]))).collect()
}

/// The transform of a power of two points, not normalised, by recursive halving.
pub fn fft(x: &[Complex32]) -> Vec<Complex32> {
    let wide: Vec<_> = x.iter().map(|x| (f64::from(x.re), f64::from(x.im))).collect();
    halves(&wide).into_iter().map(|(re, im)| Complex32::new(re as f32, im as f32)).collect()
}

fn halves(x: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let n = x.len();
    if n == 1 {
        return x.to_vec();
    }
    let part = |odd| halves(&x.iter().skip(odd).step_by(2).copied().collect::<Vec<_>>());
    let (even, odd) = (part(0), part(1));
    let turned = odd.iter().enumerate().map(|(k, &(re, im))| {
        let (sin, cos) = (-std::f64::consts::TAU * k as f64 / n as f64).sin_cos();
        (re * cos - im * sin, re * sin + im * cos)
    });
    let pairs: Vec<_> = even.iter().copied().zip(turned).collect();
    let sums = pairs.iter().map(|&(a, b)| (a.0 + b.0, a.1 + b.1));
    let differences = pairs.iter().map(|&(a, b)| (a.0 - b.0, a.1 - b.1));
    sums.chain(differences).collect()
}

/// The product of square matrices of `n` rows.
pub fn product(a: &[f32], b: &[f32], n: usize) -> Vec<f32> {
    let at = |i: usize| {
        let (row, column) = (i / n, i % n);
        (0..n).map(|k| f64::from(a[row * n + k]) * f64::from(b[k * n + column])).sum::<f64>() as f32
    };
    (0..n * n).map(at).collect()
}

/// Whole numbers small enough that every product and sum of them is exact.
pub fn small_numbers(seed: u64, n: usize) -> Vec<f32> {
    onebuf_conformance::random_words(seed, n).into_iter().map(|word| (word % 16) as f32).collect()
}

/// The largest distance, divided by the largest expected number.
pub fn relative_error(seen: &[Complex32], expected: &[Complex32]) -> f32 {
    assert_eq!(seen.len(), expected.len());
    let largest = expected.iter().map(|x| x.norm()).fold(0.0, f32::max);
    let apart = seen.iter().zip(expected).map(|(a, b)| (a - b).norm());
    // `f32::max` would ignore NaN.
    apart.fold(0.0, |most: f32, d| if d <= most { most } else { d }) / largest
}

/// The largest acceptable error of a single-precision transform; a misplaced sample is a thousand times more.
pub const FFT_ERROR: f32 = 1e-5;

#[test]
fn the_reference_is_the_sum_that_defines_it() {
    let x = samples(1, 16);
    let by_sum = |k: usize| {
        let term = |(i, x): (usize, &Complex32)| {
            let turn = -std::f64::consts::TAU * (i * k % 16) as f64 / 16.0;
            x * Complex32::new(turn.cos() as f32, turn.sin() as f32)
        };
        x.iter().enumerate().map(term).sum::<Complex32>()
    };
    let expected: Vec<_> = (0..16).map(by_sum).collect();
    assert!(relative_error(&fft(&x), &expected) < FFT_ERROR);
    assert!(relative_error(&x, &expected) > 0.1, "the control");
}
