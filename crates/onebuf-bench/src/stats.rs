//! Medians and their confidence intervals.

/// The median; NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// A confidence interval of at least 95 % for the median of the distribution that the values come from.
///
/// Both ends are values themselves, at equal distance from either end of the sorted list. Each value is below the true
/// median with probability one half, whatever the distribution, so the binomial distribution gives the distance. A
/// bootstrap would need a random generator and gives too narrow intervals for few values; this method needs no
/// assumption about the noise, which is never normal on a shared machine. With fewer than six values even the outermost
/// two are not far enough apart, and there is no interval.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let sorted = sorted(values);
    let rank = rank(sorted.len())?;
    Some((sorted[rank], sorted[sorted.len() - 1 - rank]))
}

/// How many values at each end may be left out.
fn rank(n: usize) -> Option<usize> {
    // The probability that k of n values lie below, in logarithms, because 2^-n underflows for large n.
    let mut chance = -(n as f64) * std::f64::consts::LN_2;
    let (mut sum, mut rank) = (0.0, None);
    for k in 0..n / 2 {
        sum += chance.exp();
        if sum > 0.025 {
            break;
        }
        rank = Some(k);
        chance += ((n - k) as f64 / (k + 1) as f64).ln();
    }
    rank
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::{median, median_interval, rank};

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    /// From printed tables of the sign test's 95 % interval, which count from one.
    #[test]
    fn ranks_are_those_of_the_tables() {
        let table = [(5, None), (6, Some(1)), (9, Some(2)), (15, Some(4)), (20, Some(6))];
        for (n, counted) in table.into_iter().chain([(50, Some(18)), (100, Some(40))]) {
            assert_eq!(rank(n).map(|rank| rank + 1), counted, "{n}");
        }
        // Too many for 2^-n as a floating-point number; computed with exact integers.
        assert_eq!(rank(10_000), Some(4901));
    }

    #[test]
    fn the_interval_is_of_the_values() {
        let values: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        assert_eq!(median_interval(&values), Some((6.0, 15.0)));
        assert_eq!(median_interval(&values[..5]), None);
    }
}
