//! The result of one chapter on one device, pair, or all devices together.

use std::time::Duration;

/// The longest reason in the JSON and in lists.
const MOST_REASON: usize = 400;

/// Checks counted by how they ended, with reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// What failed and why, one text each.
    pub failures: Vec<String>,
    /// Reasons of skips, each once, and how many checks each applies to.
    pub skips: Vec<(String, usize)>,
    /// What checks counted, one text each.
    pub notes: Vec<String>,
}

impl Counts {
    /// One failure that is no check's own: the program crashed, hung, or printed nothing useful.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.failed += 1;
        self.failures.push(why.into());
    }

    /// Counts a check that did not run.
    pub fn skip(&mut self, why: impl Into<String>) {
        self.skipped += 1;
        self.note_skip(why.into(), 1);
    }

    pub fn note_skip(&mut self, why: String, times: usize) {
        match self.skips.iter_mut().find(|(known, _)| *known == why) {
            Some((_, known)) => *known += times,
            None => self.skips.push((why, times)),
        }
    }

    /// A chapter that ran nothing has proven nothing.
    pub fn refuse_nothing(&mut self) {
        if self.passed + self.failed + self.skipped == 0 {
            self.fail("it ran no tests");
        }
    }

    fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.notes.extend(other.notes);
        other.skips.into_iter().for_each(|(why, times)| self.note_skip(why, times));
    }

    /// The failures, or else the reasons of the skips, in one line.
    pub fn why(&self) -> String {
        let skips = || {
            let one = |(why, times): &(String, usize)| match times {
                1 => why.clone(),
                _ => format!("{why} ({times})"),
            };
            self.skips.iter().map(one).collect::<Vec<_>>().join("; ")
        };
        let text = if self.failed > 0 { self.failures.join("; ") } else { skips() };
        shortened(&text.split_whitespace().collect::<Vec<_>>().join(" "), MOST_REASON)
    }

    /// One word and the counts, for tables.
    pub fn cell(&self) -> String {
        match self {
            Counts { failed: 0, passed: 0, .. } => "skip".into(),
            Counts { failed: 0, passed, .. } => format!("ok {passed}"),
            Counts { failed, passed, .. } => format!("FAIL {failed}/{}", failed + passed),
        }
    }
}

/// Cuts a text at a character, with a mark.
pub fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{} …", &text[..at]),
        None => text.to_owned(),
    }
}

/// One row of the results.
#[derive(Clone, Debug)]
pub struct Row {
    pub chapter: &'static str,
    /// A device, a pair, or `all`.
    pub device: String,
    /// The devices that the row counts for in the table.
    pub of: Vec<String>,
    pub counts: Counts,
    pub took: Duration,
}

/// Joins rows of the same chapter and device, in the order in which they began.
pub fn joined(rows: Vec<Row>) -> Vec<Row> {
    let mut all: Vec<Row> = Vec::new();
    for row in rows {
        let same = |known: &&mut Row| known.chapter == row.chapter && known.device == row.device;
        match all.iter_mut().find(same) {
            Some(known) => {
                known.took += row.took;
                known.counts.add(row.counts);
            }
            None => all.push(row),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_no_success() {
        let mut counts = Counts::default();
        counts.refuse_nothing();
        assert_eq!((counts.failed, counts.cell().as_str()), (1, "FAIL 1/1"));
        assert_eq!(counts.why(), "it ran no tests");
        let mut counts = Counts::default();
        counts.skip("no GPU");
        counts.skip("no GPU");
        counts.refuse_nothing();
        assert_eq!((counts.failed, counts.cell().as_str()), (0, "skip"));
        assert_eq!(counts.why(), "no GPU (2)");
    }

    #[test]
    fn rows_of_one_place_are_joined() {
        let row = |device: &str, passed| Row {
            chapter: "pairs",
            device: device.into(),
            of: Vec::new(),
            counts: Counts { passed, ..Counts::default() },
            took: Duration::from_secs(1),
        };
        let all = joined(vec![row("a", 1), row("b", 2), row("a", 4)]);
        let told: Vec<_> = all.iter().map(|row| (&*row.device, row.counts.passed)).collect();
        assert_eq!(told, [("a", 5), ("b", 2)]);
        assert_eq!(all[0].took.as_secs(), 2);
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        assert_eq!(shortened("añb", 2), "añ …");
        assert_eq!(shortened("añ", 2), "añ");
    }
}
