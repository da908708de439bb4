//! A folder of findings.

use crate::Findings;
use std::{fs, path::Path};

/// The largest file, in bytes. A machine with a hundred routes has 60 KiB.
const MOST_BYTES: u64 = 4 << 20;

/// One file of the folder.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The file's name without `.json`.
    pub name: String,
    /// What is in it.
    pub findings: Findings,
}

/// Reads all files of a folder, sorted by name. Beside findings there may be a `README.md` and reports of the conformance bundle
/// (`NAME-conformance.txt`).
///
/// # Errors
/// One line for each file that does not belong there or is wrong, and why.
pub fn read(folder: &Path) -> Result<Vec<Entry>, String> {
    let unreadable = |error: std::io::Error| format!("{}: {error}", folder.display());
    let (mut entries, mut problems) = (Vec::new(), Vec::new());
    for file in fs::read_dir(folder).map_err(unreadable)? {
        let file = file.map_err(unreadable)?;
        let name = file.file_name().to_string_lossy().into_owned();
        match entry(&file, &name) {
            Ok(entry) => entries.extend(entry),
            Err(why) => problems.push(format!("{name}: {why}")),
        }
    }
    problems.sort();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    match problems.is_empty() {
        true => Ok(entries),
        false => Err(problems.join("\n")),
    }
}

/// One file; `None` if it is text for people.
fn entry(file: &fs::DirEntry, name: &str) -> Result<Option<Entry>, String> {
    let about = file.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("this is no file".into());
    }
    if name == "README.md" || name.ends_with("-conformance.txt") {
        return Ok(None);
    }
    let Some(stem) = name.strip_suffix(".json") else {
        return Err("findings are in files NAME.json".into());
    };
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_+".contains(&byte);
    if stem.is_empty() || stem.starts_with('.') || !stem.bytes().all(is_plain) {
        return Err("a name has lower-case letters, digits and . - _ + only".into());
    }
    if about.len() > MOST_BYTES {
        return Err(format!("{} bytes, and findings have at most {MOST_BYTES}", about.len()));
    }
    let text = fs::read_to_string(file.path()).map_err(|error| error.to_string())?;
    let findings = Findings::parse(&text)?;
    Ok(Some(Entry { name: stem.to_owned(), findings }))
}
