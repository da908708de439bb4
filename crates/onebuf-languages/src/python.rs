//! The public names of the Python package, from its type stubs: classes, functions, constants, and members as `Class.member`.
//!
//! Names that begin with `_` are private, `__names__` too. A module beginning with `_` is private, and what another one re-exports of it
//! is not: `from ._native import Buffer as Buffer`, or another name that is in `__all__`. What
//! several modules have by the same name is listed once: in the package itself, or else in the first module.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, iter,
    path::Path,
};

/// The stubs of a package, by the names of their modules.
pub struct Package(BTreeMap<String, Stub>);

#[derive(Default)]
struct Stub {
    /// What it defines: `Class`, `Class.member`, `function`.
    names: BTreeSet<String>,
    /// The bases of its classes.
    bases: BTreeMap<String, Vec<String>>,
    /// What it imports from modules of the package.
    imports: Vec<Import>,
    /// The modules of which it imports everything.
    stars: Vec<String>,
    /// The names in `__all__`.
    all: BTreeSet<String>,
}

/// `from .module import there as here`.
struct Import {
    module: String,
    there: String,
    here: String,
    /// `from .module import Name as Name`, which makes the name public.
    again: bool,
}

impl Package {
    /// Reads the stubs of a folder.
    pub fn read(folder: &Path) -> Self {
        let entries = fs::read_dir(folder).unwrap_or_else(|why| panic!("{folder:?}: {why}"));
        let files = entries.map(|entry| entry.expect("an entry").path());
        Self::of(files.filter(|file| file.extension().is_some_and(|end| end == "pyi")).map(
            |file| {
                let text =
                    fs::read_to_string(&file).unwrap_or_else(|why| panic!("{file:?}: {why}"));
                (file.file_stem().unwrap_or_default().to_string_lossy().into_owned(), text)
            },
        ))
    }

    /// Takes stubs by the names of their modules; the package itself is `__init__`.
    pub fn of(stubs: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(stubs.into_iter().map(|(module, text)| (module, parse(&text))).collect())
    }

    /// The names that a program has after `import` of the package and its public modules.
    pub fn public_names(&self) -> BTreeSet<String> {
        let (mut names, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let modules = self.0.keys().filter(|module| is_public(module));
        let modules = modules.map(|module| (module.as_str(), format!("{module}.")));
        for (module, before) in iter::once(("__init__", String::new())).chain(modules) {
            for (name, from, there) in self.exports(module) {
                if seen.insert((name.clone(), from.clone(), there.clone())) {
                    names.insert(format!("{before}{name}"));
                    let members = self.members(&from, &there).into_iter();
                    names.extend(members.map(|member| format!("{before}{name}.{member}")));
                }
            }
        }
        names
    }

    /// The public names of a module, without members: each with the module that defines it, and its name there.
    fn exports(&self, module: &str) -> Vec<(String, String, String)> {
        let Some(stub) = self.0.get(module) else { return Vec::new() };
        let own = stub.names.iter().filter(|name| !name.contains('.') && is_public(name));
        let mut all: Vec<_> =
            own.map(|name| (name.clone(), module.to_owned(), name.clone())).collect();
        for Import { module, there, here, again } in &stub.imports {
            if is_public(here) && (*again || stub.all.contains(here)) {
                let (from, there) = self.defined(module, there);
                all.push((here.clone(), from, there));
            }
        }
        all.extend(stub.stars.iter().flat_map(|from| self.exports(from)));
        all
    }

    /// The module that defines what a module has, and its name there.
    fn defined(&self, module: &str, name: &str) -> (String, String) {
        let mut imports = self.0.get(module).into_iter().flat_map(|stub| &stub.imports);
        match imports.find(|import| import.here == name) {
            Some(import) => self.defined(&import.module, &import.there),
            None => (module.to_owned(), name.to_owned()),
        }
    }

    /// The public members of a class, with those that it inherits from private classes.
    fn members(&self, module: &str, class: &str) -> BTreeSet<String> {
        let Some(stub) = self.0.get(module) else { return BTreeSet::new() };
        let start = format!("{class}.");
        let own = stub.names.iter().filter_map(|name| name.strip_prefix(&start));
        let own = own.filter(|member| member.split('.').all(is_public)).map(str::to_owned);
        let bases = stub.bases.get(class).into_iter().flatten();
        let private = bases.filter(|base| !is_public(base)).map(|base| self.defined(module, base));
        own.chain(private.flat_map(|(from, base)| self.members(&from, &base))).collect()
    }
}

fn is_public(name: &str) -> bool {
    !name.starts_with('_')
}

fn parse(text: &str) -> Stub {
    let mut stub = Stub::default();
    // The classes around a line, with their indentation.
    let mut around: Vec<(usize, String)> = Vec::new();
    for (indent, line) in statements(text) {
        around.retain(|(outer, _)| *outer < indent);
        if let Some(import) = line.strip_prefix("from .") {
            stub.import(import);
        } else if let Some(list) = line.strip_prefix("__all__ =") {
            stub.all.extend(list.split(['"', '\'']).skip(1).step_by(2).map(str::to_owned));
        } else if let Some(name) = defined_name(&line) {
            let outer = around.last().map(|(_, class)| format!("{class}.")).unwrap_or_default();
            let name = format!("{outer}{name}");
            if line.starts_with("class ") {
                stub.bases.insert(name.clone(), bases(&line));
                around.push((indent, name.clone()));
            }
            stub.names.insert(name);
        }
    }
    stub
}

impl Stub {
    /// What follows `from .`: a module, or nothing for modules of the package, and names.
    fn import(&mut self, text: &str) {
        let Some((module, names)) = text.split_once("import ") else { return };
        let module = module.trim();
        // Modules are no names of their own.
        if module.is_empty() {
            return;
        }
        for name in names.trim_matches(['(', ')', ' ']).split(',').map(str::trim) {
            let (there, here) = name.split_once(" as ").unwrap_or((name, name));
            match there {
                "" => {}
                "*" => self.stars.push(module.to_owned()),
                _ => self.imports.push(Import {
                    module: module.to_owned(),
                    there: there.to_owned(),
                    here: here.to_owned(),
                    again: name.contains(" as ") && there == here,
                }),
            }
        }
    }
}

/// The statements of a stub, each on one line, with their indentation; without comments and documentation.
fn statements(text: &str) -> Vec<(usize, String)> {
    let code: String = text.split("\"\"\"").step_by(2).collect();
    let mut all: Vec<(usize, String)> = Vec::new();
    let (mut opened, mut closed) = (0, 0);
    for line in code.lines() {
        let line = line.split('#').next().unwrap_or_default().trim_end();
        match all.last_mut() {
            Some((_, last)) if opened > closed => *last += &format!(" {}", line.trim()),
            _ => all.push((line.len() - line.trim_start().len(), line.trim().to_owned())),
        }
        opened += line.matches(['(', '[', '{']).count();
        closed += line.matches([')', ']', '}']).count();
    }
    all.retain(|(_, line)| !line.is_empty());
    all
}

/// The name that a statement defines: of a class, a function, or a variable.
fn defined_name(line: &str) -> Option<&str> {
    let is_word = |c: char| c == '_' || c.is_alphanumeric();
    let word = |text: &str| text.find(|c| !is_word(c)).unwrap_or(text.len());
    let line = line.strip_prefix("async ").unwrap_or(line);
    let defined = ["class ", "def "].iter().find_map(|start| line.strip_prefix(start));
    if let Some(rest) = defined {
        return Some(&rest[..word(rest)]);
    }
    let (name, rest) = line.split_at(word(line));
    let is_variable = rest.starts_with(": ") || rest.starts_with(" = ");
    (is_variable && !name.is_empty()).then_some(name)
}

/// The bases of a class, without their parameters.
fn bases(line: &str) -> Vec<String> {
    let inside = line.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
    let bases = inside.map(|(list, _)| list).unwrap_or_default().split(',');
    bases.map(|base| base.split('[').next().unwrap_or_default().trim().to_owned()).collect()
}
