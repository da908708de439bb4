//! `include/onebuf.h` matches the sources. `./dev header` generates it.

mod cpp;

use std::{fs, path::PathBuf, process::Command};

/// The sections of the header, in order: each uses only earlier ones.
pub const SECTIONS: &[&str] = &[
    "status",
    "message",
    "version",
    "log",
    "words",
    "string",
    "device",
    "observer",
    "hub",
    "cache",
    "verdict",
    "fence",
    "queue",
    "queue_pool",
    "buffer",
    "mapping",
    "view",
    "transfer",
    "program",
    "kernel",
    "launch",
    "graft",
    "pool",
    "ledger",
    "trace",
    "doctor",
    "foreign",
    "wrap",
    "pointer",
    "foreign_gl",
    "foreign_vulkan",
    "event",
    "bridge",
    "export",
    "libs",
    "persistent",
    "owner",
    "peer",
    "offer",
    "source",
    "sink",
    "frame",
    "pipeline",
    "progress",
    "live",
    "viewer",
];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The head of a source file as a comment: its first line is the title.
fn head(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let mut lines = lines.map(|line| line.strip_prefix(' ').unwrap_or(line));
    let title = lines.next().expect("a source file begins with its title");
    let rule = "=".repeat(96usize.saturating_sub(title.chars().count()));
    let text = lines.map(|line| format!("// {line}").trim_end().to_owned() + "\n");
    format!("// {title} {rule}\n{}\n", text.collect::<String>())
}

fn source(name: &str) -> (PathBuf, String) {
    let file = path(&format!("src/{name}.rs"));
    let text = fs::read_to_string(&file).expect("the source");
    (file, text)
}

/// The declarations of a section, in the order of their source.
pub fn items(name: &str) -> Vec<Item> {
    let (file, source) = source(name);
    let config = cbindgen::Config::from_file(path("cbindgen.toml")).expect("cbindgen.toml");
    let made = cbindgen::Builder::new().with_config(config).with_src(&file).generate();
    let mut body = Vec::new();
    made.unwrap_or_else(|error| panic!("{name}: {error}")).write(&mut body);
    let body = String::from_utf8(body).expect("text");
    let mut items: Vec<Item> = body.trim().split("\n\n").map(Item::new).collect();
    items.sort_by_key(|item| item.place(&source));
    items
}

fn section(name: &str) -> String {
    let items = items(name).iter().map(Item::text).collect::<String>();
    head(&source(name).1) + items.trim_start()
}

/// The text between two empty lines: one declaration with its comment.
pub struct Item {
    pub text: String,
    pub name: String,
}

impl Item {
    fn new(block: &str) -> Self {
        let code = block.lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = code.collect::<Vec<_>>().join(" ");
        let words = |text: &str| -> Vec<String> {
            let named = |c: char| c.is_ascii_alphanumeric() || c == '_';
            text.split(|c| !named(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        let of_struct = code.rsplit_once("} ").filter(|_| code.starts_with("typedef struct"));
        let of_pointer = code.split_once("(*").filter(|_| code.starts_with("typedef"));
        let name = match (of_struct, of_pointer) {
            (Some((_, end)), _) => words(end).swap_remove(0),
            (_, Some((_, end))) => words(end).swap_remove(0),
            _ if code.starts_with("#define") => words(&code).swap_remove(1),
            _ => words(code.split('(').next().unwrap_or_default()).pop().expect("a name"),
        };
        Self { text: tag(&pointers(block), &name), name }
    }

    /// The item's position in the source. Sections keep the order of their source; cbindgen would sort them.
    fn place(&self, source: &str) -> usize {
        let ways = ["const", "type", "struct", "fn"].map(|word| format!("{word} {}", self.name));
        let found = ways.iter().filter_map(|way| {
            let ends = |at: usize| {
                !source[at + way.len()..].starts_with(|c: char| c == '_' || c.is_alphanumeric())
            };
            source.match_indices(way.as_str()).map(|(at, _)| at).find(|at| ends(*at))
        });
        found.min().unwrap_or_else(|| panic!("{} is not in the source", self.name))
    }

    /// Constants directly follow the type that they belong to.
    fn text(&self) -> String {
        let is_choice = self.name.starts_with("ONEBUF_");
        String::from(if is_choice { "\n" } else { "\n\n" }) + &self.text
    }
}

/// cbindgen does not know the alias `Slot` for results: replaces `Slot<T> name` by `T *name`.
fn pointers(text: &str) -> String {
    let mut parts = text.split("Slot<");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        let (of, rest) = part.split_once("> ").expect("the end of a type");
        all + &of.replace("void*", "void *") + if of.ends_with('*') { "*" } else { " *" } + rest
    })
}

/// A structure's name is also its tag, for forward declarations.
fn tag(text: &str, name: &str) -> String {
    text.replace("typedef struct {", &format!("typedef struct {name} {{"))
}

fn header() -> String {
    let [top, bottom] = ["top.h", "bottom.h"]
        .map(|part| fs::read_to_string(path("header").join(part)).expect("a part of the header"));
    let section = |name: &&str| section(name).trim_end().to_owned() + "\n\n";
    let sections: Vec<String> = SECTIONS.iter().map(section).collect();
    top + "\n" + &sections.concat() + &bottom
}

#[test]
fn the_header_is_what_the_sources_say() {
    let (file, wanted) = (path("include/onebuf.h"), header());
    if std::env::var_os("ONEBUF_WRITE_HEADER").is_some() {
        return fs::write(file, wanted).expect("the header");
    }
    differs("include/onebuf.h", &fs::read_to_string(&file).unwrap_or_default(), &wanted);
}

/// Fails if a generated file is not as it should be.
fn differs(name: &str, found: &str, wanted: &str) {
    let differs = found.lines().zip(wanted.lines()).position(|(found, wanted)| found != wanted);
    assert!(
        found == wanted,
        "{name} differs from the sources, first in line {}: run `./dev header`",
        differs.unwrap_or(found.lines().count().min(wanted.lines().count())) + 1
    );
}

#[test]
fn every_noun_has_its_section() {
    let inner = [
        "lib",
        "callback",
        "claim",
        "entry",
        "fault",
        "handle",
        "input",
        "kept",
        "registered",
        "typed",
        "visit",
        "wait",
    ];
    for entry in fs::read_dir(path("src")).expect("the sources") {
        let file = entry.expect("an entry").path();
        let name = file.file_stem().and_then(|name| name.to_str()).expect("a name");
        assert!(SECTIONS.contains(&name) || inner.contains(&name), "{name} is in no section");
    }
}

/// A handle contains the number of its kind; no two kinds have the same.
#[test]
fn every_noun_has_its_number() {
    let of = |name: &&str| {
        let source = fs::read_to_string(path(&format!("src/{name}.rs"))).expect("the source");
        let number = source.split_once("\nnoun!(").and_then(|(_, rest)| rest.split(')').next());
        number.and_then(|rest| rest.split(", ").last()?.parse().ok())
    };
    let mut numbers: Vec<usize> = SECTIONS.iter().filter_map(of).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
    assert!(numbers.len() >= 12);
}

/// Every C function is used in the C++ header, except those that C++ replaces by other means.
#[test]
fn every_function_is_there_in_cpp() {
    let by_hand = fs::read_to_string(path("include/onebuf.hpp")).expect("the header for C++");
    let cpp = by_hand + &cpp::generated();
    let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
    let used: std::collections::BTreeSet<&str> = cpp.split(|c| !is_word(c)).collect();
    let header = header();
    let named = header.match_indices("onebuf_").filter_map(|(at, _)| {
        let name = header[at..].split(|c| !is_word(c)).next()?;
        let declared =
            header[..at].ends_with([' ', '*']) && header[at + name.len()..].starts_with('(');
        declared.then_some(name)
    });
    let by_other_means = ["onebuf_grid_1d"];
    let missing: Vec<&str> =
        named.filter(|name| !used.contains(name) && !by_other_means.contains(name)).collect();
    assert!(missing.is_empty(), "not in onebuf.hpp: {missing:?}");
    assert!(used.contains("onebuf_buffer_to_host"), "the control");
}

#[test]
fn only_our_names_leave_the_library() {
    let library = crate::support::built("libonebuf_capi.so");
    let Ok(found) = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output() else {
        return onebuf_conformance::absent("nm", "not installed");
    };
    let names = String::from_utf8(found.stdout).expect("names");
    let names: Vec<&str> = names.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert!(names.len() > 60, "{library:?}: {names:?}");
    let header = header();
    for name in names {
        assert!(name.starts_with("onebuf_"), "{name} is not ours to export");
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
}
