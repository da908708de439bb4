//! The book: every link leads somewhere, every page is in the table of contents, quoted code is in its file, named examples exist,
//! each program is run or compiled by a test.
//!
//! `./dev docs` runs these tests, builds the book as HTML, and checks the links of that, too.

#[path = "book/links.rs"]
mod links;
#[path = "book/pages.rs"]
mod pages;
#[path = "book/programs.rs"]
mod programs;
#[path = "book/quotes.rs"]
mod quotes;

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tempfile::TempDir;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the root of the sources")
}

fn nothing(what: &str, problems: &[String]) {
    assert!(problems.is_empty(), "{} {what}:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages::all(&root());
    assert!(pages.len() > 150, "{} pages", pages.len());
    let (links, problems) = links::check(&root(), &pages);
    assert!(links > 600, "{links} links");
    nothing("broken links", &problems);
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    nothing("problems of docs/SUMMARY.md", &pages::unlisted(&root()));
}

#[test]
fn quoted_code_is_in_its_file() {
    let pages = pages::all(&root());
    let (quotes, problems) = quotes::check(&root(), &pages);
    assert!(quotes > 8, "{quotes} quotes");
    nothing("quotes differ from their files", &problems);
}

#[test]
fn named_examples_exist() {
    nothing("examples", &quotes::missing_examples(&root(), &pages::all(&root())));
}

#[test]
fn every_program_is_run_or_compiled() {
    let (programs, problems) = programs::untested(&root(), &pages::all(&root()));
    assert!(programs > 100, "{programs} programs");
    nothing("programs are not tested", &problems);
}

const PLOTS: &str = "benches/plots.py";

fn plots(root: &Path) -> Output {
    let script = Command::new("/usr/bin/python3").arg(root.join(PLOTS)).arg("--check").output();
    script.expect("Python starts")
}

/// The control: results that differ are noticed.
#[test]
fn figures_show_their_results() {
    if !Path::new("/usr/bin/python3").exists() {
        assert!(env::var_os("ONEBUF_STRICT").is_none(), "/usr/bin/python3 is missing");
        println!("skip: figures: /usr/bin/python3 is missing");
        return;
    }
    let ran = plots(&root());
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    let folder = book(&[(PLOTS, &fs::read_to_string(root().join(PLOTS)).expect("the script"))]);
    let figures = folder.path().join("docs/figures");
    fs::create_dir_all(&figures).expect("a folder");
    for entry in fs::read_dir(root().join("docs/figures")).expect("figures").flatten() {
        let text = fs::read_to_string(entry.path()).expect("a figure or results");
        // The first row of each machine is a hand-over.
        let text = text.replacen("\"value\": ", "\"value\": 9", 1);
        fs::write(figures.join(entry.file_name()), text).expect("a file");
    }
    let said = String::from_utf8(plots(folder.path()).stdout).expect("text");
    assert!(said.starts_with("handovers.svg is older"), "{said}");
}

/// `ONEBUF_BOOK` names the folder of the built book.
#[test]
#[ignore = "`./dev docs` builds the book first"]
fn links_of_the_built_book() {
    let folder = PathBuf::from(env::var_os("ONEBUF_BOOK").expect("ONEBUF_BOOK: the built book"));
    let (links, problems) = links::check_html(&folder);
    assert!(links > 1000, "{links} links");
    nothing("broken links in the built book", &problems);
}

// The controls: what is wrong is found.

fn book(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a page");
    }
    folder
}

#[test]
fn broken_links_are_found() {
    let book = book(&[
        ("README.md", "[a](docs/a.md#one-two) [b](docs/b.md) ![c](c.svg)\n<img src=\"d.svg\">"),
        (
            "docs/a.md",
            "# One `two`\n[up](../README.md) [no](#three)\n```\n[no](link)\n```\n`[no](link)`",
        ),
    ]);
    let (count, problems) = links::check(book.path(), &pages::all(book.path()));
    assert_eq!(count, 6, "{problems:?}");
    let all = problems.join("\n");
    for missing in ["docs/b.md", "c.svg", "d.svg", "docs/a.md: #three"] {
        assert!(all.contains(missing), "{missing}: {all}");
    }
    assert_eq!(problems.len(), 4, "{all}");
}

#[test]
fn anchors_are_those_of_the_headings() {
    let text = "# A, b & `c_d`\n## Same\n## Same\n```\n# no\n```\n### [Linked](x.md): 1.2\n<a id=\"own\"></a>";
    let found: BTreeSet<String> = links::anchors(text);
    let expected = ["a-b--c_d", "linked-12", "own", "same", "same-1"];
    assert_eq!(found, expected.map(String::from).into());
}

#[test]
fn pages_that_are_not_listed_are_found() {
    let book = book(&[
        ("docs/SUMMARY.md", "- [A](a.md)\n- [A again](a.md)"),
        ("docs/a.md", ""),
        ("docs/b/c.md", ""),
        ("docs/decisions/README.md", "[0001](0001-x.md)"),
        ("docs/decisions/0001-x.md", ""),
        ("docs/decisions/0002-y.md", ""),
    ]);
    let problems = pages::unlisted(book.path()).join("\n");
    for found in
        ["a.md: 2 times", "b/c.md: 0 times", "decisions/README.md: 0 times", "0002-y.md: 0 times"]
    {
        assert!(problems.contains(found), "{found}: {problems}");
    }
    assert_eq!(problems.lines().count(), 4, "{problems}");
}

#[test]
fn altered_quotes_are_found() {
    let book = book(&[
        ("x.rs", "fn main() {\n    one();\n\n    two(); // why\n    three();\n}\n"),
        ("good.md", "<!-- quoted: x.rs -->\n```rust,ignore\none();\ntwo(); // why\n// …\n}\n```"),
        ("order.md", "<!-- quoted: x.rs -->\n```rust,ignore\nthree();\n// …\none();\n```"),
        ("gap.md", "<!-- quoted: x.rs -->\n\n```rust,ignore\none();\nthree();\n```"),
        ("lost.md", "<!-- quoted: y.rs -->\n```rust,ignore\none();\n```"),
        ("none.md", "<!-- quoted: x.rs -->\ntext"),
    ]);
    let (count, problems) = quotes::check(book.path(), &pages::all(book.path()));
    assert_eq!((count, problems.len()), (5, 4), "{problems:?}");
    assert!(!problems.join("\n").contains("good.md"), "{problems:?}");
}

#[test]
fn examples_that_do_not_exist_are_found() {
    let book = book(&[
        ("examples/01-a.rs", ""),
        ("a.md", "`cargo run -p onebuf-examples --example 01-a` and `--example 02-b`"),
    ]);
    let problems = quotes::missing_examples(book.path(), &pages::all(book.path()));
    assert!(matches!(&problems[..], [one] if one.contains("02-b")), "{problems:?}");
}

#[test]
fn programs_without_a_test_are_found() {
    let rust = "```rust\nlet a = 1;\n```\n";
    let book = book(&[
        ("crates/a/src/lib.rs", "#[doc = include_str!(\"../../../docs/a.md\")]\nstruct A;"),
        ("crates/onebuf-capi/tests/capi/programs.rs", "first_block(\"c.md\", \"page.cpp\")"),
        ("docs/a.md", &format!("{rust}```rust,ignore\nx\n```\n```text\nno program\n```")),
        (
            "docs/b.md",
            &format!(
                "{rust}<!-- quoted: x.rs -->\n```rust,ignore\ny\n```\nBefore:\n\n```cpp\nz\n```"
            ),
        ),
        ("docs/c.md", "```cpp\nint main() {}\n```\n\n```cpp\nint two;\n```"),
    ]);
    let (count, problems) = programs::untested(book.path(), &pages::all(book.path()));
    let wrong: Vec<&str> = problems.iter().filter_map(|one| one.split(": ").next()).collect();
    assert_eq!((count, &wrong[..]), (7, &["docs/a.md:4", "docs/b.md:1", "docs/c.md:5"][..]));
}
