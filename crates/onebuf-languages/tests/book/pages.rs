//! The pages of the book, and its table of contents.

use crate::links;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The pages at the root and below `docs`, relative to the root.
pub fn all(root: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    collect(root, root, false, &mut pages);
    collect(root, &root.join("docs"), true, &mut pages);
    pages.sort();
    pages
}

fn collect(root: &Path, folder: &Path, deep: bool, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && deep {
            collect(root, &path, deep, pages);
        } else if path.extension().is_some_and(|end| end == "md") {
            pages.push(path.strip_prefix(root).expect("below the root").to_path_buf());
        }
    }
}

/// Pages of `docs` that `docs/SUMMARY.md` does not list exactly once; for decisions, their own index.
pub fn unlisted(root: &Path) -> Vec<String> {
    let docs = root.join("docs");
    let summary = count(&docs, "SUMMARY.md");
    let decisions = count(&docs, "decisions/README.md");
    let mut problems = Vec::new();
    for page in all(root) {
        let Ok(page) = page.strip_prefix("docs") else { continue };
        let name = page.to_string_lossy().into_owned();
        let is_decision = name.starts_with("decisions/") && name != "decisions/README.md";
        let (index, list) = if is_decision {
            ("decisions/README.md", &decisions)
        } else {
            ("SUMMARY.md", &summary)
        };
        let times = list.get(&docs.join(page)).copied().unwrap_or(0);
        if times != 1 && name != "SUMMARY.md" {
            problems.push(format!("docs/{name}: {times} times in docs/{index}"));
        }
    }
    problems
}

/// How often an index links to each page.
fn count(docs: &Path, index: &str) -> BTreeMap<PathBuf, usize> {
    let file = docs.join(index);
    let mut counts = BTreeMap::new();
    for link in links::of(&fs::read_to_string(&file).unwrap_or_default()) {
        let folder = file.parent().expect("a parent");
        *counts.entry(links::resolve(folder, &link)).or_insert(0) += 1;
    }
    counts
}
