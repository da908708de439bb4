//! The output of `doctor-helper`.

use crate::{process::Ended, result::Counts};
use serde_json::Value;

/// One route and its verdict, as texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub from: String,
    pub to: String,
    pub kind: String,
    pub state: String,
    pub zero_copy: String,
    pub sync: String,
    pub handoff_us: String,
    pub gb_per_s: String,
    pub why: String,
    /// The row as the doctor printed it.
    pub row: Value,
}

/// An experiment with an answer has passed, whichever it is: a refuted route is a result. A route that could not be tried is
/// skipped.
pub fn counts(ended: &Ended) -> Counts {
    let mut counts = Counts::default();
    let Some(routes) = routes(&ended.stdout) else {
        let how = ended.how.trouble().unwrap_or_else(|| "ended without a report".into());
        counts.fail(super::with_last_words(&how, ended));
        return counts;
    };
    for route in &routes {
        let name = format!("{} -> {} {}", route.from, route.to, route.kind);
        match route.state.as_str() {
            "proven" => counts.passed += 1,
            "refuted" => {
                counts.passed += 1;
                counts.note_skip(format!("{name} is refuted: {}", route.why), 1);
            }
            "declared" => counts.skip(format!("{name}: {}", route.why)),
            other => counts.fail(format!("{name}: unknown state `{other}`")),
        }
    }
    if routes.is_empty() && ended.how.trouble().is_none() {
        counts.skip("there is no route to test");
    }
    counts
}

/// The routes of the doctor's report; `None` if there is no report.
pub fn routes(stdout: &str) -> Option<Vec<Route>> {
    let objects = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let report = objects.into_iter().find(|object| object["routes"].is_array())?;
    Some(report["routes"].as_array()?.iter().map(route).collect())
}

fn route(row: &Value) -> Route {
    let text = |name: &str| match &row[name] {
        Value::String(text) => text.clone(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Number(number) => {
            number.as_f64().map_or_else(|| number.to_string(), |number| format!("{number:.1}"))
        }
        _ => "-".to_owned(),
    };
    Route {
        from: text("from"),
        to: text("to"),
        kind: text("kind"),
        state: text("state"),
        zero_copy: text("zero_copy"),
        sync: text("sync"),
        handoff_us: text("handoff_us"),
        gb_per_s: text("gb_per_s"),
        why: text("why"),
        row: row.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{parse::ended, process::How};

    const REPORT: &str = r#"{"devices":["host","gl:0"],"routes":[
        {"from":"host","to":"gl:0","kind":"host_pointer","state":"proven","zero_copy":true,"sync":"host_wait","handoff_us":3.25,"gb_per_s":null,"why":"every page"},
        {"from":"host","to":"gl:0","kind":"svm_pointer","state":"refuted","zero_copy":null,"why":"page 3"},
        {"from":"gl:0","to":"host","kind":"staged","state":"declared","why":"not tried: memory"}]}"#;

    #[test]
    fn verdicts_are_counted() {
        let all = counts(&ended(How::Exit(0), &REPORT.replace('\n', ""), ""));
        assert_eq!([all.passed, all.failed, all.skipped], [2, 0, 1]);
        let why = all.why();
        assert!(why.contains("host -> gl:0 svm_pointer is refuted: page 3"), "{why}");
        let first = &routes(&REPORT.replace('\n', "")).unwrap()[0];
        let told = (&*first.zero_copy, &*first.handoff_us, &*first.gb_per_s);
        assert_eq!(told, ("yes", "3.2", "-"));
    }

    #[test]
    fn a_lone_device_has_no_routes() {
        let all = counts(&ended(How::Exit(0), r#"{"routes":[]}"#, ""));
        assert_eq!([all.passed, all.failed, all.skipped], [0, 0, 1]);
    }
}
