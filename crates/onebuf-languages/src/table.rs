//! The table that people edit: which names of the languages belong together, or why a language has none.
//!
//! ```text
//! # Section
//!
//! what it is for
//! rust: Queue::{finish, flush}
//! c: onebuf_queue_{finish, flush}
//! c++: Queue::{finish, flush}
//! fortran: - the reason
//! python: Queue.{finish, flush}
//!
//! only rust: the reason
//! names, also with a star at the end or the beginning: fake::*
//! ```
//!
//! Names may be followed by `-- a note`. C++ and Fortran without a line follow C: C++ has the structures and constants of `onebuf.h`,
//! Fortran the functions by `onebuf_c`, and where C has a reason it is theirs, too. Python without a line does not have it yet.

use std::{fmt, fs, path::Path};

/// The number of languages.
pub const LANGUAGES: usize = 5;

/// A language of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    /// The crate `onebuf`.
    Rust,
    /// `onebuf.h`.
    C,
    /// `onebuf.hpp`.
    Cpp,
    /// `gpu_unified_buffers` and the modules beside it.
    Fortran,
    /// The package `onebuf`.
    Python,
}

impl Language {
    /// All, in the order of the page.
    pub const ALL: [Self; LANGUAGES] =
        [Self::Rust, Self::C, Self::Cpp, Self::Fortran, Self::Python];
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rust => "Rust",
            Self::C => "C",
            Self::Cpp => "C++",
            Self::Fortran => "Fortran",
            Self::Python => "Python",
        })
    }
}

/// What a row says about a language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Names as they were written, in braces where they have parts in common, and a note.
    Names(Vec<String>, Option<String>),
    /// Why there is none.
    Reason(String),
    /// As in C: see the [module](self).
    LikeC,
    /// There is none today.
    NotYet,
}

/// A row of the page.
#[derive(Clone, Debug)]
pub enum Row {
    /// Something that users of every language want, with a cell for each of [`Language::ALL`].
    Capability(String, Box<[Cell; LANGUAGES]>),
    /// Names of one language that others do not need, and why.
    Only(Language, String, Vec<String>),
}

/// Rows about one noun.
#[derive(Clone, Debug)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// The rows, in order.
    pub rows: Vec<Row>,
}

/// Reads the files of a folder, in the order of their names.
///
/// # Errors
/// The block that could not be understood, and why.
pub fn read(folder: &Path) -> Result<Vec<Section>, String> {
    let files = fs::read_dir(folder).map_err(|why| format!("{folder:?}: {why}"))?;
    let mut files: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
    files.sort();
    let texts = files.iter().map(fs::read_to_string).collect::<Result<Vec<_>, _>>();
    parse(&texts.map_err(|why| why.to_string())?.join("\n\n"))
}

/// Reads a table.
///
/// # Errors
/// As for [`read`].
pub fn parse(text: &str) -> Result<Vec<Section>, String> {
    let mut sections: Vec<Section> = Vec::new();
    for block in text.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        if let Some(title) = block.strip_prefix("# ") {
            sections.push(Section { title: title.to_owned(), rows: Vec::new() });
            continue;
        }
        let section = sections.last_mut().ok_or("a row before the first section")?;
        section.rows.push(row(block).map_err(|why| format!("{why} in:\n{block}"))?);
    }
    Ok(sections)
}

fn row(block: &str) -> Result<Row, String> {
    let (first, rest) = block.split_once('\n').ok_or("a row of one line")?;
    if let Some((of, reason)) = first.strip_prefix("only ").and_then(|rest| rest.split_once(": ")) {
        let of = language(of).ok_or("an unknown language")?;
        return Ok(Row::Only(of, reason.to_owned(), listed(rest)));
    }
    let mut cells = Language::ALL.map(|of| match of {
        Language::Python => Cell::NotYet,
        _ => Cell::LikeC,
    });
    for line in joined(rest) {
        let (of, text) = line.split_once(':').ok_or("a line without a language")?;
        let of = language(of).ok_or("an unknown language")?;
        cells[of as usize] = cell(text.trim());
    }
    if cells.contains(&Cell::Reason("missing".into())) {
        return Err("`missing` is no reason".into());
    }
    if cells[0] == Cell::LikeC || cells[1] == Cell::LikeC {
        return Err("Rust and C need a line each".into());
    }
    Ok(Row::Capability(first.to_owned(), Box::new(cells)))
}

fn language(word: &str) -> Option<Language> {
    Some(match word {
        "rust" => Language::Rust,
        "c" => Language::C,
        "c++" => Language::Cpp,
        "fortran" => Language::Fortran,
        "python" => Language::Python,
        _ => return None,
    })
}

/// Lines, with those that are indented joined to the one before.
fn joined(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match lines.last_mut() {
            Some(last) if line.starts_with(' ') => *last += &format!(" {}", line.trim()),
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}

fn cell(text: &str) -> Cell {
    if let Some(reason) = text.strip_prefix("- ") {
        return Cell::Reason(reason.to_owned());
    }
    match text.split_once(" -- ") {
        Some((names, note)) => Cell::Names(listed(names), Some(note.to_owned())),
        None => Cell::Names(listed(text), None),
    }
}

/// The entries of a list; commas in braces do not separate them.
fn listed(text: &str) -> Vec<String> {
    let (mut entries, mut depth) = (vec![String::new()], 0);
    for c in text.replace('\n', " ").chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match (c, entries.last_mut()) {
            (',', _) if depth == 0 => entries.push(String::new()),
            (c, Some(last)) => last.push(c),
            (_, None) => {}
        }
    }
    let entries =
        entries.iter().map(|entry| entry.split_whitespace().collect::<Vec<_>>().join(" "));
    entries.filter(|entry| !entry.is_empty()).collect()
}

/// The names of an entry: `a_{b, c}` is `a_b` and `a_c`.
pub fn names(entry: &str) -> Vec<String> {
    let parts =
        entry.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        Some((before, (inside, after))) => {
            inside.split(',').map(|one| format!("{before}{}{after}", one.trim())).collect()
        }
        None => vec![entry.to_owned()],
    }
}
