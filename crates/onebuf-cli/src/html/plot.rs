//! Plots: ratios with their intervals and bars, and costs against sizes. The axes are logarithmic, so that twice as
//! good and twice as bad are equally far from one.

use super::markup::{Element, el};
use onebuf_bench::{Bar, Met, Row};

/// The width of all plots, in the plot's units.
const WIDTH: f64 = 960.0;
const LINE: f64 = 24.0;
/// Where names end, and where numbers begin.
const LEFT: f64 = 300.0;
const RIGHT: f64 = 720.0;

/// Maps a range of numbers to a range of the plot.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// A range around these numbers with a margin; `None` for no numbers.
    fn around(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let fit = values.into_iter().filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) = fit.fold((f64::MAX, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        (high > 0.0).then_some(Self { low: low / 1.15, high: high * 1.15, from, to })
    }

    fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let part = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + part * (self.to - self.from)
    }

    /// A few powers of the base inside of the range.
    fn ticks(&self, base: f64) -> Vec<f64> {
        let power = |value: f64| value.ln() / base.ln();
        let (first, last) = (power(self.low).ceil() as i32, power(self.high).floor() as i32);
        let step = ((last - first) / 8 + 1).max(1);
        (first..=last).filter(|power| power % step == 0).map(|power| base.powi(power)).collect()
    }
}

/// One line for each ratio with its interval and bar; `None` without ratios.
pub fn ratios(rows: &[Row]) -> Option<Element> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.ratio.is_some()).collect();
    let numbers = rows.iter().flat_map(|row| {
        [row.ratio, row.ratio_low, row.ratio_high, limit(row), Some(1.0)].into_iter().flatten()
    });
    let axis = Axis::around(numbers, LEFT, RIGHT)?;
    let height = LINE * (rows.len() as f64 + 2.0);
    let title = "Ratios to the baseline, with their 95 % intervals and bars";
    let drawing = drawing(title, height).child(grid(&axis, height));
    let lines =
        rows.iter().enumerate().map(|(at, row)| ratio(row, &axis, LINE * (at as f64 + 1.0)));
    Some(drawing.children(lines))
}

/// The bar of a ratio.
fn limit(row: &Row) -> Option<f64> {
    match row.bar? {
        Bar::RatioAtMost(limit) | Bar::RatioAtLeast(limit) => Some(limit),
        Bar::ValueAtMost(_) => None,
    }
}

fn ratio(row: &Row, axis: &Axis, y: f64) -> Element {
    let state = row.met().map_or("unjudged", class);
    let group = el("g").class(&format!("ratio {state}")).attr("data-name", &row.name);
    let group = group.child(label(LEFT - 12.0, y, "name", &row.name));
    let interval = row
        .ratio_low
        .zip(row.ratio_high)
        .map(|(low, high)| line(axis.at(low), y, axis.at(high), y).class("interval"));
    let bar = limit(row).map(|limit| {
        let x = axis.at(limit);
        line(x, y - 9.0, x, y + 9.0).class("bar")
    });
    let x = row.ratio.map_or(axis.from, |ratio| axis.at(ratio));
    let text = row.ratio_text().unwrap_or_default();
    group.children(interval).children(bar).child(point(row.met(), x, y)).child(label(
        RIGHT + 16.0,
        y,
        "value",
        &text,
    ))
}

fn class(met: Met) -> &'static str {
    match met {
        Met::Yes => "met",
        Met::WithinNoise => "noise",
        Met::No => "missed",
    }
}

/// A shape that is recognisable without colour: a disc is met, a diamond is in noise, a cross is not met, a ring has no
/// bar.
fn point(met: Option<Met>, x: f64, y: f64) -> Element {
    let path = |shape: String| el("path").class("point").attr("d", shape);
    match met {
        Some(Met::WithinNoise) => path(format!("M{x:.1} {:.1}l6 6l-6 6l-6 -6z", y - 6.0)),
        Some(Met::No) => path(format!("M{:.1} {:.1}l10 10m0 -10l-10 10", x - 5.0, y - 5.0))
            .attr("data-shape", "cross"),
        Some(Met::Yes) | None => {
            let round = el("circle").class("point").attr("cx", px(x)).attr("cy", px(y));
            round.attr("r", 5)
        }
    }
}

/// The unit of a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    Bytes,
    Points,
    Slots,
}

impl Size {
    fn text(self, size: u64) -> String {
        match self {
            Size::Bytes => crate::units::bytes(size),
            Size::Points => format!("{size} points"),
            Size::Slots => format!("{size} slots"),
        }
    }
}

/// A quantity that was measured at several sizes.
pub struct Growth {
    pub name: String,
    pub unit: String,
    pub size: Size,
    /// Sizes and costs.
    pub points: Vec<(u64, f64)>,
    /// Sizes and costs of the baseline, if there is one.
    pub baseline: Vec<(u64, f64)>,
}

/// One plot of cost against size; `None` without measurements.
pub fn growth(of: &Growth) -> Option<Element> {
    const HEIGHT: f64 = 280.0;
    let all = || of.points.iter().chain(&of.baseline);
    let x = Axis::around(all().map(|(size, _)| *size as f64), 90.0, WIDTH - 40.0)?;
    let y = Axis::around(all().map(|(_, cost)| *cost), HEIGHT - 40.0, 24.0)?;
    let title = format!("{} in {} against the size", of.name, of.unit);
    let columns = x.ticks(2.0).into_iter().map(|at| {
        let (x, text) = (x.at(at), of.size.text(at as u64));
        tick(line(x, 24.0, x, HEIGHT - 40.0), x, HEIGHT - 18.0, "axis", &text)
    });
    let rows = y.ticks(10.0).into_iter().map(|at| {
        let text = format!("{at} {}", of.unit);
        tick(line(90.0, y.at(at), WIDTH - 40.0, y.at(at)), 80.0, y.at(at), "name", &text)
    });
    let curve = |style: &str, points: &[(u64, f64)]| {
        let at = |(size, cost): &(u64, f64)| (x.at(*size as f64), y.at(*cost));
        let path: Vec<String> =
            points.iter().map(at).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let discs = points.iter().map(|point| {
            let ((cx, cy), size) = (at(point), of.size.text(point.0));
            let exact = el("title").text(format!("{size}: {} {}", point.1, of.unit));
            let disc = el("circle").class("point").attr("cx", px(cx)).attr("cy", px(cy));
            disc.attr("r", 4).child(exact)
        });
        let path = el("polyline").class("curve").attr("points", path.join(" "));
        el("g").class(style).child(path).children(discs)
    };
    let ours = curve("ours", &of.points);
    let baseline = (!of.baseline.is_empty()).then(|| curve("baseline", &of.baseline));
    let drawing = drawing(&title, HEIGHT).children(columns).children(rows);
    Some(drawing.children(baseline).child(ours))
}

/// Grid lines at round ratios, and one at 1.
fn grid(axis: &Axis, height: f64) -> Element {
    let bottom = height - LINE;
    let ticks = axis.ticks(2.0).into_iter().map(|at| {
        let x = axis.at(at);
        let style = if at == 1.0 { "grid one" } else { "grid" };
        tick(line(x, 10.0, x, bottom).class(style), x, bottom + 14.0, "axis", &format!("{at}"))
    });
    el("g").children(ticks)
}

fn tick(line: Element, x: f64, y: f64, class: &str, text: &str) -> Element {
    el("g").class("tick").child(line).child(label(x, y, class, text))
}

fn drawing(title: &str, height: f64) -> Element {
    el("svg")
        .attr("viewBox", format!("0 0 {WIDTH} {height}"))
        .attr("role", "img")
        .attr("aria-label", title)
        .child(el("title").text(title))
}

fn line(x1: f64, y1: f64, x2: f64, y2: f64) -> Element {
    let line = el("line").attr("x1", px(x1)).attr("y1", px(y1));
    line.attr("x2", px(x2)).attr("y2", px(y2))
}

fn label(x: f64, y: f64, class: &str, text: &str) -> Element {
    el("text").class(class).attr("x", px(x)).attr("y", px(y)).text(text)
}

fn px(at: f64) -> String {
    format!("{at:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebuf_bench::{Unit, solo::Alone};

    #[test]
    fn equal_ratios_are_equally_far() {
        let axis = Axis { low: 0.25, high: 4.0, from: 0.0, to: 100.0 };
        assert_eq!([0.25, 1.0, 4.0].map(|value| axis.at(value).round()), [0.0, 50.0, 100.0]);
        assert_eq!([0.0, 1e9].map(|value| axis.at(value)), [0.0, 100.0], "outside is at the end");
        assert_eq!(axis.ticks(2.0), [0.25, 0.5, 1.0, 2.0, 4.0]);
        let wide = Axis { low: 1e-6, high: 1e6, from: 0.0, to: 1.0 };
        let powers = [-15, -10, -5, 0, 5, 10, 15].map(|power| 2_f64.powi(power));
        assert_eq!(wide.ticks(2.0), powers);
    }

    #[test]
    fn an_axis_has_a_margin_and_leaves_out_what_has_no_place() {
        let axis = Axis::around([2.0, 0.0, f64::INFINITY, 8.0, -1.0], 0.0, 1.0).unwrap();
        assert_eq!((axis.low, axis.high), (2.0 / 1.15, 8.0 * 1.15));
    }

    fn row(name: &str, [low, ratio, high]: [f64; 3], bar: Option<Bar>) -> Row {
        let (ratio_low, ratio, ratio_high) = (Some(low), Some(ratio), Some(high));
        let alone = Row::alone(name, Unit::Us, &Alone { ns: 1.0, batches: 1 });
        Row { ratio, ratio_low, ratio_high, bar, ..alone }
    }

    /// From 1/4 to 4: one is in the middle, and the margins are equal.
    #[test]
    fn ratios_are_drawn_in_lines_with_interval_bar_and_class() {
        let rows = [
            row("good", [0.25, 0.5, 1.0], Some(Bar::RatioAtMost(1.0))),
            row("noisy", [2.0, 4.0, 4.0], Some(Bar::RatioAtMost(2.0))),
            row("bad", [0.25, 0.5, 0.5], Some(Bar::RatioAtLeast(4.0))),
            row("free", [1.0, 1.0, 1.0], Some(Bar::ValueAtMost(7.0))),
        ];
        let text = ratios(&rows).unwrap().to_string();
        let at = |expected: &str| assert!(text.contains(expected), "{expected}: {text}");
        at(r#"viewBox="0 0 960 144""#);
        at(r#"class="ratio met" data-name="good"><text class="name" x="288.0" y="24.0">good<"#);
        at(r#"<line x1="319.2" y1="24.0" x2="510.0" y2="24.0" class="interval">"#);
        at(r#"<line x1="510.0" y1="15.0" x2="510.0" y2="33.0" class="bar">"#);
        at(r#"<circle class="point" cx="414.6" cy="24.0" r="5">"#);
        at(r#"<text class="value" x="736.0" y="24.0">"#);
        at(r#"class="ratio noise" data-name="noisy"><text class="name" x="288.0" y="48.0">"#);
        at(r#"<line x1="605.4" y1="39.0" x2="605.4" y2="57.0" class="bar">"#);
        at(r#"<path class="point" d="M700.8 42.0l6"#);
        at(r#"class="ratio missed" data-name="bad">"#);
        at(r#"<line x1="700.8" y1="63.0" x2="700.8" y2="81.0" class="bar">"#);
        at(r#"d="M409.6 67.0l10"#);
        assert_eq!(text.matches(r#"class="bar""#).count(), 3, "a bar of values is no ratio");
        at(r#"<line x1="510.0" y1="10.0" x2="510.0" y2="120.0" class="grid one">"#);
        at(r#"<text class="axis" x="510.0" y="134.0">1<"#);
        at(r#"x2="605.4" y2="120.0" class="grid">"#);
        assert_eq!(text.matches(r#"class="grid"#).count(), 5, "a quarter to four");
    }

    #[test]
    fn sizes_and_costs_have_their_lines() {
        let (points, size) = (vec![(1024, 1.0), (4096, 100.0)], Size::Bytes);
        let of = Growth { name: "x".into(), unit: "us".into(), size, points, baseline: Vec::new() };
        let text = growth(&of).unwrap().to_string();
        let at = |expected: &str| assert!(text.contains(expected), "{expected}: {text}");
        at(r#"<line x1="505.0" y1="24.0" x2="505.0" y2="240.0"></line>"#);
        at(r#"<text class="axis" x="505.0" y="262.0">2 KiB<"#);
        at(r#"<line x1="90.0" y1="132.0" x2="920.0" y2="132.0"></line>"#);
        at(r#"<text class="name" x="80.0" y="132.0">10 us<"#);
    }

    #[test]
    fn nothing_to_draw_is_no_drawing() {
        assert!(Axis::around([], 0.0, 1.0).is_none());
        assert!(Axis::around([0.0, f64::NAN, -1.0], 0.0, 1.0).is_none());
        assert!(ratios(&[]).is_none());
    }

    #[test]
    fn both_sides_of_a_comparison_are_drawn() {
        let (points, size) = (vec![(1024, 3.0)], Size::Bytes);
        let alone =
            Growth { name: "x".into(), unit: "us".into(), size, points, baseline: Vec::new() };
        let text = growth(&alone).unwrap().to_string();
        assert!(text.contains("1 KiB: 3 us") && !text.contains("baseline"), "{text}");
        let compared = Growth { baseline: vec![(8, 7.0)], size: Size::Slots, ..alone };
        let text = growth(&compared).unwrap().to_string();
        assert!(text.contains("baseline") && text.contains("8 slots: 7 us"), "{text}");
    }
}
