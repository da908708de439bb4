//! The core's modules form levels: none depends on itself through the modules that it names.
//!
//! A module names another by a path (`crate::`, `super::`, in use trees, by re-exports of the root), and by calling a method
//! that only the other module adds to a third module's type: `impl Hub { fn programs() }` in `program` is a part of `program`.

use super::{
    Place, exports, paths, read, resolve, sources, tokens, without_comments, without_tests,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// The folder of the core.
const CORE: &str = "onebuf-core/src";

/// The modules that each module names.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// One file: its module, and its code without comments, strings and tests.
pub struct Code {
    pub module: Place,
    pub text: String,
}

impl Code {
    pub fn new(module: Place, text: &str) -> Self {
        let text = without_strings(&without_comments(text));
        Self { text: without_tests(&module, &text).to_owned(), module }
    }

    pub fn area(&self) -> &str {
        &self.module[0]
    }
}

/// The files of a crate that are neither its root nor tests.
pub fn code_of(folder: &Path) -> Vec<Code> {
    let is_test = |name: &String| name.starts_with("test") || name.ends_with("tests");
    let modules = sources(folder).into_iter();
    let modules = modules.filter(|(module, _)| !module.is_empty() && !module.iter().any(is_test));
    modules.map(|(module, path)| Code::new(module, &read(path))).collect()
}

/// The files of the core.
pub fn core_code() -> Vec<Code> {
    let files = code_of(&super::crates().join(CORE));
    assert!(files.len() > 40, "only {} files were found", files.len());
    files
}

/// Removes string literals, which name nothing and may contain brackets.
fn without_strings(code: &str) -> String {
    let (mut out, mut inside, mut chars) = (String::new(), false, code.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            '\\' if inside => drop(chars.next()),
            '\'' if !inside && chars.peek() == Some(&'"') => drop((chars.next(), chars.next())),
            '"' => inside = !inside,
            _ if inside => {}
            c => out.push(c),
        }
    }
    out
}

/// The modules that each module of a crate names. `below` are the files of lower crates: a method that they also define does not
/// count.
fn graph(files: &[Code], below: &[Code], exports: &BTreeMap<String, String>) -> Graph {
    let areas: BTreeSet<&str> = files.iter().map(Code::area).collect();
    let added = added_methods(files, below);
    let mut graph = Graph::new();
    for file in files {
        let named = paths(&file.text).into_iter().map(|path| resolve(&file.module, &path, exports));
        let named = named.filter_map(|place| place.into_iter().next());
        let called = calls(&file.text).into_iter().filter_map(|name| added.get(&name).cloned());
        let theirs = named.chain(called).filter(|area| areas.contains(&**area));
        let theirs = theirs.filter(|area| area != file.area());
        graph.entry(file.area().to_owned()).or_default().extend(theirs);
    }
    graph
}

/// The methods that only one module defines, on a type of another module.
fn added_methods(files: &[Code], below: &[Code]) -> BTreeMap<String, String> {
    let types = files.iter().flat_map(|file| {
        after(&file.text, &["struct", "enum"]).into_iter().map(|name| (name, file.area()))
    });
    let mut homes: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (name, area) in types {
        homes.entry(name).or_default().insert(area);
    }
    let mut functions: BTreeMap<String, usize> = BTreeMap::new();
    for name in files.iter().chain(below).flat_map(|file| after(&file.text, &["fn"])) {
        *functions.entry(name).or_default() += 1;
    }
    let added = files.iter().flat_map(|file| {
        let impls = inherent(&file.text).into_iter();
        let others =
            impls.filter(|(of, _)| homes.get(of).is_some_and(|areas| !areas.contains(file.area())));
        others.flat_map(|(_, names)| names).map(|name| (name, file.area().to_owned()))
    });
    added.filter(|(name, _)| functions.get(name) == Some(&1)).collect()
}

/// The names that follow one of these words.
pub fn after(code: &str, words: &[&str]) -> Vec<String> {
    let tokens = tokens(code);
    let pairs = tokens.windows(2).filter(|pair| words.contains(&pair[0]));
    pairs.map(|pair| pair[1].to_owned()).collect()
}

/// The called methods: `.name(` and `.name::<`.
fn calls(code: &str) -> Vec<String> {
    let tokens = tokens(code);
    let calls = tokens.windows(3).filter(|at| at[0] == "." && ["(", "::"].contains(&at[2]));
    calls.map(|at| at[1].to_owned()).collect()
}

/// Each inherent `impl`: the type's name, and the functions in it.
fn inherent(code: &str) -> Vec<(String, Vec<String>)> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    for at in (0..tokens.len()).filter(|at| tokens[*at] == "impl") {
        let Some(open) = tokens[at..].iter().position(|token| *token == "{").map(|n| at + n) else {
            continue;
        };
        let head = without_generics(&tokens[at + 1..open]);
        let [of] = head[..] else { continue };
        let body = &tokens[open..open + closing(&tokens[open..])];
        let names = body.windows(2).filter(|pair| pair[0] == "fn").map(|pair| pair[1].to_owned());
        found.push((of.to_owned(), names.collect()));
    }
    found
}

/// The head of an `impl` without `<…>` and the `where` clause.
fn without_generics<'t>(head: &[&'t str]) -> Vec<&'t str> {
    let mut depth = 0;
    let mut plain = Vec::new();
    for token in head.iter().take_while(|token| **token != "where") {
        match *token {
            "<" => depth += 1,
            ">" => depth -= 1,
            token if depth == 0 => plain.push(token),
            _ => {}
        }
    }
    plain
}

/// The distance to the bracket that closes the first.
fn closing(tokens: &[&str]) -> usize {
    let mut depth = 0;
    let end = tokens.iter().position(|token| {
        depth += i32::from(*token == "{") - i32::from(*token == "}");
        depth == 0
    });
    end.unwrap_or(tokens.len())
}

/// The modules that depend on themselves.
pub fn ring(graph: &Graph) -> Vec<&str> {
    let reaches_itself = |start: &&str| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![*start]);
        while let Some(next) = todo.pop() {
            let named = graph.get(next).into_iter().flatten().map(String::as_str);
            todo.extend(named.filter(|name| seen.insert(*name)));
        }
        seen.contains(start)
    };
    graph.keys().map(String::as_str).filter(reaches_itself).collect()
}

#[test]
fn no_module_reaches_itself() {
    let (files, root) = (core_code(), super::crates().join(CORE).join("lib.rs"));
    let below = code_of(&super::crates().join("onebuf-hal/src"));
    let graph = graph(&files, &below, &exports(&read(root)));
    for (area, names) in [("builder", "hub"), ("program", "view"), ("foreign", "buffer")] {
        assert!(graph[area].contains(names), "{area} names {names}: the reader is blind");
    }
    let ring = ring(&graph);
    let named = |area: &&str| {
        let theirs = graph[*area].iter().filter(|theirs| ring.contains(&&***theirs));
        let theirs: Vec<&str> = theirs.map(String::as_str).collect();
        format!("{area} -> {}", theirs.join(", "))
    };
    let told: Vec<String> = ring.iter().map(named).collect();
    assert!(ring.is_empty(), "the modules that reach themselves:\n{}", told.join("\n"));
}

/// The checker detects cycles.
#[test]
fn cycles_are_caught() {
    let files = |files: &[(&[&str], &str)]| -> Vec<Code> {
        let code = files.iter().map(|(module, text)| {
            Code::new(module.iter().map(|word| (*word).to_owned()).collect(), text)
        });
        code.collect()
    };
    let exports = exports("pub use hub::Hub;\npub use buffer::Buffer;");
    let caught = |all: &[(&[&str], &str)]| {
        let graph = graph(&files(all), &[], &exports);
        ring(&graph).join(" ")
    };
    let hub: (&[&str], &str) = (&["hub"], "pub struct Hub;\nimpl Hub { fn table(&self) {} }");
    let buffer = "use crate::hub::Hub;\npub struct Buffer;\nimpl Hub { pub fn buffer(&self) {} }";
    assert_eq!(caught(&[hub, (&["buffer"], buffer)]), "", "a method above its type");

    let seeded = [
        "use crate::{\n    buffer::{self, Buffer},\n};",
        "fn make() -> crate::Buffer { todo!() }",
        "fn make(hub: &Hub) { hub.buffer() }",
        "use crate::view::Hold;",
    ];
    for text in seeded {
        let hub: (&[&str], &str) = (&["hub"], &format!("pub struct Hub;\n{text}"));
        let all = caught(&[hub, (&["buffer"], buffer), (&["view"], "use crate::buffer::Buffer;")]);
        let expected = if text.contains("view") { "buffer hub view" } else { "buffer hub" };
        assert_eq!(all, expected, "{text}");
    }
    let nested: (&[&str], &str) = (&["hub", "found"], "use super::super::buffer::Buffer;");
    assert_eq!(caught(&[hub, nested, (&["buffer"], buffer)]), "buffer hub", "by `super`");

    let harmless = [
        "/// See [`crate::buffer::Buffer`].\npub struct Hub; // crate::buffer::Buffer",
        "pub struct Hub;\nconst WHY: &str = \"crate::buffer::Buffer {\";",
        "pub struct Hub;\n#[cfg(test)]\nmod tests {\n    use crate::Buffer;\n}",
    ];
    for text in harmless {
        assert_eq!(caught(&[(&["hub"], text), (&["buffer"], buffer)]), "", "{text}");
    }
}
