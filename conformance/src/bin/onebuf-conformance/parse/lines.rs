//! The output of `conformance --lines`.

use crate::{process::Ended, result::Counts};
use serde_json::Value;

/// How the detail of a check ends that counted its hand-overs.
const COUNTED: &str = " hand-overs";

/// Drivers may print to standard output, too, so other lines are ignored. The last line has the number of checks.
pub fn counts(ended: &Ended) -> Counts {
    let mut counts = Counts::default();
    let (mut seen, mut promised, mut last) = (0, None, String::new());
    let objects = ended.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    for object in objects {
        if let Some(number) = object["checks"].as_u64() {
            promised = Some(number);
        } else if let Some(result) = object["result"].as_str() {
            seen += 1;
            last = text(&object["case"]);
            take(&mut counts, result, &object);
        }
    }
    if promised != Some(seen) {
        let how = ended.how.trouble().unwrap_or_else(|| "ended without a result".into());
        let place = if last.is_empty() { String::new() } else { format!(" after `{last}`") };
        counts.fail(super::with_last_words(&format!("{how}{place}"), ended));
    }
    counts
}

fn take(counts: &mut Counts, result: &str, object: &Value) {
    let why = text(&object["why"]);
    if text(&object["detail"]).ends_with(COUNTED) {
        counts.notes.push(place(object));
    }
    match result {
        "passed" => counts.passed += 1,
        "skipped" | "not_applicable" => counts.skip(why),
        _ => counts.fail(format!("{} on {}: {why}", text(&object["case"]), place(object))),
    }
}

/// The devices and the detail of a check.
fn place(object: &Value) -> String {
    let devices = object["devices"].as_array().into_iter().flatten();
    let devices: Vec<&str> = devices.filter_map(Value::as_str).collect();
    let detail = text(&object["detail"]);
    let detail = if detail.is_empty() { detail } else { format!(" ({detail})") };
    format!("{}{detail}", devices.join(" -> "))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{parse::ended, process::How};

    const CHECKS: &str = r#"a driver's words
{"case":"alone::a","devices":["host"],"detail":"","result":"passed","why":""}
{"case":"alone::b","devices":["host"],"detail":"","result":"not_applicable","why":"no local memory"}
{"case":"pairs::c","devices":["host","gl:0"],"detail":"staged","result":"failed","why":"page 3"}
"#;

    #[test]
    fn checks_are_counted() {
        let whole = format!("{CHECKS}{{\"checks\":3}}\n");
        let all = counts(&ended(How::Exit(1), &whole, ""));
        assert_eq!([all.passed, all.failed, all.skipped], [1, 1, 1]);
        assert_eq!(all.why(), "pairs::c on host -> gl:0 (staged): page 3");
        assert_eq!(all.skips, [("no local memory".to_owned(), 1)]);
    }

    #[test]
    fn counted_hand_overs_are_kept() {
        let lines = r#"{"case":"sync::hand_overs","devices":["host","cuda:0"],"detail":"event over opaque_fd, 20 of 22 hand-overs","result":"passed","why":""}
{"case":"sync::hand_overs","devices":["host","cuda:0"],"detail":"callback","result":"not_applicable","why":"the two are joined by event"}
{"case":"sync::hand_overs","devices":["cuda:0","host"],"detail":"host_wait over staged, 9 of 50 hand-overs","result":"not_applicable","why":"only 9"}
{"checks":3}"#;
        let all = counts(&ended(How::Exit(0), lines, ""));
        let expected = [
            "host -> cuda:0 (event over opaque_fd, 20 of 22 hand-overs)",
            "cuda:0 -> host (host_wait over staged, 9 of 50 hand-overs)",
        ];
        assert_eq!(all.notes, expected);
        assert_eq!([all.passed, all.failed, all.skipped], [1, 0, 2]);
    }

    #[test]
    fn an_early_end_is_a_failure() {
        for how in [How::Exit(0), How::Signal(11)] {
            let all = counts(&ended(how, CHECKS, ""));
            assert_eq!([all.passed, all.failed, all.skipped], [1, 2, 1]);
            assert!(all.why().contains("after `pairs::c`"), "{}", all.why());
        }
        let fewer = format!("{CHECKS}{{\"checks\":4}}\n");
        assert_eq!(counts(&ended(How::Exit(0), &fewer, "")).failed, 2);
    }
}
