//! The names of the Fortran modules: every procedure takes `stat=` and is called by a test; messages have no names of Rust.

use crate::{
    fortran::{order, root, sources},
    support::crate_folder,
};
use std::{collections::BTreeSet, fs, path::Path};

/// Interfaces of the program's callbacks, and what only the other modules call.
const INNER: [&str; 7] = [
    "set_fence",
    "adopt_fence",
    "fence_handle",
    "native_kernel",
    "fill_procedure",
    "frame_procedure",
    "log_procedure",
];

/// The words of a source, in lower case.
fn words(text: &str) -> BTreeSet<String> {
    let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
    text.split(|c| !is_word(c)).map(str::to_lowercase).collect()
}

/// Statements without comments, each in one line.
fn statements(text: &str) -> Vec<String> {
    let code = text.lines().map(|line| line.split('!').next().unwrap_or_default().trim());
    let joined = code.collect::<Vec<_>>().join("\n").replace("&\n", "");
    joined.lines().map(str::to_owned).collect()
}

/// The text of a module.
fn module(name: &str) -> String {
    let path = sources().join(format!("{name}.f90"));
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

/// The names that programs get from `gpu_unified_buffers` and the modules of fences.
fn public_names() -> BTreeSet<String> {
    let whole = module("gpu_unified_buffers");
    let (mut names, mut hidden) = (BTreeSet::new(), BTreeSet::new());
    let mut modules = vec!["gpu_fence_primitives".to_owned(), "gpu_fence_calls".to_owned()];
    for line in statements(&whole) {
        if let Some(list) = line.strip_prefix("private ::") {
            hidden.extend(words(list));
        } else if let Some((_, list)) = line.split_once(", only:") {
            names.extend(words(list));
        } else if let Some(name) = line.strip_prefix("use ") {
            modules.push(name.to_owned());
        }
    }
    let read =
        modules.iter().filter(|name| !name.starts_with("gpu_typed")).map(|name| module(name));
    let generics = fs::read_to_string(sources().join("generics.inc")).expect("the generics");
    for text in read.chain([generics]) {
        let lists = statements(&text);
        names
            .extend(lists.iter().filter_map(|line| line.strip_prefix("public ::")).flat_map(words));
    }
    names.retain(|name| !name.is_empty() && !hidden.contains(name));
    names
}

#[test]
fn every_public_procedure_takes_stat_and_errmsg() {
    // Constructors of values, and pure functions, which have a twin with stat=.
    let excused = |name: &str| {
        INNER.contains(&name)
            || name.ends_with("_only")
            || name.starts_with("value_")
            || name.starts_with("local_")
    };
    let mut public = public_names();
    let (mut checked, mut generic) = (0, None);
    for name in order().iter().filter(|name| !name.starts_with("onebuf_c") && *name != "gpu_typed")
    {
        let lines = statements(&module(name));
        for line in &lines {
            match line.strip_prefix("interface ") {
                Some(name) => generic = Some(public.contains(name)),
                None if line.starts_with("end interface") => generic = None,
                None => {}
            }
            if let (Some(true), Some(list)) = (generic, line.strip_prefix("module procedure ")) {
                public.extend(words(list));
            }
        }
        for line in &lines {
            let head = ["function ", "subroutine "].iter().find_map(|kind| {
                let (before, rest) = line.split_once(kind)?;
                let ends = before.starts_with("end") || before.contains('\'');
                (!ends).then(|| rest.split_once('(')).flatten()
            });
            let Some((name, arguments)) = head else { continue };
            if !public.contains(name) || excused(name) {
                continue;
            }
            let has = words(arguments);
            assert!(
                has.contains("stat") && has.contains("errmsg"),
                "{name} takes no stat=: {line}"
            );
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked} procedures");
}

/// The names of Rust items in error messages, in the code that Fortran programs reach.
fn rust_names(folder: &Path, to: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !["fake", "tests", "testing"].contains(&name) {
                rust_names(&path, to);
            }
        } else if name.ends_with(".rs") && !name.contains("test") {
            let text = fs::read_to_string(&path).expect("a source");
            let code = text.split("#[cfg(all(test").next().unwrap_or_default();
            let code = code.split("#[cfg(test)]").next().unwrap_or_default();
            let is_code =
                |line: &&str| !line.trim_start().starts_with("//") && !line.contains("#[must_use");
            for line in code.lines().filter(is_code).filter(|line| line.contains('"')) {
                let quoted = line.split('`').skip(1).step_by(2);
                to.extend(quoted.filter(|name| name.contains("::")).map(str::to_owned));
            }
        }
    }
}

#[test]
fn every_rust_name_in_a_message_has_a_fortran_word() {
    let mut names = BTreeSet::new();
    for name in ["core", "hal", "host", "opencl", "cuda", "gl", "vulkan", "libs", "capi"] {
        rust_names(&crate_folder().join(format!("../onebuf-{name}/src")), &mut names);
    }
    assert!(names.contains("Source::with_glsl"), "the control: {names:?}");
    let table = fs::read_to_string(sources().join("gpu_errors.f90")).expect("the table");
    let missing: Vec<&String> =
        names.iter().filter(|name| !table.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "gpu_errors.f90 has no words for {missing:?}");
}

/// The text of every test and example.
fn programs() -> String {
    let folders = ["bindings/fortran/tests", "bindings/fortran/tests/rows", "examples/fortran"];
    let files =
        folders.iter().flat_map(|folder| fs::read_dir(root().join(folder)).expect("a folder"));
    let files = files.map(|entry| entry.expect("an entry").path());
    let sources = files.filter(|file| file.extension().is_some_and(|end| end == "f90"));
    sources.map(|file| fs::read_to_string(file).expect("a program").to_lowercase() + "\n").collect()
}

/// The public procedures: those of the public names that are no types and no constants.
fn procedures() -> BTreeSet<String> {
    let public = public_names();
    let mut found = BTreeSet::new();
    let files = order().into_iter().filter(|name| !name.starts_with("onebuf_c"));
    let mut text: Vec<String> = files.map(|name| module(&name)).collect();
    text.push(fs::read_to_string(sources().join("generics.inc")).expect("the generics"));
    for line in text.iter().flat_map(|text| statements(text)) {
        let line = line.to_lowercase();
        for kind in ["function ", "subroutine ", "interface "] {
            let starts = line.starts_with(kind) || line.contains(&format!(" {kind}"));
            if !starts || line.starts_with("end") {
                continue;
            }
            let rest = line.split_once(kind).map_or("", |(_, rest)| rest);
            let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
            let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
            if public.contains(&name) {
                found.insert(name);
            }
        }
    }
    found.retain(|name| !INNER.contains(&name.as_str()));
    found
}

#[test]
fn every_procedure_is_called_by_some_test() {
    let (names, text) = (procedures(), programs());
    assert!(names.len() > 150 && names.contains("wrap_gl_buffer"), "{} procedures", names.len());
    let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
    let called = |name: &String| {
        text.match_indices(name.as_str()).any(|(at, _)| {
            let (before, after) = (&text[..at], &text[at + name.len()..]);
            !before.ends_with(is_word)
                && (after.starts_with('(')
                    || (before.ends_with("call ") && !after.starts_with(is_word)))
        })
    };
    let missing: Vec<&String> = names.iter().filter(|name| !called(name)).collect();
    assert!(missing.is_empty(), "no test calls {missing:?}");
}
