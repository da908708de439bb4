//! `SECURITY.md` lists every public call that is `unsafe`, and its names in the other languages.

use onebuf_languages::{
    check::Names,
    collect,
    rust::Sources,
    table::{self, Cell, Language, Row, names},
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The crates that programs depend on. Names of the first stand without the crate's.
const CRATES: [&str; 10] = [
    "onebuf",
    "onebuf_ash",
    "onebuf_cudarc",
    "onebuf_glow",
    "onebuf_graft",
    "onebuf_hal",
    "onebuf_mpi",
    "onebuf_opencl3",
    "onebuf_verdicts",
    "onebuf_wgpu",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The `unsafe` names of the sources.
fn of_the_sources() -> BTreeSet<String> {
    let mut sources = Sources::new(&root().join("crates"));
    let mut all = BTreeSet::new();
    for name in CRATES {
        let before = if name == CRATES[0] { String::new() } else { format!("{name}::") };
        all.extend(sources.unsafe_names(name).into_iter().map(|name| format!("{before}{name}")));
    }
    all
}

/// The words in backquotes.
fn code(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned)
}

#[derive(Default)]
struct Listed {
    rust: BTreeSet<String>,
    /// For each of [`Language::ALL`].
    others: [BTreeSet<String>; Language::ALL.len()],
}

/// The list on the page.
fn listed(page: &str) -> Listed {
    let (_, rest) = page.split_once("\n## What is unsafe\n").expect("the section");
    let section = rest.split("\n## ").next().unwrap_or(rest);
    let mut listed = Listed::default();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [rust, others, _] = &cells[..] else { panic!("{row}") };
        listed.rust.extend(code(rust));
        for part in others.split("; ") {
            let language = Language::ALL.into_iter().find(|l| part.starts_with(&format!("{l}: ")));
            assert!(language.is_some() || part == "–", "{part}");
            language.into_iter().for_each(|l| listed.others[l as usize].extend(code(part)));
        }
    }
    listed
}

/// Everything that is wrong with the list.
fn problems(page: &str, sources: &BTreeSet<String>, has: &Names) -> Vec<String> {
    let listed = listed(page);
    let covers = |entry: &String, name: &String| match entry.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => entry == name,
    };
    let mut problems = Vec::new();
    for name in sources.iter().filter(|name| !listed.rust.iter().any(|entry| covers(entry, name))) {
        problems.push(format!("{name} is unsafe, and not in the list"));
    }
    for entry in listed.rust.iter().filter(|entry| !sources.iter().any(|name| covers(entry, name)))
    {
        problems.push(format!("the list has {entry}, which is not unsafe"));
    }
    for of in Language::ALL {
        let unknown = listed.others[of as usize].difference(&has.of[of as usize]);
        problems.extend(unknown.map(|name| format!("the list has {name}, which {of} has not")));
    }
    problems.extend(missing(&listed, sources));
    problems
}

/// Unsafe calls that other languages have, too, by the table of languages, and of whose names there the list has none.
fn missing(listed: &Listed, sources: &BTreeSet<String>) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("table");
    let table = table::read(&folder).unwrap_or_else(|why| panic!("{why}"));
    let mut problems = Vec::new();
    for row in table.iter().flat_map(|section| &section.rows) {
        let Row::Capability(what, cells) = row else { continue };
        let of = |cell: &Cell| match cell {
            Cell::Names(entries, _) => entries.iter().flat_map(|entry| names(entry)).collect(),
            _ => BTreeSet::new(),
        };
        if of(&cells[0]).is_disjoint(sources) {
            continue;
        }
        for language in Language::ALL.into_iter().skip(1) {
            let there = of(&cells[language as usize]);
            if !there.is_empty() && there.is_disjoint(&listed.others[language as usize]) {
                problems.push(format!("`{what}`: the list has no name of {language}"));
            }
        }
    }
    problems
}

fn page() -> String {
    fs::read_to_string(root().join("SECURITY.md")).expect("SECURITY.md")
}

#[test]
fn the_list_of_what_is_unsafe_is_complete() {
    let (sources, has) = (of_the_sources(), collect(&root()));
    assert!(sources.len() > 80, "{} names", sources.len());
    let problems = problems(&page(), &sources, &has);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn what_is_missing_or_wrong_is_noticed() {
    let (mut sources, has) = (of_the_sources(), collect(&root()));
    sources.insert("Hub::seeded".into());
    sources.remove("Arg::again");
    let page = page().replacen("Fortran: `import_buffer`; ", "", 1).replacen(
        "C: `onebuf_kernel_create`",
        "C: `onebuf_kernel_seeded`",
        1,
    );
    let said = problems(&page, &sources, &has);
    let expected = [
        "Hub::seeded is unsafe, and not in the list",
        "the list has Arg::again, which is not unsafe",
        "the list has onebuf_kernel_seeded, which C has not",
        "`import memory by a descriptor`: the list has no name of Fortran",
        "`declare a kernel`: the list has no name of C",
    ];
    assert_eq!(said, expected);
}

#[test]
fn unsafe_calls_are_found_in_the_sources() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("onebuf/src/lib.rs");
    fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
    let text = "pub struct A; impl A { pub unsafe fn a(&self) {} pub fn safe(&self) {} unsafe fn private(&self) {} }
        pub trait Ext { unsafe fn b(&self); fn safe(&self); } pub unsafe trait C {} pub unsafe fn d() {} pub fn safe() {}
        #[doc(hidden)] pub unsafe fn hidden() {}
        macro_rules! made { ($name:ident {}) => { pub struct $name; impl $name { pub unsafe fn e(&self) {} pub fn safe(&self) {} } } }
        made!(Made {});";
    fs::write(&file, text).expect("a file");
    let found = Sources::new(folder.path()).unsafe_names("onebuf");
    assert_eq!(found, ["A::a", "C", "Ext::b", "Made::e", "d"].map(String::from).into());
}
