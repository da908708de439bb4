//! `onebuf bench`: its rows, and benchmarks that cannot run. Times are not judged.

use crate::support::{Cli, Ran, assert_has, skip};
use serde_json::Value;

const ROW: [&str; 8] =
    ["name", "value", "unit", "baseline", "ratio", "ratio_low", "ratio_high", "n"];
const UNITS: [&str; 4] = ["ns", "us", "ms", "GB/s"];

fn names(rows: &Value) -> Vec<&str> {
    rows.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[track_caller]
fn assert_rows(value: &Value) {
    for row in value["results"].as_array().unwrap() {
        assert_has(row, &ROW);
        // Only for work that memory limits.
        let more = usize::from(row["of_copy"].is_f64());
        assert_eq!(row.as_object().unwrap().len(), ROW.len() + more, "nothing else: {row}");
        assert!(UNITS.iter().any(|unit| row["unit"] == *unit), "{row}");
        // The value is a difference of two measurements, which may be negative on a busy machine.
        let difference = row["name"].as_str().unwrap().starts_with("handoff_");
        assert!(row["value"].as_f64().unwrap() > 0.0 || difference, "{row}");
        assert!(row["n"].as_u64().unwrap() >= 7, "{row}");
        assert_ratio(row);
    }
    for skipped in value["skipped"].as_array().unwrap() {
        assert_has(skipped, &["name", "why"]);
    }
}

/// Checks that all four numbers are present or none, and that they are consistent.
#[track_caller]
fn assert_ratio(row: &Value) {
    let numbers = ["baseline", "ratio", "ratio_low", "ratio_high"].map(|name| row[name].as_f64());
    let [Some(baseline), Some(ratio), Some(low), Some(high)] = numbers else {
        assert_eq!(numbers, [None; 4], "{row}");
        return;
    };
    let by_hand = row["value"].as_f64().unwrap() / baseline;
    assert!((ratio - by_hand).abs() <= 1e-9 * by_hand.abs().max(1e-3), "{row}");
    assert!(low <= ratio && ratio <= high, "{row}");
}

/// The JSON object that is printed although the status is 1.
#[track_caller]
fn json_of_failure(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    let value: Value = serde_json::from_str(&ran.stdout).expect("one JSON object");
    assert_eq!(value["schema"], 2);
    value
}

#[test]
fn without_opencl_the_rest_is_measured_and_nothing_failed() {
    let cli = Cli::new();
    let ran = cli.run_bare("bench --quick --json").ok();
    assert!(ran.stderr.contains("skip: launch_enqueue_ratio: 1 OpenCL platform"), "{}", ran.stderr);
    let value = ran.json();
    assert_rows(&value);
    let measured = names(&value["results"]);
    assert!(measured.starts_with(&["route_lookup_ns", "view_idle_ns"]), "{measured:?}");
    let skipped = names(&value["skipped"]);
    for name in ["launch_enqueue_ratio", "handoff_<a>_<b>_ratio", "staged_ratio"] {
        assert!(skipped.contains(&name), "{skipped:?}");
    }
}

#[test]
fn a_benchmark_that_was_named_and_cannot_run_is_status_1() {
    let cli = Cli::new();
    for name in ["launch_enqueue_ratio", "handoff", "handoff_opencl:0_opencl:1_ratio"] {
        cli.run_bare(&format!("bench --quick {name}")).failed(1, "onebuf: could not run ");
    }
    let ran = cli.run_bare("bench --quick --json staged_ratio route_lookup_ns");
    let value = json_of_failure(&ran);
    assert_rows(&value);
    assert_eq!(names(&value["results"]), ["route_lookup_ns"], "what can be measured is");
    assert_eq!(names(&value["skipped"]), ["staged_ratio"]);
}

#[test]
fn the_table_has_bars() {
    let text = Cli::new().run_bare("bench --quick route_lookup_ns").ok().stdout;
    assert!(text.starts_with("name ") && text.contains("\nroute_lookup_ns "), "{text}");
    assert!(text.contains("≤ 5"), "{text}");
}

#[test]
fn on_what_is_there() {
    let cli = Cli::new();
    let value = cli.run("bench --quick --json --size 128KiB").json();
    assert_rows(&value);
    let measured = names(&value["results"]);
    if !measured.contains(&"launch_enqueue_ratio") {
        return skip("bench on OpenCL: no device");
    }
    for name in ["program_build_ms", "first_launch_us"] {
        assert!(measured.contains(&name), "{measured:?}");
    }
    if !measured.contains(&"staged_ratio") {
        return skip("bench between platforms: one platform only");
    }
    let pair = measured.iter().find(|name| name.starts_with("handoff_opencl:")).expect("a pair");
    let one = cli.run(&format!("bench --quick --json --size 64KiB {pair}")).json();
    assert_eq!(names(&one["results"]), [*pair], "a row's name means that row");
}
