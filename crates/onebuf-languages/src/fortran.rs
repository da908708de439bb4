//! The public names of the Fortran modules: procedures, types and constants, in lower case.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The modules of a folder.
pub struct Modules(BTreeMap<String, FortranModule>);

#[derive(Default)]
struct FortranModule {
    /// Names in `public ::`.
    public: BTreeSet<String>,
    /// Names in `private ::`.
    private: BTreeSet<String>,
    /// Whether everything is public: `public` alone.
    all: bool,
    /// Modules that it uses; with the names after `only:`, if there are any.
    uses: Vec<(String, Option<BTreeSet<String>>)>,
    /// Interfaces and types with `bind(c)`, their components as `type.component`, and constants.
    declared: BTreeSet<String>,
    /// Public components of the other types, as `type%component`.
    components: BTreeSet<String>,
    /// The type whose components are read: what stands before them, and whether they are public.
    inside: Option<(String, bool)>,
}

impl Modules {
    /// Reads all sources of a folder.
    pub fn read(folder: &Path) -> Self {
        let mut modules = BTreeMap::new();
        let entries = fs::read_dir(folder).unwrap_or_else(|why| panic!("{folder:?}: {why}"));
        for file in entries.map(|entry| entry.expect("an entry").path()) {
            if file.extension().is_some_and(|end| end == "f90") {
                parse(&whole(&file), &mut modules);
            }
        }
        Self(modules)
    }

    /// The names that a program gets by `use`.
    pub fn public_names(&self, module: &str) -> BTreeSet<String> {
        let Some(found) = self.0.get(module) else { return BTreeSet::new() };
        let mut names = found.public.clone();
        let shown = |name: &&String| name.split('%').next().is_some_and(|of| names.contains(of));
        let components: Vec<String> = found.components.iter().filter(shown).cloned().collect();
        names.extend(components);
        if found.all {
            names.extend(found.declared.iter().cloned());
            for (used, only) in &found.uses {
                match only {
                    Some(only) => {
                        let of =
                            |name: &String| name.split('%').next().unwrap_or_default().to_owned();
                        let all = self.public_names(used).into_iter();
                        names.extend(all.filter(|name| only.contains(&of(name))));
                    }
                    None => names.extend(self.public_names(used)),
                }
            }
        }
        names.retain(|name| !found.private.contains(name));
        names
    }
}

/// A source with its includes.
fn whole(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_else(|why| panic!("{file:?}: {why}"));
    let line = |line: &str| match line.trim().strip_prefix("include ") {
        Some(name) => whole(&file.with_file_name(name.trim().trim_matches(['"', '\'']))),
        None => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn parse(text: &str, modules: &mut BTreeMap<String, FortranModule>) {
    let text = text.lines().map(|line| line.split('!').next().unwrap_or_default().trim());
    let text = text.collect::<Vec<_>>().join("\n").replace("&\n", " ").to_lowercase();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(found) =
            line.strip_prefix("module ").filter(|rest| !rest.starts_with("procedure"))
        {
            name = found.trim().to_owned();
        }
        if !name.is_empty() {
            statement(line, modules.entry(name.clone()).or_default());
        }
    }
}

fn statement(line: &str, module: &mut FortranModule) {
    let listed = |text: &str| -> BTreeSet<String> {
        let names = text.split(',').map(|name| name.split("=>").next().unwrap_or_default().trim());
        names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    if line.starts_with("end type") {
        module.inside = None;
    } else if module.inside.is_some() {
        component(line, module);
    } else if let Some(name) = line.strip_prefix("type ::") {
        module.inside = Some((format!("{}%", name.trim()), true));
    } else if let Some(names) = line.strip_prefix("public ::") {
        module.public.extend(listed(names));
    } else if let Some(names) = line.strip_prefix("private ::") {
        module.private.extend(listed(names));
    } else if line == "public" {
        module.all = true;
    } else if let Some(used) = line.strip_prefix("use ") {
        let (used, only) = used.split_once(',').map_or((used, None), |(a, b)| (a, Some(b)));
        let only = only.and_then(|only| only.trim().strip_prefix("only:")).map(listed);
        module.uses.push((used.trim().to_owned(), only));
    } else if let Some((_, name)) = line.split_once("parameter ::") {
        module.declared.extend(name.split('=').next().map(|name| name.trim().to_owned()));
    } else if let Some(name) = line.strip_prefix("type, bind(c) ::") {
        module.declared.insert(name.trim().to_owned());
        module.inside = Some((format!("{}.", name.trim()), true));
    } else if line.contains("bind(c") && !line.starts_with("end") {
        let head = line.split('(').next().unwrap_or_default();
        module.declared.extend(head.split_whitespace().last().map(str::to_owned));
    }
}

/// A line inside of a type.
fn component(line: &str, module: &mut FortranModule) {
    let Some((before, public)) = &mut module.inside else { return };
    if line == "private" || line == "contains" {
        *public = line == "contains";
    } else if let Some((kind, names)) = line.split_once("::").filter(|_| *public) {
        // `final` and `generic :: assignment(=)` have no names that a program calls.
        if kind.contains("private") || ["final", "generic"].contains(&kind.trim()) {
            return;
        }
        let to = if before.ends_with('.') { &mut module.declared } else { &mut module.components };
        // Commas in parentheses and after `=` belong to the component before them.
        let names =
            names.split('=').next().unwrap_or_default().split('(').next().unwrap_or_default();
        to.extend(names.split(',').map(|name| format!("{before}{}", name.trim())));
    }
}
