//! No two types of the core share a name: a reader who meets one need not ask which.

use super::cycles::{Code, after, core_code};
use std::collections::BTreeMap;

/// The names that are given to a type more than once, and the modules that do so.
fn twice(files: &[Code]) -> BTreeMap<String, Vec<String>> {
    let mut homes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        for name in after(&file.text, &["struct", "enum", "trait", "union"]) {
            homes.entry(name).or_default().push(file.module.join("::"));
        }
    }
    homes.retain(|_, modules| modules.len() > 1);
    homes
}

#[test]
fn no_two_types_of_the_core_share_a_name() {
    let twice = twice(&core_code());
    assert!(twice.is_empty(), "types that share a name: {twice:#?}");
}

#[test]
fn shared_names_are_caught() {
    let file = |module: &str, text: &str| Code::new(vec![module.to_owned()], text);
    let one = file("pool", "struct State;\n// struct Loan;\nenum Found {}");
    let other = file("buffer", "pub(crate) struct State<T>(T);\nstruct Loan;");
    let shared: Vec<String> = twice(&[one, other]).into_keys().collect();
    assert_eq!(shared, ["State"]);
}
