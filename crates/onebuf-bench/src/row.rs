//! The reported results: one row per benchmark.

use crate::{abba::Compared, solo::Alone};
use serde::{Serialize, Serializer};
use std::fmt;

/// The unit of a row's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// 10⁹ bytes per second, for operations that move this many bytes.
    GbPerS(u64),
}

impl Unit {
    fn of_ns(self, ns: f64) -> f64 {
        match self {
            Unit::Ns => ns,
            Unit::Us => ns / 1e3,
            Unit::Ms => ns / 1e6,
            Unit::GbPerS(bytes) => bytes as f64 / ns,
        }
    }

    /// The inverse of `of_ns`.
    fn to_ns(self, value: f64) -> f64 {
        match self {
            Unit::Ns => value,
            Unit::Us => value * 1e3,
            Unit::Ms => value * 1e6,
            Unit::GbPerS(bytes) => bytes as f64 / value,
        }
    }

    /// More is better, so a ratio of times is inverted.
    fn is_rate(self) -> bool {
        matches!(self, Unit::GbPerS(_))
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Unit::Ns => "ns",
            Unit::Us => "us",
            Unit::Ms => "ms",
            Unit::GbPerS(_) => "GB/s",
        })
    }
}

impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The bar of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// A limit for the value itself, in its unit.
    ValueAtMost(f64),
    /// A limit for ours over the baseline; less is better.
    RatioAtMost(f64),
    /// A limit for ours over the baseline; more is better.
    RatioAtLeast(f64),
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self {
            Bar::ValueAtMost(most) | Bar::RatioAtMost(most) => format!("≤ {most}"),
            Bar::RatioAtLeast(least) => format!("≥ {least}"),
        })
    }
}

/// Whether a bar is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// The bar is met.
    Yes,
    /// The value is beyond the bar, but the better end of its interval is not: this run cannot tell.
    WithinNoise,
    /// The bar is not met.
    No,
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Met::Yes => "yes",
            Met::WithinNoise => "in noise",
            Met::No => "no",
        })
    }
}

/// One benchmark's result. Serialises to the row of `onebuf bench --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The name of the benchmark, with the devices if there are several.
    pub name: String,
    /// Our value.
    pub value: f64,
    /// The unit of `value` and `baseline`.
    pub unit: Unit,
    /// The baseline, measured in the same run.
    pub baseline: Option<f64>,
    /// `value / baseline`.
    pub ratio: Option<f64>,
    /// The lower end of the ratio's 95 % interval.
    pub ratio_low: Option<f64>,
    /// Its upper end.
    pub ratio_high: Option<f64>,
    /// The bytes that the operation must move, per time, over the bandwidth of the device's own copies; only for operations that
    /// have such a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_copy: Option<f64>,
    /// Samples: blocks of A B B A, or batches if there is no baseline.
    pub n: usize,
    /// The bar, if there is one.
    #[serde(skip)]
    pub bar: Option<Bar>,
    /// A remark for the reader.
    #[serde(skip)]
    pub remark: String,
}

impl Row {
    /// A row of a cost without a baseline.
    pub fn alone(name: impl Into<String>, unit: Unit, found: &Alone) -> Self {
        Self {
            name: name.into(),
            value: unit.of_ns(found.ns),
            unit,
            baseline: None,
            ratio: None,
            ratio_low: None,
            ratio_high: None,
            of_copy: None,
            n: found.batches,
            bar: None,
            remark: String::new(),
        }
    }

    /// A row of a comparison.
    pub fn compared(name: impl Into<String>, unit: Unit, found: &Compared) -> Self {
        let (ratio, interval) = match unit.is_rate() {
            true => (1.0 / found.ratio, found.interval.map(|(low, high)| (1.0 / high, 1.0 / low))),
            false => (found.ratio, found.interval),
        };
        let alone = Alone { ns: found.ours_ns, batches: found.blocks };
        Self {
            baseline: Some(unit.of_ns(found.baseline_ns)),
            ratio: Some(ratio),
            ratio_low: interval.map(|(low, _)| low),
            ratio_high: interval.map(|(_, high)| high),
            ..Self::alone(name, unit, &alone)
        }
    }

    /// Adds a bar.
    pub fn bar(self, bar: Bar) -> Self {
        Self { bar: Some(bar), ..self }
    }

    /// Adds the fraction of a device's copy bandwidth (bytes per nanosecond) at which an operation of this many bytes runs.
    pub fn of_copy(self, bytes: usize, bandwidth: f64) -> Self {
        let ns = self.unit.to_ns(self.value);
        Self { of_copy: Some(bytes as f64 / ns / bandwidth), ..self }
    }

    /// Adds a remark.
    pub fn remark(self, remark: impl Into<String>) -> Self {
        Self { remark: remark.into(), ..self }
    }

    /// Whether the bar is met; `None` without a bar.
    pub fn met(&self) -> Option<Met> {
        Some(match self.bar? {
            Bar::ValueAtMost(most) => judge(self.value <= most, false),
            Bar::RatioAtMost(most) => judge(self.ratio? <= most, self.ratio_low? <= most),
            Bar::RatioAtLeast(least) => judge(self.ratio? >= least, self.ratio_high? >= least),
        })
    }

    /// The ratio and its interval as text.
    pub fn ratio_text(&self) -> Option<String> {
        let ratio = self.ratio?;
        Some(match (self.ratio_low, self.ratio_high) {
            (Some(low), Some(high)) => {
                format!("{} [{}, {}]", digits(ratio), digits(low), digits(high))
            }
            _ => digits(ratio),
        })
    }

    /// A value of this row with its unit as text.
    pub fn in_unit(&self, value: f64) -> String {
        format!("{} {}", digits(value), self.unit)
    }
}

impl Alone {
    /// Converts to a row without a baseline.
    pub fn row(&self, name: impl Into<String>, unit: Unit) -> Row {
        Row::alone(name, unit, self)
    }
}

impl Compared {
    /// Converts to a row.
    pub fn row(&self, name: impl Into<String>, unit: Unit) -> Row {
        Row::compared(name, unit, self)
    }
}

fn judge(value: bool, better_end: bool) -> Met {
    match (value, better_end) {
        (true, _) => Met::Yes,
        (false, true) => Met::WithinNoise,
        (false, false) => Met::No,
    }
}

/// Four significant digits; further ones are noise.
fn digits(value: f64) -> String {
    let before = if value.abs() >= 1.0 { value.abs().log10() as usize } else { 0 };
    let small = if value != 0.0 && value.abs() < 0.1 { 2 } else { 0 };
    format!("{value:.*}", 3_usize.saturating_sub(before) + small)
}

impl fmt::Display for Row {
    /// One line for a log: name, value, and baseline and ratio if there are any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<32} {:>14}", self.name, self.in_unit(self.value))?;
        if let (Some(baseline), Some(ratio)) = (self.baseline, self.ratio_text()) {
            write!(f, "  baseline {:>14}  ratio {ratio}", self.in_unit(baseline))?;
        }
        write!(f, "  n {}", self.n)?;
        if !self.remark.is_empty() {
            write!(f, "  ({})", self.remark)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Bar, Met, Row, Unit, digits};
    use crate::{abba::Compared, solo::Alone};

    const FOUND: Compared = Compared {
        ours_ns: 2100.0,
        baseline_ns: 2000.0,
        ratio: 1.05,
        interval: Some((1.0, 1.25)),
        blocks: 31,
    };

    #[test]
    fn rows_serialise_as_the_contract_says() {
        let row = Row::compared("launch_enqueue_ratio", Unit::Us, &FOUND).remark("unseen");
        assert_eq!(
            serde_json::to_string(&row.bar(Bar::RatioAtMost(1.05))).unwrap(),
            r#"{"name":"launch_enqueue_ratio","value":2.1,"unit":"us","baseline":2.0,"#.to_owned()
                + r#""ratio":1.05,"ratio_low":1.0,"ratio_high":1.25,"n":31}"#
        );
        let alone = Row::alone("x_ns", Unit::Ns, &Alone { ns: 3.5, batches: 7 });
        assert_eq!(
            serde_json::to_string(&alone).unwrap(),
            r#"{"name":"x_ns","value":3.5,"unit":"ns","baseline":null,"#.to_owned()
                + r#""ratio":null,"ratio_low":null,"ratio_high":null,"n":7}"#
        );
    }

    #[test]
    fn rates_turn_the_ratio_over() {
        let row = Row::compared("staged_ratio", Unit::GbPerS(4200), &FOUND);
        assert_eq!((row.value, row.baseline), (2.0, Some(2.1)));
        assert_eq!(row.ratio, Some(1.0 / 1.05));
        assert_eq!((row.ratio_low, row.ratio_high), (Some(0.8), Some(1.0)));
    }

    #[test]
    fn bars_are_judged_by_the_better_end() {
        let slow = Row::compared("x", Unit::Ns, &FOUND);
        let met = |row: &Row, bar| row.clone().bar(bar).met();
        assert_eq!(met(&slow, Bar::RatioAtMost(1.06)), Some(Met::Yes));
        assert_eq!(met(&slow, Bar::RatioAtMost(1.02)), Some(Met::WithinNoise));
        assert_eq!(met(&slow, Bar::RatioAtMost(0.99)), Some(Met::No));
        let rate = Row::compared("x", Unit::GbPerS(1), &FOUND);
        assert_eq!(met(&rate, Bar::RatioAtLeast(0.95)), Some(Met::Yes));
        assert_eq!(met(&rate, Bar::RatioAtLeast(0.99)), Some(Met::WithinNoise));
        assert_eq!(met(&rate, Bar::RatioAtLeast(1.01)), Some(Met::No));
        let alone = Row::alone("x", Unit::Ns, &Alone { ns: 3.5, batches: 7 });
        assert_eq!(met(&alone, Bar::ValueAtMost(5.0)), Some(Met::Yes));
        assert_eq!(met(&alone, Bar::ValueAtMost(3.0)), Some(Met::No));
        assert_eq!(alone.met(), None);
    }

    #[test]
    fn numbers_for_people() {
        let shown: Vec<String> =
            [12345.6, 123.45, 12.345, 1.2345, 0.12345, 0.0012345].map(digits).into();
        assert_eq!(shown, ["12346", "123.5", "12.35", "1.234", "0.123", "0.00123"]);
        let row = Row::compared("x", Unit::Us, &FOUND);
        assert_eq!(row.ratio_text().as_deref(), Some("1.050 [1.000, 1.250]"));
        assert!(row.to_string().contains("2.100 us  baseline       2.000 us  ratio 1.050"));
    }
}
