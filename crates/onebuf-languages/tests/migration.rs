//! `docs/migration-0.2.md` names everything public that 0.1.1 had and that is gone. `names-0.1/` has the names of 0.1.1, as this crate found
//! them in its sources; the crate `onebuf`, C, C++ and Fortran existed then.

use onebuf_languages::{collect, fortran::Modules};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A file of names, and the heading of the page that concerns them.
const LANGUAGES: [(&str, &str); 4] = [
    ("rust.txt", "## Rust"),
    ("c.txt", "## C ABI"),
    ("cpp.txt", "## C++ classes"),
    ("fortran.txt", "## Fortran"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names of 0.1.1 and those of now.
fn names() -> [(BTreeSet<String>, BTreeSet<String>); 4] {
    let [rust, c, cpp, mut fortran, _python] = collect(&root()).of;
    let modules = Modules::read(&root().join("bindings/fortran/src"));
    fortran.extend(modules.public_names("gpu_fence_primitives"));
    let now = [rust, c, cpp, fortran];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("names-0.1");
    let mut files = LANGUAGES.iter();
    now.map(|now| {
        let (file, _) = files.next().expect("a file for each language");
        let text = fs::read_to_string(folder.join(file)).expect("the names of 0.1.1");
        (text.lines().map(str::to_owned).collect(), now)
    })
}

/// The words in code below a heading, `*` included.
fn words<'p>(page: &'p str, heading: &str) -> BTreeSet<&'p str> {
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).expect(heading);
    let section = rest.split("\n## ").next().unwrap_or(rest);
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '*';
    let spans = section.split('`').skip(1).step_by(2);
    spans.flat_map(|span| span.split(|c| !is_word(c))).filter(|word| !word.is_empty()).collect()
}

fn last(name: &str) -> &str {
    name.rsplit([':', '.', '%']).next().unwrap_or(name)
}

/// The item that a member belongs to.
fn owner(name: &str) -> Option<&str> {
    let at = name.rfind([':', '.', '%'])?;
    Some(name[..at].trim_end_matches(':'))
}

/// Whether the page has a word for a name that is gone: its own, its item's if that is gone, too, or one that ends with `*`.
fn is_told(name: &str, words: &BTreeSet<&str>, gone: &BTreeSet<&String>) -> bool {
    let is_named = |name: &str| {
        words.contains(name)
            || words.iter().any(|word| {
                word.strip_suffix('*')
                    .is_some_and(|start| !start.is_empty() && name.starts_with(start))
            })
    };
    is_named(last(name))
        || owner(name)
            .is_some_and(|owner| gone.contains(&owner.to_owned()) && is_named(last(owner)))
}

/// What is gone and not on the page.
fn untold(page: &str, names: &[(BTreeSet<String>, BTreeSet<String>); 4]) -> Vec<String> {
    let mut found = Vec::new();
    for ((_, heading), (before, now)) in LANGUAGES.iter().zip(names) {
        let (words, gone) = (words(page, heading), before.difference(now).collect());
        let untold = before.difference(now).filter(|name| !is_told(name, &words, &gone));
        found.extend(untold.map(|name| format!("{heading}: {name}")));
    }
    found
}

#[test]
fn everything_that_is_gone_has_its_row() {
    let page = fs::read_to_string(root().join("docs/migration-0.2.md")).expect("the page");
    let names = names();
    let counts = names.each_ref().map(|(before, _)| before.len());
    assert_eq!(counts, [1202, 677, 353, 73], "0.1.1 does not change");
    let untold = untold(&page, &names);
    assert!(
        untold.is_empty(),
        "{} names are gone, and not on the page:\n{}",
        untold.len(),
        untold.join("\n")
    );

    // The control: what goes without a word is noticed.
    let mut names = names;
    for ((_, now), name) in names.iter_mut().zip([
        "Buffer::hand_to",
        "onebuf_buffer_fill",
        "Queue::flush",
        "gpu_fence_create",
    ]) {
        assert!(now.remove(name), "{name}");
    }
    let expected = [
        "## Rust: Buffer::hand_to",
        "## C ABI: onebuf_buffer_fill",
        "## C++ classes: Queue::flush",
        "## Fortran: gpu_fence_create",
    ];
    assert_eq!(self::untold(&page, &names), expected);
}
