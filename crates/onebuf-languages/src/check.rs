//! Compares the table with the names that the languages have.

use crate::table::{Cell, LANGUAGES, Language, Row, Section, names};
use std::collections::BTreeSet;

/// The names that each language has.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// For each of [`Language::ALL`].
    pub of: [BTreeSet<String>; LANGUAGES],
    /// The types of C.
    pub c_types: BTreeSet<String>,
    /// The structures of C that users of C++ have in their hands.
    pub cpp_structures: BTreeSet<String>,
    /// What the module `onebuf_c` declares for Fortran, in lower case.
    pub by_onebuf_c: BTreeSet<String>,
}

/// Everything that is wrong, one sentence each.
pub fn problems(table: &[Section], has: &Names) -> Vec<String> {
    let mut check = Check { has, said: Default::default(), problems: Vec::new() };
    for row in table.iter().flat_map(|section| &section.rows) {
        match row {
            Row::Capability(what, cells) => check.capability(what, cells),
            Row::Only(of, _, entries) => check.only(*of, entries),
        }
    }
    check.close()
}

struct Check<'h> {
    has: &'h Names,
    /// The names that rows have: as capabilities, and of one language only.
    said: [[BTreeSet<String>; 2]; LANGUAGES],
    problems: Vec<String>,
}

impl Check<'_> {
    fn capability(&mut self, what: &str, cells: &[Cell; LANGUAGES]) {
        for (of, cell) in Language::ALL.into_iter().zip(cells) {
            match cell {
                Cell::Names(entries, _) => {
                    let found: Vec<String> =
                        entries.iter().flat_map(|entry| names(entry)).collect();
                    self.know(of, &found);
                    self.said[of as usize][0].extend(found);
                }
                Cell::Reason(_) | Cell::NotYet => {}
                Cell::LikeC => self.like_c(what, of, &cells[1]),
            }
        }
    }

    /// Whether a language has what C has without names of its own.
    fn like_c(&mut self, what: &str, of: Language, c: &Cell) {
        let Cell::Names(entries, _) = c else { return };
        for name in entries.iter().flat_map(|entry| names(entry)) {
            let is_type = self.has.c_types.contains(&name);
            let has = match of {
                Language::Cpp => match name.split_once('.') {
                    Some((structure, _)) => self.has.cpp_structures.contains(structure),
                    None => is_type || name.starts_with("ONEBUF_"),
                },
                // Types of numbers and functions need no name there; structures are known by their fields.
                _ => is_type || self.has.by_onebuf_c.contains(&name.to_lowercase()),
            };
            if !has {
                self.problems.push(format!("`{what}`: {of} needs a line, because of {name} in C"));
            }
        }
    }

    fn only(&mut self, of: Language, entries: &[String]) {
        for pattern in entries.iter().flat_map(|entry| names(entry)) {
            let all = self.has.of[of as usize].iter();
            let fits = |name: &&String| match (pattern.strip_suffix('*'), pattern.strip_prefix('*'))
            {
                (Some(start), _) => name.starts_with(start),
                (_, Some(end)) => name.ends_with(end),
                _ => **name == pattern,
            };
            let found: Vec<String> = all.filter(fits).cloned().collect();
            if found.is_empty() {
                self.problems.push(format!("the table has {pattern}, which {of} has not"));
            }
            self.said[of as usize][1].extend(found);
        }
    }

    fn know(&mut self, of: Language, found: &[String]) {
        let unknown = found.iter().filter(|name| !self.has.of[of as usize].contains(*name));
        let text = |name: &String| format!("the table has {name}, which {of} has not");
        self.problems.extend(unknown.map(text));
    }

    fn close(mut self) -> Vec<String> {
        for of in Language::ALL {
            let [shared, alone] = &self.said[of as usize];
            for name in &self.has.of[of as usize] {
                match (shared.contains(name), alone.contains(name)) {
                    (false, false) => {
                        self.problems.push(format!("{of} has {name}, and no row of the table"))
                    }
                    (true, true) => self
                        .problems
                        .push(format!("{name} is in rows of all languages and of {of} only")),
                    _ => {}
                }
            }
        }
        self.problems.sort();
        self.problems.dedup();
        self.problems
    }
}
