//! No two types of a crate share a name.

use super::{
    crates,
    cycles::{Code, after, code_of},
};
use std::{collections::BTreeMap, fs};

/// The names of several types, with the modules that define them.
fn twice(files: &[Code]) -> BTreeMap<String, Vec<String>> {
    let mut homes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        // Not the parameters of macros: `struct $name`.
        let names = after(&file.text, &["struct", "enum", "trait", "union"]).into_iter();
        for name in names.filter(|name| name.starts_with(char::is_alphabetic)) {
            let modules = homes.entry(name).or_default();
            // One type may have a definition for each target.
            let module = file.module.join("::");
            if !modules.contains(&module) {
                modules.push(module);
            }
        }
    }
    homes.retain(|_, modules| modules.len() > 1);
    homes
}

/// A kind of frame source and the sink of the same kind: programs name them by their modules, `source::Udp` and `sink::Udp`.
const SOURCES_AND_SINKS: [&str; 5] = ["File", "Memory", "Mpi", "Npy", "Udp"];

#[test]
fn no_two_types_of_a_crate_share_a_name() {
    let mut found = BTreeMap::new();
    for folder in fs::read_dir(crates()).expect("the folder of crates") {
        let folder = folder.expect("a folder").path();
        let mut twice = twice(&code_of(&folder.join("src")));
        if ["onebuf-pipeline", "onebuf-mpi"].iter().any(|name| folder.ends_with(name)) {
            twice.retain(|name, _| !SOURCES_AND_SINKS.contains(&&**name));
        }
        if !twice.is_empty() {
            found.insert(folder, twice);
        }
    }
    assert!(found.is_empty(), "types that share a name: {found:#?}");
}

#[test]
fn shared_names_are_caught() {
    let file = |module: &str, text: &str| Code::new(vec![module.to_owned()], text);
    let one = file("pool", "struct State;\n// struct Loan;\nenum Found {}");
    let other = file("buffer", "pub(crate) struct State<T>(T);\nstruct Loan;");
    let shared: Vec<String> = twice(&[one, other]).into_keys().collect();
    assert_eq!(shared, ["State"]);
}
