//! A compiler's log, with the source lines that it refers to.

use std::collections::BTreeMap;

/// The maximum number of source lines shown: a missing brace can cause hundreds of errors.
const MAX_LINES: usize = 20;

/// Returns the log, followed by each source line that it names, with a caret if the column is known.
pub(super) fn with_source(log: &str, source: &str) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let mut places: BTreeMap<usize, Option<usize>> = BTreeMap::new();
    for (line, column) in log.lines().filter_map(place) {
        if (1..=lines.len()).contains(&line) {
            places.entry(line).or_insert(column);
        }
    }
    let mut text = log.to_owned();
    if !places.is_empty() {
        text.push_str("\n\nin the source:");
    }
    for (line, column) in places.into_iter().take(MAX_LINES) {
        text.push_str(&shown(line, column, lines[line - 1]));
    }
    text
}

fn shown(line: usize, column: Option<usize>, source: &str) -> String {
    let text = format!("\n{line:>5} | {source}");
    match column {
        // Tabs are kept, so that the caret is below its character whatever the tab width.
        Some(column) if (1..=source.chars().count() + 1).contains(&column) => {
            let blank = |c| if c == '\t' { '\t' } else { ' ' };
            let before: String = source.chars().take(column - 1).map(blank).collect();
            format!("{text}\n      | {before}^")
        }
        _ => text,
    }
}

/// Finds the first `:LINE:COLUMN:` or `:LINE:` in a line of the log. Clang, and so nearly every driver, starts the line with a
/// file name (`<kernel>:3:5: error: …`, Intel `1:3:5: error: …`).
fn place(text: &str) -> Option<(usize, Option<usize>)> {
    let mut parts = text.split(':').skip(1).peekable();
    while let Some(part) = parts.next() {
        // The last part has no colon after it.
        let next = parts.peek()?;
        if let Ok(line) = part.parse() {
            return Some((line, next.parse().ok()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!(place("<kernel>:3:5: error: no"), Some((3, Some(5))));
        assert_eq!(place("error: /tmp/a:b/x.cl:12:1: no"), Some((12, Some(1))));
        assert_eq!(place("1:3:5: error: no"), Some((3, Some(5))));
        assert_eq!(place("input.cl:7: warning"), Some((7, None)));
        assert_eq!(place("error: 3 errors generated"), None);
        assert_eq!(place("took: 12"), None);
        assert_eq!(place(""), None);
    }

    #[test]
    fn lines_follow_the_log() {
        let log = "x.cl:2:2: error: `y`\nx.cl:9:1: not there\nx.cl:2:4: again";
        let shown = with_source(log, "void f() {\n\ty();\n}");
        assert_eq!(shown, format!("{log}\n\nin the source:\n    2 | \ty();\n      | \t^"));
        assert_eq!(with_source("gone wrong", "x"), "gone wrong");
    }
}
