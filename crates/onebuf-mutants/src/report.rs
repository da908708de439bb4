//! What a run found, for people and for the next run.

use crate::{list::Mutant, trial::Verdict};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

/// One line of the table of results: verdict, name, the test that noticed it or the number of tests that did not.
pub fn line(mutant: &Mutant, verdict: &Verdict) -> String {
    let by = match verdict {
        Verdict::Caught(test) | Verdict::Timeout(test) => test.clone(),
        Verdict::Missed(tests) => tests.to_string(),
        _ => String::new(),
    };
    format!("{}\t{}\t{by}\n", verdict.word(), mutant.name)
}

/// The names of the mutants that such a table calls missed.
pub fn missed(table: &str) -> BTreeSet<String> {
    let fields = table.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let missed = fields.filter(|fields| {
        fields.len() == 3 && ["missed", "not reached", "not run"].contains(&fields[0])
    });
    missed.map(|fields| fields[1].to_owned()).collect()
}

const WORDS: [&str; 7] =
    ["caught", "timeout", "missed", "not reached", "unviable", "constant", "not run"];

/// Numbers of each verdict, for the files taken whole and for the sample, by package.
pub fn summary(mutants: &[Mutant], verdicts: &BTreeMap<usize, Verdict>) -> String {
    let mut rows: BTreeMap<(&str, &str), BTreeMap<&str, usize>> = BTreeMap::new();
    for mutant in mutants {
        let word = verdicts.get(&mutant.id).unwrap_or(&Verdict::NotRun).word();
        let part = if mutant.pure { "whole" } else { "sample" };
        for package in [&*mutant.package, "~ together"] {
            *rows.entry((part, package)).or_default().entry(word).or_default() += 1;
        }
    }
    let mut text = String::from("| part | package | mutants");
    WORDS.iter().for_each(|word| text.extend([" | ", word]));
    text.push_str(" |\n|---|---");
    text.push_str(&"|---".repeat(WORDS.len() + 1));
    text.push_str("|\n");
    for ((part, package), counts) in rows {
        let _ = write!(
            text,
            "| {part} | {} | {}",
            package.trim_start_matches("~ "),
            counts.values().sum::<usize>()
        );
        for word in WORDS {
            let _ = write!(text, " | {}", counts.get(word).copied().unwrap_or_default());
        }
        text.push_str(" |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::Genre;

    fn mutant(id: usize, pure: bool) -> Mutant {
        let (package, file, replacement) = ("p".to_owned(), "f.rs".to_owned(), String::new());
        Mutant {
            id,
            name: format!("m{id}"),
            package,
            file,
            genre: Genre::FnValue,
            line: 1,
            column: 1,
            replacement,
            pure,
        }
    }

    #[test]
    fn what_a_run_missed_is_what_the_next_one_may_run() {
        let verdicts = [
            Verdict::Caught("t".into()),
            Verdict::Missed(3),
            Verdict::Missed(0),
            Verdict::NotRun,
            Verdict::Timeout("t".into()),
            Verdict::Unviable,
            Verdict::Fixed,
        ];
        let table: String =
            (1..).zip(&verdicts).map(|(id, verdict)| line(&mutant(id, true), verdict)).collect();
        assert!(
            table.starts_with("caught\tm1\tt\nmissed\tm2\t3\nnot reached\tm3\t0\nnot run\tm4\t\n"),
            "{table}"
        );
        assert_eq!(missed(&table), BTreeSet::from(["m2", "m3", "m4"].map(str::to_owned)));
    }

    #[test]
    fn every_mutant_is_counted_once_in_each_row() {
        let mutants = [mutant(1, true), mutant(2, true), mutant(3, false)];
        let verdicts = BTreeMap::from([(1, Verdict::Caught("t".into())), (3, Verdict::Missed(1))]);
        let text = summary(&mutants, &verdicts);
        assert!(text.contains("| whole | p | 2 | 1 | 0 | 0 | 0 | 0 | 0 | 1 |"), "{text}");
        assert!(text.contains("| sample | together | 1 | 0 | 0 | 1 | 0 | 0 | 0 | 0 |"), "{text}");
    }
}
