//! The modules inside each module of the core form levels, too: siblings do not name each other in a ring. Re-exports by a parent are
//! followed to the module that defines the name.

use super::{
    Place,
    cycles::{Code, Graph, core_code, ring},
    paths, resolve, tokens, unfold,
};
use std::collections::{BTreeMap, BTreeSet};

/// The modules of a crate, and the names that each one re-exports from modules below it.
struct Modules {
    all: BTreeSet<Place>,
    exports: BTreeMap<(Place, String), Place>,
}

impl Modules {
    fn of(files: &[Code]) -> Self {
        let all: BTreeSet<Place> = files.iter().map(|file| file.module.clone()).collect();
        let mut exports = BTreeMap::new();
        for file in files {
            for mut path in used(&file.text) {
                let name = path.pop().unwrap_or_default();
                let home = [&file.module[..], &path].concat();
                if all.contains(&home) {
                    exports.insert((file.module.clone(), name), home);
                }
            }
        }
        Self { all, exports }
    }

    /// The module that defines what a path names.
    fn home(&self, place: &[String]) -> Place {
        let mut at = Place::new();
        for word in place {
            let below = [&at[..], std::slice::from_ref(word)].concat();
            if self.all.contains(&below) {
                at = below;
            } else {
                return self.exports.get(&(at.clone(), word.clone())).cloned().unwrap_or(at);
            }
        }
        at
    }
}

/// The paths of `use` declarations that begin with a name.
fn used(code: &str) -> Vec<Place> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    for at in (0..tokens.len()).filter(|at| tokens[*at] == "use") {
        unfold(&tokens[at + 1..], &[], &mut found);
    }
    found
}

/// For each module, which of the modules inside it name which others.
fn graphs(files: &[Code]) -> BTreeMap<Place, Graph> {
    let modules = Modules::of(files);
    let mut graphs: BTreeMap<Place, Graph> = BTreeMap::new();
    for file in files {
        for path in paths(&file.text) {
            let (ours, theirs) = (&file.module, resolve(&file.module, &path, &BTreeMap::new()));
            let theirs = modules.home(&theirs);
            let shared = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (ours.get(shared), theirs.get(shared)) {
                let graph = graphs.entry(ours[..shared].to_vec()).or_default();
                graph.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    graphs
}

fn rings(files: &[Code]) -> Vec<String> {
    let graphs = graphs(files);
    let rings = graphs.iter().map(|(module, graph)| (module.join("::"), ring(graph).join(" ")));
    let rings = rings.filter(|(_, ring)| !ring.is_empty());
    rings.map(|(module, ring)| format!("in `{module}`: {ring}")).collect()
}

#[test]
fn modules_inside_a_module_form_no_ring() {
    let files = core_code();
    let graph = &graphs(&files)[&vec!["buffer".to_owned()]];
    assert!(graph["part"].contains("core"), "`super::Core` is not followed: the reader is blind");
    let rings = rings(&files);
    assert!(rings.is_empty(), "{}", rings.join("\n"));
}

/// The checker detects rings.
#[test]
fn nested_rings_are_caught() {
    let file = |module: &[&str], text: &str| {
        Code::new(module.iter().map(|word| (*word).to_owned()).collect(), text)
    };
    let found = |core: &str| {
        let parent =
            "mod core;\nmod part;\npub use core::Core;\npub(crate) use part::{Part, Seen};";
        let part = "use super::Core;\npub struct Part<'c>(&'c Core);";
        let deep = file(&["buffer", "core", "deep"], "use super::super::part::Part;");
        let files = [file(&["buffer"], parent), file(&["buffer", "part"], part)];
        let core = file(&["buffer", "core"], core);
        match core.text.contains("mod deep") {
            true => rings(&files.into_iter().chain([core, deep]).collect::<Vec<_>>()),
            false => rings(&files.into_iter().chain([core]).collect::<Vec<_>>()),
        }
    };
    assert_eq!(found("pub struct Core; // super::Part"), [""; 0]);
    for seeded in ["use super::Part;", "fn f() -> crate::buffer::part::Part<'_>", "mod deep;"] {
        assert_eq!(found(seeded), ["in `buffer`: core part"], "{seeded}");
    }
}
