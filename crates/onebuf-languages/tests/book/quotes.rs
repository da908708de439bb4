//! Code that pages quote from files: `<!-- quoted: examples/01-one-buffer.rs -->` before a block.
//!
//! Blank lines and indentation do not count. A line of `…`, alone or in a comment, stands for lines that are left out.

use std::{
    fs,
    path::{Path, PathBuf},
};

const MARK: &str = "<!-- quoted: ";

/// How many quotes the pages have, and those that differ from their files.
pub fn check(root: &Path, pages: &[PathBuf]) -> (usize, Vec<String>) {
    let (mut count, mut problems) = (0, Vec::new());
    for page in pages {
        let text = fs::read_to_string(root.join(page)).expect("a page");
        for part in text.split(MARK).skip(1) {
            count += 1;
            if let Err(why) = one(root, part) {
                problems.push(format!("{}: {why}", page.display()));
            }
        }
    }
    (count, problems)
}

fn one(root: &Path, part: &str) -> Result<(), String> {
    let (name, rest) = part.split_once(" -->").ok_or("a mark without its end")?;
    let file = fs::read_to_string(root.join(name)).map_err(|why| format!("{name}: {why}"))?;
    let block = rest.trim_start();
    let block = block.strip_prefix("```").ok_or_else(|| format!("{name}: no block follows"))?;
    let block = block.split_once('\n').and_then(|(_, code)| code.split_once("```"));
    let (code, _) = block.ok_or_else(|| format!("{name}: the block does not end"))?;
    let (code, file) = (lines(code), lines(&file));
    let mut at = 0;
    for quote in code.split(|line| is_gap(line)).filter(|quote| !quote.is_empty()) {
        let found = file[at..].windows(quote.len()).position(|lines| lines == quote);
        at += found.ok_or_else(|| format!("{name} has no `{}` …", quote[0]))? + quote.len();
    }
    Ok(())
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

fn is_gap(line: &str) -> bool {
    line.trim_start_matches(['/', '!', '#', ' ']) == "…"
}

/// Examples that a page tells its reader to run, and that do not exist.
pub fn missing_examples(root: &Path, pages: &[PathBuf]) -> Vec<String> {
    let mut problems = Vec::new();
    for page in pages {
        let text = fs::read_to_string(root.join(page)).expect("a page");
        for rest in text.split("--example ").skip(1) {
            let end = |c: char| !c.is_ascii_alphanumeric() && c != '-';
            let name = rest.split(end).next().unwrap_or_default();
            let is_there = ["examples", "examples/neighbours"]
                .iter()
                .any(|folder| root.join(folder).join(format!("{name}.rs")).exists());
            if !is_there {
                problems.push(format!("{}: --example {name}", page.display()));
            }
        }
    }
    problems
}
