//! The page of measurements: ratios, costs against sizes, and all numbers.

use super::{
    Machine, cell,
    markup::{Element, el},
    number, page,
    plot::{self, Growth, Size},
    row, section, table,
};
use crate::units;
use onebuf_bench::{Met, Outcome, Row, Skipped};

/// The page of `onebuf bench --html`.
pub fn bench_page(machine: &Machine, outcome: &Outcome) -> String {
    let rows = &outcome.results;
    let met = |which: Met| rows.iter().filter(|row| row.met() == Some(which)).count();
    let about = format!(
        "{} measured, {} skipped. Bars: {} met, {} in noise, {} missed.",
        rows.len(),
        outcome.skipped.len(),
        met(Met::Yes),
        met(Met::WithinNoise),
        met(Met::No),
    );
    let drawings = [ratios(rows), growth(rows)].into_iter().flatten();
    let rest = [numbers(outcome), machine.section(), machine.paste(&text(outcome))];
    page("onebuf bench", about, drawings.chain(rest))
}

fn ratios(rows: &[Row]) -> Option<Element> {
    let legend = [
        ("●", "met"),
        ("◆", "in noise: the ratio is beyond the bar, but the better end of its interval is not"),
        ("✕", "missed"),
        ("┃", "the bar"),
    ];
    let legend = legend.map(|(sign, about)| {
        el("li").child(el("b").attr("aria-hidden", "true").text(sign)).text(format!(" {about}"))
    });
    let about = "Ours over the baseline, measured in the same run. Left of 1 is less than the baseline: better for \
                 times, worse for GB/s.";
    let figure = el("figure").child(plot::ratios(rows)?).child(el("figcaption").text(about));
    let section = section("ratios", "Compared with the baseline");
    Some(section.child(el("ul").class("legend").children(legend)).child(figure))
}

fn growth(rows: &[Row]) -> Option<Element> {
    let drawings: Vec<Element> = series(rows).iter().filter_map(plot::growth).collect();
    let figures = drawings.into_iter().map(|drawing| el("figure").child(drawing));
    let mut figures = figures.peekable();
    figures.peek()?;
    let about = "Both logarithmic. Filled: ours; dashed: the baseline, measured in the same run.";
    let section = section("growth", "Cost against size");
    Some(section.children(figures).child(el("p").text(about)))
}

/// Groups rows whose names differ only in a size.
fn series(rows: &[Row]) -> Vec<Growth> {
    let mut all: Vec<Growth> = Vec::new();
    for row in rows {
        let Some((name, size, at)) = sized(&row.name) else { continue };
        let unit = row.unit.to_string();
        let same = |of: &Growth| of.name == name && of.unit == unit && of.size == size;
        let place = all.iter().position(same).unwrap_or_else(|| {
            all.push(Growth { name, unit, size, points: Vec::new(), baseline: Vec::new() });
            all.len() - 1
        });
        all[place].points.push((at, row.value));
        all[place].baseline.extend(row.baseline.map(|baseline| (at, baseline)));
    }
    all.retain(|growth| growth.points.len() > 1);
    for Growth { points, baseline, .. } in &mut all {
        points.sort_by_key(|point| point.0);
        baseline.sort_by_key(|point| point.0);
    }
    all
}

/// `a_64KiB_us` is `a_us` at 65,536 bytes, `a_ring4_us` at four slots, `a_64_us` at 64 points.
fn sized(name: &str) -> Option<(String, Size, u64)> {
    let words: Vec<&str> = name.split('_').collect();
    let (at, size, count) =
        words.iter().enumerate().find_map(|(at, word)| size(word).map(|(s, n)| (at, s, n)))?;
    let rest: Vec<&str> = [&words[..at], &words[at + 1..]].concat();
    Some((rest.join("_"), size, count))
}

fn size(word: &str) -> Option<(Size, u64)> {
    if word.ends_with("iB") {
        return units::parse_bytes(word).ok().map(|bytes| (Size::Bytes, bytes));
    }
    match word.strip_prefix("ring") {
        Some(slots) => slots.parse().ok().map(|slots| (Size::Slots, slots)),
        None => word.parse().ok().map(|points| (Size::Points, points)),
    }
}

fn numbers(outcome: &Outcome) -> Element {
    let heads = [
        "benchmark",
        "#value",
        "#baseline",
        "#ratio [95 %]",
        "#bar",
        "met",
        "#of copy",
        "#n",
        "on",
    ];
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let rows = outcome.results.iter().map(|measured| {
        let bar = dash(measured.bar.map(|bar| bar.to_string()));
        let met = dash(measured.met().map(|met| met.to_string()));
        let cells = [
            number(measured.in_unit(measured.value)),
            number(dash(measured.baseline.map(|value| measured.in_unit(value)))),
            number(dash(measured.ratio_text())),
            number(bar),
            cell(met),
            number(dash(measured.of_copy.map(|fraction| format!("{fraction:.2}")))),
            number(measured.n),
            cell(&measured.remark).class("why"),
        ];
        row(&measured.name, cells)
    });
    let all = section("numbers", "Every number").child(table("Medians", &heads, rows));
    if outcome.skipped.is_empty() {
        return all;
    }
    let skipped = outcome.skipped.iter().map(|Skipped { name, why, .. }| row(name, [cell(why)]));
    all.child(table("Skipped", &["benchmark", "why"], skipped))
}

/// The results as text for a bug report.
fn text(outcome: &Outcome) -> String {
    let rows = outcome.results.iter().map(|row| format!("{row}\n"));
    let skipped =
        outcome.skipped.iter().map(|skipped| format!("skip: {}: {}\n", skipped.name, skipped.why));
    rows.chain(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebuf_bench::{Unit, solo::Alone};

    #[test]
    fn sizes_in_names_make_series() {
        let row = |name: &str, ns| Row::alone(name, Unit::Ns, &Alone { ns, batches: 7 });
        let rows = [
            row("frame_1MiB_ns", 30.0),
            row("frame_64KiB_ns", 20.0),
            row("alone_64KiB_ns", 1.0),
            row("route_lookup_ns", 5.0),
        ];
        let found = series(&rows);
        assert_eq!(found.len(), 1, "one size is no series, and no size is none");
        assert_eq!(found[0].name, "frame_ns");
        assert_eq!(found[0].points, [(65536, 20.0), (1 << 20, 30.0)]);
        assert!(found[0].baseline.is_empty());
        assert_eq!(
            sized("ring_a:0_b:0_ring8_us"),
            Some(("ring_a:0_b:0_us".into(), Size::Slots, 8))
        );
        assert_eq!(sized("fft_64_a:0_ratio"), Some(("fft_a:0_ratio".into(), Size::Points, 64)));
        assert_eq!(sized("handoff_opencl:0_cuda:0_ratio"), None);
    }
}
