//! `docs/drivers.md` shows every file of `docs/verdicts`, and a file that does not belong there is an error.

use onebuf::topology::VerdictState;
use onebuf_verdicts::{
    folder::{self, Entry},
    page::page,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn checked_in() -> Vec<Entry> {
    folder::read(&docs().join("verdicts")).unwrap_or_else(|why| panic!("docs/verdicts: {why}"))
}

#[test]
fn the_page_is_what_the_files_say() {
    let (file, wanted) = (docs().join("drivers.md"), page(&checked_in()));
    if env::var_os("ONEBUF_WRITE_DRIVERS").is_some() {
        return fs::write(file, wanted).expect("the page");
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == wanted, "docs/drivers.md differs from docs/verdicts: run `./dev drivers`");
}

#[test]
fn every_route_is_on_the_page() {
    let (entries, page) = (checked_in(), page(&checked_in()));
    for Entry { name, findings } in &entries {
        let (_, section) = page.split_once(&format!("\n## {name}\n")).expect("a section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        assert_eq!(rows.count(), findings.devices.len() + findings.routes.len(), "{name}");
    }
}

/// A verdict that changes, changes the page.
#[test]
fn another_verdict_is_another_page() {
    let before = page(&checked_in());
    for (state, zero_copy) in [
        (VerdictState::Refuted, None),
        (VerdictState::Declared, None),
        (VerdictState::Proven, Some(false)),
    ] {
        let mut entries = checked_in();
        let routes = entries.iter_mut().flat_map(|entry| &mut entry.findings.routes);
        let proven = |route: &&mut onebuf_verdicts::Route| route.zero_copy == Some(true);
        let route = routes.into_iter().find(proven).expect("a proven route");
        (route.state, route.zero_copy) = (state, zero_copy);
        assert_ne!(page(&entries), before, "{state:?}");
    }
    assert!(page(&[]).contains("no findings yet"));
}

/// What drivers say is text, not markup.
#[test]
fn a_driver_cannot_write_the_page() {
    let mut entries = checked_in();
    let name = "| x | <script> [a](http://b) `c`\n## d";
    entries[0].findings.devices[0].name = name.into();
    let found = page(&entries);
    assert!(!found.contains("<script>") && !found.contains("[a](http"), "{found}");
    assert_eq!(found.matches("\n## ").count(), page(&checked_in()).matches("\n## ").count());
}

/// A folder with a good file, and one more.
fn folder_with(name: &str, text: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let good = checked_in().swap_remove(0);
    fs::write(folder.path().join("good.json"), good.findings.text()).expect("a file");
    fs::write(folder.path().join(name), text).expect("a file");
    folder
}

#[test]
fn files_that_do_not_belong_there_are_named() {
    let good = checked_in().swap_remove(0).findings.text();
    let wrong = [
        ("bad.json", "{", "bad.json: this is not JSON"),
        ("other.json", "{\"devices\":[\"host\"]}", "other.json: this is not an object of"),
        ("old.json", &good.replace("\"schema\": 2", "\"schema\": 1"), "old.json: `schema` is 1"),
        ("Name.json", &good, "Name.json: a name has lower-case letters"),
        (".json", &good, ".json: a name has"),
        ("notes.txt", "x", "notes.txt: findings are in files NAME.json"),
    ];
    for (name, text, part) in wrong {
        let folder = folder_with(name, text);
        let why = folder::read(folder.path()).expect_err(name);
        assert!(why.starts_with(part) && why.lines().count() == 1, "{name}: {why}");
    }
    let folder = folder_with("README.md", "for people");
    assert_eq!(folder::read(folder.path()).expect("the good one").len(), 1);
    fs::create_dir(folder.path().join("more")).expect("a folder");
    fs::write(folder.path().join("large.json"), vec![b' '; (4 << 20) + 1]).expect("a file");
    let why = folder::read(folder.path()).expect_err("two problems");
    let lines: Vec<&str> = why.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("large.json: 4194305 bytes"), "{why}");
    assert_eq!(lines[1], "more: this is no file");
    assert!(folder::read(&folder.path().join("none")).expect_err("none").contains("No such file"));
}
