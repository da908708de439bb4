//! The report as one page: no scripts, no requests.

use crate::report::{Block, Report};
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}th,td{border:1px solid #ccc;padding:.25em .6em;text-align:left;vertical-align:top}\
th{background:#f3f3f3}td.ok{background:#e3f4e3}td.fail{background:#f8d6d3;font-weight:600}td.skip{color:#777}li{overflow-wrap:anywhere}";

/// Returns the page.
pub fn page(report: &Report) -> String {
    let title = format!("onebuf {} conformance report", report.version);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style></head>\n<body><h1>{0}</h1>\n",
        escaped(&title)
    );
    let _ = writeln!(page, "<p>{}</p>", escaped(&report.summary()));
    for block in report.table() {
        page.push_str(&table(&block));
    }
    page.push_str("<h2>Machine</h2>\n");
    let facts: Block =
        report.facts.iter().map(|(name, value)| vec![(*name).to_owned(), value.clone()]).collect();
    page.push_str(&rows(&facts, "td"));
    page.push_str(&table(&report.device_rows()));
    for (head, lines) in report.lists() {
        let _ = writeln!(page, "<h2>{}</h2>\n<ul>", escaped(&head));
        lines.iter().for_each(|line| {
            let _ = writeln!(page, "<li>{}</li>", escaped(line));
        });
        page.push_str("</ul>\n");
    }
    if !report.routes.is_empty() {
        page.push_str("<h2>Routes</h2>\n");
        page.push_str(&table(&report.route_rows()));
    }
    page + "</body></html>\n"
}

fn table(block: &Block) -> String {
    match block.split_first() {
        Some((head, rest)) => {
            let head = rows(std::slice::from_ref(head), "th");
            let body = rows(rest, "td");
            head.replace("</table>\n", "") + body.trim_start_matches("<table>\n")
        }
        None => String::new(),
    }
}

fn rows(all: &[Vec<String>], tag: &str) -> String {
    let cell = |text: &String| match class(text) {
        Some(class) if tag == "td" => format!("<td class=\"{class}\">{}</td>", escaped(text)),
        _ => format!("<{tag}>{}</{tag}>", escaped(text)),
    };
    let row =
        |row: &Vec<String>| format!("<tr>{}</tr>\n", row.iter().map(cell).collect::<String>());
    format!("<table>\n{}</table>\n", all.iter().map(row).collect::<String>())
}

fn class(text: &str) -> Option<&'static str> {
    match text.split(' ').next() {
        Some("ok" | "proven") => Some("ok"),
        Some("FAIL" | "refuted") => Some("fail"),
        Some("skip" | "-") => Some("skip"),
        _ => None,
    }
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}
