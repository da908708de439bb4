//! Fractional delays: a Lagrange interpolator in Farrow structure.
//!
//! The value between two samples is that of the polynomial through the `order + 1` samples around it. Each of those
//! samples has a factor, its tap, which is a polynomial in the fraction `mu`. The Farrow structure evaluates these
//! polynomials, whose coefficients are constant, at the delay. It does so once per channel, because the delay is the
//! same for all samples of a frame.

use onebuf::Complex64;
use std::fmt::Write;

/// The polynomial: through four, five or six samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interpolator {
    order: usize,
}

/// The position of a delayed sample: the offset of its first tap (negative: before it), and the fraction behind the
/// middle tap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Offset from a sample to its first tap. Whole.
    pub shift: f32,
    /// From 0 to 1 for odd orders, from -1/2 to 1/2 for even ones: there the error is smallest.
    pub mu: f32,
}

impl Interpolator {
    /// The supported orders.
    pub const ORDERS: std::ops::RangeInclusive<usize> = 3..=5;

    /// The interpolator of this order.
    ///
    /// # Errors
    /// A message for an unsupported order.
    pub fn new(order: usize) -> Result<Self, String> {
        let (least, most) = (Self::ORDERS.start(), Self::ORDERS.end());
        match Self::ORDERS.contains(&order) {
            true => Ok(Self { order }),
            false => Err(format!("an interpolator of order {order}: from {least} to {most}")),
        }
    }

    /// The degree: number of taps minus one.
    pub fn order(self) -> usize {
        self.order
    }

    /// The positions of the taps relative to the middle one.
    fn nodes(self) -> impl Iterator<Item = f64> + Clone {
        let first = -((self.order / 2) as f64);
        (0..=self.order).map(move |tap| first + tap as f64)
    }

    /// The position of a sample that is delayed by this much.
    pub fn place(self, delay: f64) -> Place {
        let half = if self.order.is_multiple_of(2) { 0.5 } else { 0.0 };
        let whole = (half - delay).floor();
        let shift = whole - (self.order / 2) as f64;
        Place { shift: shift as f32, mu: (-delay - whole) as f32 }
    }

    /// Farrow's coefficients: for each tap those of its polynomial in `mu`, the constant first.
    pub fn coefficients(self) -> Vec<Vec<f64>> {
        self.nodes().map(|own| self.polynomial(own)).collect()
    }

    /// One at its own tap and zero at the others.
    fn polynomial(self, own: f64) -> Vec<f64> {
        let mut product = vec![1.0];
        for other in self.nodes().filter(|&other| other != own) {
            let scale = 1.0 / (own - other);
            let mut next = vec![0.0; product.len() + 1];
            for (power, factor) in product.iter().enumerate() {
                next[power] -= factor * other * scale;
                next[power + 1] += factor * scale;
            }
            product = next;
        }
        product
    }

    /// The factors of the taps at a fraction.
    pub fn taps(self, mu: f64) -> Vec<f64> {
        let at = |polynomial: Vec<f64>| polynomial.iter().rev().fold(0.0, |sum, c| sum * mu + c);
        self.coefficients().into_iter().map(at).collect()
    }

    /// Upper bound of the error (Lagrange's remainder) for a signal of magnitude one at this many radians per sample.
    pub fn error_bound(self, mu: f64, radians: f64) -> f64 {
        let product: f64 = self.nodes().map(|node| (mu - node).abs()).product();
        let factorial: f64 = (1..=self.order + 1).map(|n| n as f64).product();
        product * radians.powi(self.order as i32 + 1) / factorial
    }

    /// Delays a channel's samples in double precision. The channel is zero before its first and after its last sample.
    pub fn delayed(self, place: Place, channel: &[Complex64]) -> Vec<Complex64> {
        let (taps, shift) = (self.taps(place.mu.into()), place.shift as isize);
        let sample = |number: usize| {
            let tap = |(tap, factor): (usize, &f64)| {
                let at = (number + tap).checked_add_signed(shift)?;
                Some(channel.get(at)? * factor)
            };
            taps.iter().enumerate().filter_map(tap).sum()
        };
        (0..channel.len()).map(sample).collect()
    }

    /// The taps as C statements by Horner's rule: `h[0] = …;` of `mu`.
    pub fn statements(self) -> String {
        let mut text = format!("    float h[{}];\n", self.order + 1);
        for (tap, polynomial) in self.coefficients().into_iter().enumerate() {
            let mut powers = polynomial.iter().rev().map(|&factor| factor as f32);
            let highest = format!("{:?}f", powers.next().unwrap_or(0.0));
            let value = powers.fold(highest, |sum, factor| format!("({sum}) * mu + {factor:?}f"));
            let _ = writeln!(text, "    h[{tap}] = {value};");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    fn all() -> impl Iterator<Item = Interpolator> {
        Interpolator::ORDERS.map(|order| Interpolator::new(order).unwrap())
    }

    fn tone(radians: f64, delay: f64, samples: usize) -> Vec<Complex64> {
        (0..samples).map(|n| Complex64::cis(radians * (n as f64 - delay))).collect()
    }

    #[test]
    fn other_orders_are_refused() {
        assert!(Interpolator::new(2).is_err_and(|why| why.contains("from 3 to 5")));
        assert!(Interpolator::new(6).is_err());
    }

    #[test]
    fn whole_delays_move_samples_and_change_none() {
        let channel: Vec<Complex64> = (1..9).map(|n| Complex64::new(n.into(), -1.0)).collect();
        for with in all() {
            let moved = with.delayed(with.place(2.0), &channel);
            assert_eq!(moved[..2], [Complex64::ZERO; 2], "{with:?}: silence before the first");
            assert_eq!(moved[2..], channel[..6], "{with:?}");
            let ahead = with.delayed(with.place(-3.0), &channel);
            assert_eq!((&ahead[..5], ahead[7]), (&channel[3..], Complex64::ZERO), "{with:?}");
        }
    }

    /// A delayed tone is known exactly, and the interpolator's error is below Lagrange's remainder. A delay that is off
    /// by a twentieth of a sample exceeds it.
    #[test]
    fn tones_are_delayed_within_the_known_error() {
        for with in all() {
            for delay in [0.25, 0.5, 1.75, -2.4, 5.013] {
                let (place, radians) = (with.place(delay), TAU * 0.05);
                let found = with.delayed(place, &tone(radians, 0.0, 64));
                let worst = |delay| {
                    let wanted = tone(radians, delay, 64);
                    let inside = found.iter().zip(&wanted).skip(16).take(32);
                    inside.map(|(found, wanted)| (found - wanted).norm()).fold(0.0, f64::max)
                };
                // The fraction has single precision.
                let bound = with.error_bound(place.mu.into(), radians) + 1e-7;
                assert!(worst(delay) <= bound, "{with:?}, {delay}: {} {bound}", worst(delay));
                assert!(worst(delay + 0.05) > 4.0 * bound, "{with:?}, {delay}");
            }
        }
    }

    #[test]
    fn a_higher_order_is_better() {
        let error = |with: Interpolator| with.error_bound(with.place(0.5).mu.into(), 0.5);
        assert!(all().map(error).is_sorted_by(|a, b| a > b));
    }

    #[test]
    fn kernels_have_the_same_numbers() {
        let text = Interpolator::new(3).unwrap().statements();
        let first = "h[0] = (((-0.16666667f) * mu + 0.5f) * mu + -0.33333334f) * mu + ";
        assert!(text.contains(first), "{text}");
        assert_eq!(text.matches("h[").count(), 5);
    }
}
