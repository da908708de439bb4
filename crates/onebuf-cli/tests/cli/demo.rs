//! The worked pipeline: what it finds, and how its frames do.

use crate::support::{Cli, assert_fields, assert_has};
use serde_json::{Value, json};

const STREAM: [&str; 14] = [
    "frames",
    "checked_frames",
    "seconds",
    "frames_per_s",
    "gb_per_s",
    "latency_us",
    "source_us",
    "stages",
    "detect_us",
    "ring",
    "batch",
    "one_thread",
    "bytes_copied",
    "detections",
];

/// Where something was detected.
fn places(value: &Value) -> Vec<(u64, u64)> {
    let all = value["detections"].as_array().expect("a list");
    let number = |at: &Value, name: &str| at[name].as_u64().expect("a number");
    all.iter().map(|at| (number(at, "beam"), number(at, "bin"))).collect()
}

/// Three waves come from where the first, the middle and the last beam look; every order finds them there.
#[test]
fn the_demo_finds_the_waves() {
    let cli = Cli::new();
    for order in 3..=5 {
        let args = format!("demo --json --samples 16384 --channels 64 --beams 8 --order {order}");
        let value = cli.run_bare(&format!("{args} --frames 4 --ring 2")).json();
        assert_eq!((&value["order"], &value["channels"]), (&json!(order), &json!(64)));
        assert_fields(&value["detections"], &["degrees", "frequency", "power", "over_noise_db"]);
        // The fourth frame is the first of two signals: 3/16, 0.05 and -0.31 turns per sample of 256.
        let found = places(&value);
        for place in [(3, 48), (0, 13), (7, 177)] {
            assert!(found.contains(&place), "{place:?} in {found:?}");
        }
        assert!(!found.contains(&(5, 48)), "a beam that looks elsewhere: {found:?}");
    }
}

#[test]
fn the_demos_frames_are_counted_and_timed() {
    let value = Cli::new().run_bare("demo --json --samples 1024 --frames 9 --batch 2").json();
    let stream = &value["stream"];
    assert_has(stream, &STREAM);
    let is = |name: &str, wanted: u64| assert_eq!(stream[name], json!(wanted), "{name}");
    [("frames", 9), ("checked_frames", 9), ("bytes_copied", 0), ("ring", 4), ("batch", 2)]
        .into_iter()
        .for_each(|(name, wanted)| is(name, wanted));
    assert_fields(&stream["stages"], &["name", "device", "us", "busy_us"]);
    assert_eq!(stream["stages"][0]["name"], "delay+fft+beams", "one device, one stage");
    assert!(stream["latency_us"]["p99"].as_f64() >= stream["latency_us"]["p50"].as_f64());
    assert_eq!((&value["dropped_frames"], &value["incomplete_frames"]), (&json!(0), &json!(0)));
}
