//! Every function of C and every method of C++ is called by some program of the tests or examples, for what it does.

use crate::support::crate_folder;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{path:?}: {why}"))
}

/// The texts of all programs in a folder of the tests and in one of the examples, except for random calls.
fn programs(folder: &str) -> Vec<String> {
    let folders = [crate_folder().join("tests"), crate_folder().join("../../examples")];
    let files = folders.iter().flat_map(|path| fs::read_dir(path.join(folder)).expect("a folder"));
    let files: Vec<PathBuf> = files.map(|entry| entry.expect("an entry").path()).collect();
    let is_source = |path: &&PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let named = name.unwrap_or_default();
        !named.starts_with("fuzz") && [".c", ".h", ".cpp"].iter().any(|end| named.ends_with(end))
    };
    let texts: Vec<String> = files.iter().filter(is_source).map(|path| text(path)).collect();
    assert!(texts.len() > 8, "{folder}: {} programs", texts.len());
    texts
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

/// Names that are followed by an opening parenthesis, or by a list of template arguments.
fn called(texts: &[String]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for text in texts {
        for (at, _) in text.match_indices(['(', '<']) {
            let before = &text[..at];
            let name = &before[before.rfind(|c| !is_word(c)).map_or(0, |at| at + 1)..];
            names.insert(name.to_owned());
        }
    }
    names
}

#[test]
fn every_function_of_c_is_called_for_what_it_does() {
    let header = text(&crate_folder().join("include/onebuf.h"));
    let declared = header.lines().filter(|line| !line.starts_with("//"));
    let names = declared.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = &before[before.rfind(|c| !is_word(c))? + 1..];
        (name.starts_with("onebuf_") && !before.starts_with(' ')).then_some(name)
    });
    // A function may also be passed by its name.
    let texts = programs("c").join("\n");
    let used: BTreeSet<&str> = texts.split(|c| !is_word(c)).collect();
    // Only C++ sees that one; C has a macro.
    let names: BTreeSet<&str> = names.filter(|name| *name != "onebuf_kind_of").collect();
    assert!(names.len() > 200, "{} functions", names.len());
    let left: Vec<&str> = names.into_iter().filter(|name| !used.contains(name)).collect();
    assert!(left.is_empty(), "called by no program in tests/c or examples/c: {left:?}");
}

/// The public methods and functions of a header, by the class that has them.
fn methods(header: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut class, mut hidden, mut inner) = (String::new(), false, false);
    for line in header.lines() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if let Some(name) = line.strip_prefix("namespace ") {
            // The classes of handles are bases of public ones.
            inner = name.starts_with("detail") && !header.contains("#define ONEBUF_TYPES_HPP");
        }
        inner &= !line.starts_with("} // namespace detail");
        if indent == 0 {
            let head = code.split_once(['{', ':', ';']).map_or(code, |(head, _)| head);
            let words: Vec<&str> = head.split_whitespace().collect();
            let kind = words.iter().position(|word| *word == "class" || *word == "struct");
            let is_class = code.starts_with("class ")
                || code.starts_with("struct ")
                || code.starts_with("template");
            if let Some(name) = kind
                .and_then(|at| words[at + 1..].last())
                .filter(|_| is_class && code.ends_with('{'))
            {
                (class, hidden) = ((*name).to_owned(), false);
            } else if code.starts_with('}') {
                class.clear();
                hidden = false;
            }
        }
        match code {
            "private:" => hidden = true,
            "public:" => hidden = false,
            _ => {}
        }
        let wanted = if class.is_empty() { 0 } else { 4 };
        let statement = [
            "return",
            "//",
            "#",
            "using",
            ":",
            "}",
            "if",
            "for",
            "static_assert",
            "friend",
            "throw",
        ];
        if hidden
            || inner
            || indent != wanted
            || statement.iter().any(|start| code.starts_with(start))
        {
            continue;
        }
        let Some((before, _)) = code.split_once('(') else { continue };
        let name = &before[before.rfind(|c| !is_word(c)).map_or(0, |at| at + 1)..];
        let is_method = !name.is_empty()
            && name != class
            && !before.contains("operator")
            && !before.contains('=');
        if is_method
            && before.len() > name.len()
            && !before.ends_with("::")
            && !before.contains("::~")
        {
            found.entry(class.clone()).or_default().insert(name.to_owned());
        }
    }
    found
}

#[test]
fn every_method_of_cpp_is_called_for_what_it_does() {
    let headers = ["onebuf.hpp", "onebuf_types.hpp"]
        .map(|name| text(&crate_folder().join("include").join(name)));
    let called = called(&programs("cpp"));
    let mut all = 0;
    let mut left = Vec::new();
    for (class, names) in headers.iter().flat_map(|header| methods(header)) {
        all += names.len();
        let missing = names.into_iter().filter(|name| !called.contains(name));
        left.extend(missing.map(|name| format!("{class}::{name}")));
    }
    assert!(all > 250, "{all} methods");
    assert!(left.is_empty(), "called by no program in tests/cpp or examples/cpp: {left:#?}");
}

/// The second column of the tables in `docs/coming-from.md`: the counterparts of older calls.
#[test]
fn every_counterpart_of_an_older_call_is_compiled() {
    let page = text(&crate_folder().join("../../docs/coming-from.md"));
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split(" | ").nth(1)).map(str::to_owned);
    let headers = ["onebuf.hpp", "onebuf_types.hpp"]
        .map(|name| text(&crate_folder().join("include").join(name)));
    let of_cpp: BTreeSet<String> =
        headers.iter().flat_map(|header| methods(header)).flat_map(|(_, names)| names).collect();
    let shown = called(&cells.collect::<Vec<_>>());
    let program = called(&[text(&crate_folder().join("tests/cpp/coming_from.cpp"))]);
    let shown: Vec<&String> = shown.intersection(&of_cpp).collect();
    assert!(shown.len() > 20, "{shown:?}");
    // Rust's own, under the same name.
    let of_rust = ["build", "info", "launch", "local"];
    let left = shown.into_iter().filter(|name| !program.contains(*name));
    let left: Vec<&String> = left.filter(|name| !of_rust.contains(&name.as_str())).collect();
    assert!(left.is_empty(), "not in tests/cpp/coming_from.cpp: {left:?}");
}

#[test]
fn methods_are_found() {
    let text = "\
/// A thing.
class Thing : public detail::ThingHandle {
public:
    using ThingHandle::ThingHandle;
    Thing(int a) : a_(a) {}
    Result<void> wait(Timeout timeout = {}) const {
        return detail::check(onebuf_thing_wait(handle(), timeout.ms()));
    }
    template <class T> static Result<T> made(const T *data) { return *data; }
private:
    void inside() {}
};

inline Result<bool> outside(int a) { return a; }
";
    let found = methods(text);
    let of = |class: &str| found[class].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(of("Thing"), ["made", "wait"]);
    assert_eq!(of(""), ["outside"]);
}
