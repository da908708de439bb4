//! Dependency rules of the architecture that the compiler does not enforce: between crates, and between the modules of the core.

#[path = "arrows/cycles.rs"]
mod cycles;
#[path = "arrows/names.rs"]
mod names;
#[path = "arrows/nested.rs"]
mod nested;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The crates of the library by level: each depends only on crates of lower levels.
const LEVELS: [&[&str]; 9] = [
    &["onebuf-sys"],
    &["onebuf-hal"],
    &["onebuf-experimental"],
    &[
        "onebuf-graft",
        "onebuf-host",
        "onebuf-opencl",
        "onebuf-cuda",
        "onebuf-gl",
        "onebuf-vulkan",
        "onebuf-socket",
    ],
    &["onebuf-core"],
    &["onebuf-doctor", "onebuf-pipeline", "onebuf-libs", "onebuf-peer", "onebuf-observe"],
    &["onebuf"],
    &[
        "onebuf-ash",
        "onebuf-capi",
        "onebuf-cudarc",
        "onebuf-demo",
        "onebuf-glow",
        "onebuf-mpi",
        "onebuf-opencl3",
        "onebuf-verdicts",
        "onebuf-wgpu",
    ],
    &["onebuf-bench", "onebuf-python"],
];

/// Words that must not occur in the code of `onebuf-hal`.
const API_NAMES: [&str; 9] = ["opencl", "cl", "cuda", "cu", "hip", "gl", "egl", "vulkan", "vk"];

/// The modules that the device table may use.
const BELOW_DEVICES: [&str; 6] =
    ["identity", "observe", "queue_state", "route", "topology", "verdicts"];

/// The path of a module, or of a named item: `["buffer", "core"]`.
type Place = Vec<String>;

/// Whether the rules of the core allow code at `from` to name `to`.
fn allowed(from: &[String], to: &[String]) -> bool {
    let area = |place: &[String]| place.first().cloned().unwrap_or_default();
    let (ours, theirs) = (area(from), area(to));
    // Items of the crate's root are for every module.
    if ours == theirs || theirs.is_empty() {
        return true;
    }
    // Tests may use other tests' helpers.
    let is_test = from.iter().any(|name| name.ends_with("tests"));
    if is_test && (to.iter().any(|name| name == "tests") || theirs == "builder") {
        return true;
    }
    match ours.as_str() {
        // A core returns to its owner through `buffer::Owner`, without naming the owner's type.
        "buffer" if ["pool", "foreign"].contains(&&*theirs) => false,
        "private_files" | "extensions" => false,
        "identity" => theirs == "topology",
        "verdicts" => ["identity", "private_files", "topology"].contains(&&*theirs),
        "topology" | "route" => ["topology", "route"].contains(&&*theirs),
        // The lower half of the core, in levels.
        "observe" | "queue_state" | "device_table" | "sync" | "fence" if is_test => true,
        "observe" => ["ledger", "topology"].contains(&&*theirs),
        "queue_state" => ["extensions", "observe", "topology"].contains(&&*theirs),
        "device_table" => BELOW_DEVICES.contains(&&*theirs),
        "sync" => theirs == "device_table" || BELOW_DEVICES.contains(&&*theirs),
        "fence" => theirs == "queue_state",
        "plan" => ["topology", "route", "sync"].contains(&&*theirs),
        // `internals` is only for the crates above.
        _ => theirs != "internals",
    }
}

/// The violations in one module, one sentence each.
fn violations(module: &[String], text: &str, exports: &BTreeMap<String, String>) -> Vec<String> {
    let code = without_comments(text);
    let code = without_tests(module, &code);
    // A module's own tests, in the same file, use `super::*`.
    let paths = paths(code).into_iter().filter(|path| *path != ["super", "*"]);
    let named = paths.map(|path| resolve(module, &path, exports));
    named
        .filter(|place| !allowed(module, place))
        .map(|place| format!("{} names {}", module.join("::"), place.join("::")))
        .collect()
}

/// Removes comments, which may name anything.
fn without_comments(text: &str) -> String {
    let code = |line: &str| {
        let quoted = |at: usize| line[..at].matches('"').count() % 2 == 1;
        let comment = line.match_indices("//").map(|(at, _)| at).find(|&at| !quoted(at));
        line[..comment.unwrap_or(line.len())].to_owned()
    };
    text.lines().map(code).collect::<Vec<_>>().join("\n")
}

/// Removes a module's own tests, which are last in its file and may name modules above and below.
fn without_tests<'c>(module: &[String], code: &'c str) -> &'c str {
    if module.first().is_some_and(|area| ["hal", "backend"].contains(&area.as_str())) {
        return code;
    }
    let attribute = |at: &usize| {
        let before = code[..*at].trim_end();
        before.ends_with(']') && before.lines().last().is_some_and(|line| line.contains("test"))
    };
    let tests = code.match_indices("mod tests {").map(|(at, _)| at).find(attribute);
    &code[..tests.unwrap_or(code.len())]
}

fn tokens(code: &str) -> Vec<&str> {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut tokens, mut rest) = (Vec::new(), code.trim_start());
    while let Some(first) = rest.chars().next() {
        let len = match first {
            c if in_word(c) => rest.find(|c| !in_word(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        tokens.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    tokens
}

/// Every path that begins with `crate` or `super`, with use trees expanded.
fn paths(code: &str) -> Vec<Vec<String>> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let starts = at == 0 || tokens[at - 1] != "::";
        if starts && ["crate", "super"].contains(token) && tokens.get(at + 1) == Some(&"::") {
            unfold(&tokens[at..], &[], &mut found);
        }
    }
    found
}

/// Reads one path or use tree. Returns the number of its tokens.
fn unfold(tokens: &[&str], stem: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = stem.to_vec();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if *token == "{" {
            at += 1;
            while let Some(token) = tokens.get(at).filter(|token| **token != "}") {
                at += if *token == "," { 1 } else { unfold(&tokens[at..], &path, found) };
            }
            return at + 1;
        }
        path.push((*token).to_owned());
        at += 1;
        match tokens.get(at) {
            Some(&"::") => at += 1,
            _ => break,
        }
    }
    found.push(path);
    if tokens.get(at) == Some(&"as") { at + 2 } else { at }
}

/// Makes a path absolute. Names that the root re-exports are replaced by those of their modules.
fn resolve(module: &[String], path: &[String], exports: &BTreeMap<String, String>) -> Place {
    let mut place = if path[0] == "crate" { Vec::new() } else { module.to_vec() };
    for word in path {
        match word.as_str() {
            "crate" | "self" => {}
            "super" => drop(place.pop()),
            name => place.push(name.to_owned()),
        }
    }
    if let Some(home) = place.first().and_then(|name| exports.get(name)) {
        place.insert(0, home.clone());
    }
    place
}

/// The module of each name that `lib.rs` exports.
fn exports(lib: &str) -> BTreeMap<String, String> {
    let code = without_comments(lib).replace("pub use ", "crate::");
    let pairs = paths(&code).into_iter().filter_map(|path| match &path[..] {
        [_, module, .., name] => Some((name.clone(), module.clone())),
        _ => None,
    });
    pairs.collect()
}

/// Every source file below a folder, with its module's path.
fn sources(folder: &Path) -> Vec<(Place, PathBuf)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let inside =
                    path.strip_prefix(folder).expect("below the folder").with_extension("");
                let words = inside.iter().map(|word| word.to_string_lossy().into_owned());
                let named = words.filter(|word| !["mod", "lib"].contains(&word.as_str()));
                found.push((named.collect(), path));
            }
        }
    }
    found
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

#[test]
fn modules_name_only_what_lies_below_them() {
    let folder = crates().join("onebuf-core/src");
    let exports = exports(&read(folder.join("lib.rs")));
    assert_eq!(exports.get("Hub").map(String::as_str), Some("hub"));
    let sources = sources(&folder);
    assert!(sources.len() > 40, "only {} files were found", sources.len());
    let found: Vec<String> = sources
        .iter()
        .flat_map(|(module, path)| violations(module, &read(path), &exports))
        .collect();
    assert!(found.is_empty(), "against the arrows:\n{}", found.join("\n"));
}

#[test]
fn hal_names_no_api() {
    let api = |word: &&str| API_NAMES.contains(&word.to_lowercase().as_str());
    let named = |code: &str| -> Vec<String> {
        let words = tokens(code).into_iter().flat_map(|token| token.split('_'));
        words.filter(api).map(str::to_owned).collect()
    };
    for (module, path) in sources(&crates().join("onebuf-hal/src")) {
        let code = without_comments(&read(path));
        let found = named(without_tests(&module, &code));
        let is_test = module.iter().any(|name| name.starts_with("test"));
        assert!(found.is_empty() || is_test, "{} names APIs: {found:?}", module.join("::"));
    }
    assert_eq!(named("pub fn cl_mem() {}").len(), 1);
    assert_eq!(named("const X: &str = \"OpenCL\";").len(), 1);
}

#[test]
fn crates_depend_on_lower_levels() {
    let level = |name: &str| LEVELS.iter().position(|level| level.contains(&name));
    for (at, level_of) in LEVELS.iter().enumerate() {
        for name in *level_of {
            let manifest = read(crates().join(name).join("Cargo.toml"));
            for used in dependencies(section(&manifest, "dependencies")) {
                assert!(level(used).is_some_and(|below| below < at), "{name} depends on {used}");
            }
        }
    }
    let manifest =
        "[dependencies]\nonebuf.workspace = true\n\n[dev-dependencies]\nonebuf-gl = \"1\"\n";
    assert_eq!(dependencies(section(manifest, "dependencies")), ["onebuf"], "the control");
}

/// The lines of one section of a manifest.
fn section<'m>(manifest: &'m str, name: &str) -> &'m str {
    let head = format!("[{name}]\n");
    let Some(start) = manifest.find(&head).map(|at| at + head.len()) else { return "" };
    let rest = &manifest[start..];
    rest.split("\n[").next().unwrap_or(rest)
}

#[test]
fn the_symbol_tables_know_nothing_of_the_library() {
    let folder = crates().join("onebuf-sys");
    for (module, path) in sources(&folder.join("src")) {
        let code = without_comments(&read(path));
        assert!(!tokens(&code).contains(&"onebuf"), "onebuf-sys names onebuf in {module:?}");
    }
    assert_eq!(dependencies(&read(folder.join("Cargo.toml"))), [""; 0]);
}

#[test]
fn the_program_uses_the_library_and_its_measures() {
    let folder = crates().join("onebuf-cli");
    for (module, path) in sources(&folder.join("src")) {
        let code = without_comments(&read(path));
        assert!(!tokens(&code).contains(&"onebuf_sys"), "the CLI names onebuf-sys in {module:?}");
    }
    assert_eq!(
        dependencies(&read(folder.join("Cargo.toml"))),
        ["onebuf", "onebuf-bench", "onebuf-demo", "onebuf-mpi", "onebuf-verdicts"]
    );
}

/// The crates of this project that a manifest depends on.
fn dependencies(manifest: &str) -> Vec<&str> {
    let start = |line: &'_ str| line.find(['.', ' ', '=']).unwrap_or(line.len());
    let names = manifest.lines().map(|line| &line[..start(line)]);
    names.filter(|name| name.starts_with("onebuf")).collect()
}

/// The checker detects violations.
#[test]
fn violations_are_caught() {
    let exports = exports("pub mod plan;\npub use hub::Hub;\n");
    let caught = |module: &[&str], text: &str| {
        let module: Place = module.iter().map(|word| (*word).to_owned()).collect();
        violations(&module, text, &exports)
    };
    let plan = ["plan", "explain"];
    let nested = "use crate::{\n    buffer::{Core, Part},\n    topology::Route,\n};";
    assert_eq!(
        caught(&plan, nested),
        ["plan::explain names buffer::Core", "plan::explain names buffer::Part"]
    );
    assert_eq!(caught(&plan, "use super::super::queue::QueueState;").len(), 1, "by `super` too");
    assert_eq!(caught(&plan, "let hub = crate::Hub::of();").len(), 1, "by another name too");
    for low in ["observe", "queue_state", "device_table", "sync", "fence"] {
        assert_eq!(caught(&[low, "a"], "use crate::{Hub, buffer::Core};").len(), 2, "{low}");
    }
    assert_eq!(caught(&["queue_state"], "use crate::sync::Terms;").len(), 1, "the next level");
    assert_eq!(caught(&["buffer", "core"], "use crate::pool::Pool;").len(), 1);
    assert_eq!(caught(&["hub"], "use crate::internals::Hold;").len(), 1, "for crates above");

    assert_eq!(caught(&["pool"], "use crate::buffer::Owner;"), [""; 0]);
    assert_eq!(caught(&["pool", "tests"], "let hub = crate::builder();"), [""; 0]);
}

/// What `SECURITY.md` promises, which names tests.
fn promises(text: &str) -> &str {
    let (_, rest) = text.split_once("\n## What is promised\n").expect("the section");
    rest.split("\n## ").next().unwrap_or(rest)
}

/// The tests that it names: the words in backquotes in the last column of its tables, before a bracket.
fn promised(text: &str) -> Vec<&str> {
    let rows = text.lines().filter(|line| line.starts_with('|') && line.ends_with('|'));
    let last = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    last.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn every_promise_has_the_test_that_it_names() {
    let text = read(crates().join("../SECURITY.md"));
    let named = promised(promises(&text));
    assert!(named.len() > 40, "only {} tests were found", named.len());
    let mut sources = self::sources(&crates());
    sources.extend(self::sources(&crates().join("../conformance")));
    let code: Vec<String> = sources.iter().map(|(_, path)| read(path)).collect();
    let files: Vec<&Place> = sources.iter().map(|(place, _)| place).collect();
    let is_test = |name: &&str| {
        // A function, or a row of a macro that generates one, or a row of the conformance suite's table.
        let [head, row, case] =
            [format!("fn {name}("), format!("    {name}: "), format!("                {name}\n")];
        let is_file = files.iter().any(|place| place.last().is_some_and(|last| last == name));
        // A blank line separates items, and attributes belong to their item.
        let is_marked = |before: &str| {
            before.rsplit("\n\n").next().is_some_and(|item| item.contains("#[test]"))
        };
        let has = |text: &String| {
            text.match_indices(&head).any(|(at, _)| is_marked(&text[..at]))
                || text.contains(&row)
                || text.contains(&case)
        };
        is_file || code.iter().any(has)
    };
    let missing: Vec<_> = named.iter().filter(|name| !is_test(name)).collect();
    assert!(missing.is_empty(), "SECURITY.md names tests that do not exist: {missing:?}");
    assert_eq!(promised("| a | `b`, `c` (`d`) |\n| `e` |"), ["b", "c", "d", "e"], "the control");
    assert_eq!(
        promises("# A\n| `b` |\n\n## What is promised\n| `c` |\n\n## D\n| `e` |"),
        "| `c` |\n"
    );
    assert!(!is_test(&"no_test_has_this_name_but_in_a_string"));
}
