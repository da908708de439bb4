//! Programs on pages: each is run or compiled by a test.
//!
//! Rust is a documentation test where the page is included in a crate. Quotes are compared with their files, which tests run. For the
//! other pages `TESTED` has the test.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A language on a page, and the test that runs or compiles those blocks: its file names the page.
const TESTED: [(&str, &str, &str); 10] = [
    ("docs/c.md", "c", "crates/onebuf-capi/tests/capi/programs.rs"),
    ("docs/c.md", "cpp", "crates/onebuf-capi/tests/capi/programs.rs"),
    ("docs/coming-from.md", "cpp", "crates/onebuf-capi/tests/capi/programs.rs"),
    ("docs/fortran.md", "fortran", "crates/onebuf-capi/tests/capi/fortran.rs"),
    ("docs/migration-0.2.md", "python", "crates/onebuf-cli/tests/cli/book.rs"),
    ("docs/neighbours/kokkos.md", "cpp", "crates/onebuf-capi/tests/capi/programs.rs"),
    ("docs/neighbours/sycl.md", "cpp", "crates/onebuf-capi/tests/capi/programs.rs"),
    ("docs/neighbours/cupy.md", "python", "crates/onebuf-python/tests/test_page.py"),
    ("docs/neighbours/pyopencl.md", "python", "crates/onebuf-python/tests/test_page.py"),
    ("docs/python.md", "python", "crates/onebuf-python/tests/test_page.py"),
];
/// Where those tests take blocks with this first line only.
const BEGINNING: (&str, &str) = ("docs/coming-from.md", "// after");
/// Where those tests take the first block of a page only.
const FIRST: [(&str, &str); 4] = [
    ("docs/c.md", "c"),
    ("docs/c.md", "cpp"),
    ("docs/neighbours/kokkos.md", "cpp"),
    ("docs/neighbours/sycl.md", "cpp"),
];
const LANGUAGES: [&str; 5] = ["rust", "c", "cpp", "fortran", "python"];

struct Block<'a> {
    line: usize,
    /// What follows the three ticks, such as `rust,no_run`.
    head: &'a str,
    /// The last line before it that is not empty.
    before: &'a str,
    first_line: &'a str,
}

/// How many programs the pages have, and those that no test runs or compiles.
pub fn untested(root: &Path, pages: &[PathBuf]) -> (usize, Vec<String>) {
    let included = included(root);
    let (mut count, mut problems) = (0, Vec::new());
    for page in pages {
        let text = fs::read_to_string(root.join(page)).expect("a page");
        let name = page.to_string_lossy();
        let mut taken = Vec::new();
        for block in blocks(&text) {
            let language = block.head.split(',').next().unwrap_or_default();
            if !LANGUAGES.contains(&language) {
                continue;
            }
            count += 1;
            let is_compiled =
                language == "rust" && included.contains(page) && !block.head.contains("ignore");
            // Of the program that the reader has: nothing of onebuf.
            let is_theirs = block.before == "Before:"
                || block.first_line.starts_with("! before")
                || block.before.ends_with(" Before:");
            let is_quoted = block.before.starts_with("<!-- quoted: ");
            if is_compiled || is_theirs || is_quoted {
                continue;
            }
            let of_the_page = (&*name, language);
            let is_tested = is_in_a_test(root, of_the_page)
                && (*name != *BEGINNING.0 || block.first_line == BEGINNING.1)
                && !(FIRST.contains(&of_the_page) && taken.contains(&language));
            taken.push(language);
            if !is_tested {
                problems.push(format!(
                    "{name}:{}: no test has this block of {}",
                    block.line, block.head
                ));
            }
        }
    }
    (count, problems)
}

fn is_in_a_test(root: &Path, (page, language): (&str, &str)) -> bool {
    let row = TESTED.iter().find(|(of, in_language, _)| (*of, *in_language) == (page, language));
    let Some((_, _, file)) = row else { return false };
    let name = page.strip_prefix("docs/").expect("a page of docs");
    let file = fs::read_to_string(root.join(file)).unwrap_or_default();
    // Python's tests name the folder and the page apart.
    file.contains(&format!("{name}\""))
}

/// The pages that the crates' first files include for documentation tests.
fn included(root: &Path) -> Vec<PathBuf> {
    let crates = fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let texts: Vec<String> = crates
        .filter_map(|entry| fs::read_to_string(entry.path().join("src/lib.rs")).ok())
        .collect();
    let pages =
        texts.iter().flat_map(|text| text.split("#[doc = include_str!(\"../../../").skip(1));
    pages.filter_map(|rest| Some(PathBuf::from(rest.split_once('"')?.0))).collect()
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut blocks, mut before, mut inside) = (Vec::new(), "", false);
    for (at, line) in lines.iter().map(|line| line.trim()).enumerate() {
        if let Some(head) = line.strip_prefix("```") {
            if !inside {
                let first_line = lines.get(at + 1).copied().unwrap_or_default().trim();
                blocks.push(Block { line: at + 1, head, before, first_line });
            }
            inside = !inside;
        }
        if !line.is_empty() {
            before = line;
        }
    }
    blocks
}
