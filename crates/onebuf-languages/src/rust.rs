//! The public names of the crate `onebuf`, from the sources: what `pub use` exports, with methods, fields and variants.

use crate::rust_macros::{self, Declared, Name};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::{Path, PathBuf},
};
use syn::{Attribute, ImplItem, Item, TraitItem, UseTree, Visibility};

/// A path in a crate: `["onebuf_core", "buffer"]`.
type Place = Vec<String>;

#[derive(Default)]
struct Module {
    items: BTreeMap<String, Members>,
    /// What `use` brings in: the name here, where it is from, whether it is public.
    uses: Vec<(String, Place, bool)>,
    /// Modules in this one, and whether they are public.
    children: BTreeMap<String, bool>,
}

/// An item, and the public names in it: `::method`, `::Variant`, `.field`.
#[derive(Clone, Default)]
struct Members {
    public: bool,
    is_unsafe: bool,
    names: Vec<Name>,
}

/// The sources of all crates of the workspace.
pub struct Sources {
    folder: PathBuf,
    modules: BTreeMap<Place, Module>,
    /// Inherent implementations: the module, the type as it is named there, the public methods.
    implementations: Vec<(Place, Place, Vec<Name>)>,
    macros: BTreeMap<String, rust_macros::Rules>,
}

impl Sources {
    /// Reads the crates below a folder. Each is read when a name leads to it.
    pub fn new(folder: &Path) -> Self {
        let (modules, implementations, macros) = Default::default();
        Self { folder: folder.to_owned(), modules, implementations, macros }
    }

    /// All public names that start at a crate, without the crate's own name.
    pub fn public_names(&mut self, root: &str) -> BTreeSet<String> {
        self.names(root).into_keys().collect()
    }

    /// Those that are `unsafe`: functions, and traits to implement.
    pub fn unsafe_names(&mut self, root: &str) -> BTreeSet<String> {
        self.names(root)
            .into_iter()
            .filter_map(|(name, is_unsafe)| is_unsafe.then_some(name))
            .collect()
    }

    fn names(&mut self, root: &str) -> BTreeMap<String, bool> {
        let (mut names, mut seen) = (BTreeMap::new(), BTreeSet::new());
        let mut modules = VecDeque::from([(vec![root.to_owned()], String::new())]);
        // Breadth first: of several paths to an item the shortest counts.
        while let Some((place, prefix)) = modules.pop_front() {
            self.load(&place[0]);
            if !seen.insert(place.clone()) {
                continue;
            }
            let module = self.modules.get(&place).unwrap_or_else(|| panic!("no module {place:?}"));
            let own = module.items.keys().chain(module.children.keys());
            let mut inside: Vec<(String, Place)> =
                own.map(|name| (name.clone(), child(&place, name))).collect();
            let used = module.uses.iter().filter(|(.., public)| *public);
            inside.extend(used.map(|(name, from, _)| (name.clone(), from.clone())));
            for (name, at) in inside {
                assert_ne!(name, "*", "a public glob in {place:?}, whose names are not known");
                match self.resolve(&at, &place, false) {
                    Found::Item(at, members) if members.public && seen.insert(at.clone()) => {
                        let path = format!("{prefix}{name}");
                        let methods = self.methods(&at).into_iter();
                        let methods = methods.map(|(name, is)| (format!("::{name}"), is));
                        let inner = members.names.into_iter().chain(methods);
                        names.extend(inner.map(|(inner, is)| (format!("{path}{inner}"), is)));
                        names.insert(path, members.is_unsafe);
                    }
                    Found::Module(at, true) => modules.push_back((at, format!("{prefix}{name}::"))),
                    Found::Elsewhere => drop(names.insert(format!("{prefix}{name}"), false)),
                    Found::Item(..) | Found::Module(..) => {}
                }
            }
        }
        names
    }

    /// What a path means, followed through `use`. `asked` is the module that names it; `inner` says that the path goes on,
    /// so that a module is meant where a function has its name, too.
    fn resolve(&mut self, at: &[String], asked: &[String], inner: bool) -> Found {
        if !self.load(&at[0]) {
            return Found::Elsewhere;
        }
        if at.len() == 1 {
            return Found::Module(at.to_vec(), true);
        }
        let (parent, name) = (&at[..at.len() - 1], &at[at.len() - 1]);
        let Found::Module(parent, _) = self.resolve(parent, asked, true) else {
            return Found::Elsewhere;
        };
        let module = &self.modules[&parent];
        if let Some(members) = module.items.get(name).filter(|_| !inner) {
            return Found::Item(child(&parent, name), members.clone());
        }
        let mut used = module.uses.iter().filter(|(alias, ..)| alias == name);
        let exported = used.clone().find(|(.., public)| *public && !inner);
        if let (Some(public), None) = (module.children.get(name), exported) {
            // A private module is public under the name of a `pub use`.
            return Found::Module(child(&parent, name), *public || parent != asked);
        }
        match exported.or_else(|| used.next()).map(|(_, from, _)| from.clone()) {
            Some(from) => self.resolve(&from, asked, inner),
            None => Found::Elsewhere,
        }
    }

    /// The public methods of a type.
    fn methods(&mut self, of: &[String]) -> Vec<Name> {
        let name = &of[of.len() - 1];
        let ours = |(module, path, _): &&(Place, Place, Vec<Name>)| {
            module[0] == of[0] && path.last() == Some(name)
        };
        let likely: Vec<_> = self.implementations.iter().filter(ours).cloned().collect();
        let mut found = Vec::new();
        for (module, path, methods) in likely {
            let path = absolute(path, &module, &BTreeSet::new());
            let whole = if path[0] == of[0] { path } else { [&*module, &path].concat() };
            if matches!(self.resolve(&whole, &module, false), Found::Item(at, _) if at == of) {
                found.extend(methods);
            }
        }
        found
    }

    /// Reads a crate, unless that is done; false if it is none of the workspace.
    fn load(&mut self, name: &str) -> bool {
        let root = vec![name.to_owned()];
        if self.modules.contains_key(&root) {
            return true;
        }
        let file = self.folder.join(name.replace('_', "-")).join("src/lib.rs");
        if !name.starts_with("onebuf") || !file.exists() {
            return false;
        }
        self.read(&file, &file.with_file_name(""), root);
        true
    }

    /// Reads the file of a module; `folder` has the files of its children.
    fn read(&mut self, file: &Path, folder: &Path, place: Place) {
        let text = fs::read_to_string(file).unwrap_or_else(|why| panic!("{file:?}: {why}"));
        let parsed = syn::parse_file(&text).unwrap_or_else(|why| panic!("{file:?}: {why}"));
        self.take(parsed.items, folder, place);
    }

    fn take(&mut self, items: Vec<Item>, folder: &Path, place: Place) {
        let mut module = Module::default();
        let names: BTreeSet<String> = items.iter().filter_map(module_name).collect();
        for item in items {
            match item {
                Item::Mod(item) if is_for_tests(&item.attrs) => drop(item),
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    module.children.insert(name.clone(), is_public(&item.vis, &item.attrs));
                    let (inner, at) = (folder.join(&name), child(&place, &name));
                    match item.content {
                        Some((_, items)) => self.take(items, &inner, at),
                        None => self.read(&file_of(&inner), &inner, at),
                    }
                }
                Item::Use(item) if !is_left_out(&item.attrs) => {
                    let public = is_public(&item.vis, &item.attrs);
                    let mut found = Vec::new();
                    spread(&item.tree, &mut Vec::new(), &mut found);
                    let whole = |from| absolute(from, &place, &names);
                    module.uses.extend(found.into_iter().map(|(n, from)| (n, whole(from), public)));
                }
                Item::Impl(item) if item.trait_.is_none() => self.take_methods(&item, &place),
                Item::Macro(item) => self.take_macro(&item, &mut module, &place),
                item => {
                    if let Some((name, members)) = members(&item) {
                        module.items.insert(name, members);
                    }
                }
            }
        }
        expand_aliases(&mut module.uses);
        self.modules.insert(place, module);
    }

    fn take_methods(&mut self, item: &syn::ItemImpl, place: &[String]) {
        let syn::Type::Path(owner) = &*item.self_ty else { return };
        let owner = owner.path.segments.iter().map(|part| part.ident.to_string()).collect();
        let methods = item.items.iter().filter_map(|inner| match inner {
            ImplItem::Fn(inner) if is_public(&inner.vis, &inner.attrs) => {
                Some(function(&inner.sig))
            }
            ImplItem::Const(inner) if is_public(&inner.vis, &inner.attrs) => {
                Some((inner.ident.to_string(), false))
            }
            _ => None,
        });
        let methods = methods.collect();
        self.implementations.push((place.to_vec(), owner, methods));
    }

    /// Keeps the rules of a macro, or takes what a call of one declares.
    fn take_macro(&mut self, item: &syn::ItemMacro, module: &mut Module, place: &[String]) {
        let called = item.mac.path.segments.last().map(|last| last.ident.to_string());
        if let Some(name) = &item.ident {
            let public = item.attrs.iter().any(|attr| attr.path().is_ident("macro_export"));
            if public {
                module.items.insert(name.to_string(), Members { public, ..Members::default() });
            }
            self.macros.insert(name.to_string(), rust_macros::Rules::new(item.mac.tokens.clone()));
        } else if let Some(rules) = called.and_then(|name| self.macros.get(&name)) {
            let Some(Declared { name, methods, fields }) = rules.apply(item.mac.tokens.clone())
            else {
                return;
            };
            let names = fields.iter().map(|field| (format!(".{field}"), false)).collect();
            let members = Members { public: true, is_unsafe: false, names };
            module.items.insert(name.clone(), members);
            self.implementations.push((place.to_vec(), vec![name], methods));
        }
    }
}

enum Found {
    Item(Place, Members),
    /// Whether the module is public.
    Module(Place, bool),
    /// In a crate of others.
    Elsewhere,
}

fn child(place: &[String], name: &str) -> Place {
    [place, &[name.to_owned()]].concat()
}

fn module_name(item: &Item) -> Option<String> {
    let Item::Mod(item) = item else { return None };
    Some(item.ident.to_string())
}

fn function(of: &syn::Signature) -> Name {
    (of.ident.to_string(), of.unsafety.is_some())
}

fn file_of(inner: &Path) -> PathBuf {
    let file = inner.with_extension("rs");
    if file.exists() { file } else { inner.join("mod.rs") }
}

/// An item with its name, and its public members that stand with it.
fn members(item: &Item) -> Option<(String, Members)> {
    let (mut names, mut is_unsafe) = (Vec::new(), false);
    let (ident, vis, attrs) = match item {
        Item::Struct(item) => {
            let shown = item.fields.iter().filter(|field| is_public(&field.vis, &field.attrs));
            let fields = shown.filter_map(|field| field.ident.as_ref());
            names.extend(fields.map(|field| (format!(".{field}"), false)));
            (&item.ident, &item.vis, &item.attrs)
        }
        Item::Enum(item) => {
            let shown = item.variants.iter().filter(|variant| !is_left_out(&variant.attrs));
            names.extend(shown.map(|variant| (format!("::{}", variant.ident), false)));
            (&item.ident, &item.vis, &item.attrs)
        }
        Item::Trait(item) => {
            let methods = item.items.iter().filter_map(|inner| match inner {
                TraitItem::Fn(inner) if !is_left_out(&inner.attrs) => Some(function(&inner.sig)),
                TraitItem::Const(inner) if !is_left_out(&inner.attrs) => {
                    Some((inner.ident.to_string(), false))
                }
                TraitItem::Type(inner) if !is_left_out(&inner.attrs) => {
                    Some((inner.ident.to_string(), false))
                }
                _ => None,
            });
            names.extend(methods.map(|(method, is)| (format!("::{method}"), is)));
            is_unsafe = item.unsafety.is_some();
            (&item.ident, &item.vis, &item.attrs)
        }
        Item::Fn(item) => {
            is_unsafe = item.sig.unsafety.is_some();
            (&item.sig.ident, &item.vis, &item.attrs)
        }
        Item::Const(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Static(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Type(item) => (&item.ident, &item.vis, &item.attrs),
        _ => return None,
    };
    let public = is_public(vis, attrs);
    // What only tests have may share the name of what is public.
    (!is_for_tests(attrs)).then(|| (ident.to_string(), Members { public, is_unsafe, names }))
}

/// The names that a `use` brings in, with their paths.
fn spread(tree: &UseTree, before: &mut Place, to: &mut Vec<(String, Place)>) {
    let mut found = |name: &syn::Ident, from: &syn::Ident| {
        let whole = if from == "self" { before.clone() } else { child(before, &from.to_string()) };
        let name = if name == "self" { before.last().cloned() } else { Some(name.to_string()) };
        to.push((name.unwrap_or_default(), whole));
    };
    match tree {
        UseTree::Name(name) => found(&name.ident, &name.ident),
        UseTree::Rename(name) => found(&name.rename, &name.ident),
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            spread(&path.tree, before, to);
            before.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| spread(tree, before, to)),
        // Tests alone use globs; `public_names` refuses a public one.
        UseTree::Glob(_) => to.push(("*".into(), before.clone())),
    }
}

/// A path from the root of its crate. `inside` are the modules in the place.
fn absolute(mut from: Place, place: &[String], inside: &BTreeSet<String>) -> Place {
    let mut base = match from[0].as_str() {
        "crate" => place[..1].to_vec(),
        "self" => place.to_vec(),
        "super" => place[..place.len() - 1].to_vec(),
        first if inside.contains(first) => return [place, &from].concat(),
        _ => return from,
    };
    from.remove(0);
    while from.first().is_some_and(|name| name == "super") {
        base.pop();
        from.remove(0);
    }
    base.extend(from);
    base
}

/// `pub use cuda::foreign::X` after `use onebuf_cuda as cuda`.
fn expand_aliases(uses: &mut [(String, Place, bool)]) {
    let aliases: BTreeMap<String, Place> =
        uses.iter().map(|(name, from, _)| (name.clone(), from.clone())).collect();
    for (name, from, _) in uses {
        if let Some(whole) = aliases.get(&from[0]).filter(|_| *name != from[0]) {
            *from = [&**whole, &from[1..]].concat();
        }
    }
}

fn is_public(vis: &Visibility, attrs: &[Attribute]) -> bool {
    matches!(vis, Visibility::Public(_)) && !is_left_out(attrs)
}

/// Items of tests, and those hidden from the documentation.
fn is_left_out(attrs: &[Attribute]) -> bool {
    is_for_tests(attrs) || attrs.iter().any(|attr| says(attr, "doc", &["hidden"]))
}

fn is_for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| says(attr, "cfg", &["test", "doctest", "onebuf_shuttle"]))
}

/// Whether an attribute has one of these words, not under `not(…)` or beside `any(…)`.
fn says(attr: &Attribute, name: &str, words: &[&str]) -> bool {
    let syn::Meta::List(list) = &attr.meta else { return false };
    let text = list.tokens.to_string();
    let all = text.strip_prefix("all").unwrap_or(&text).trim().trim_matches(['(', ')']);
    list.path.is_ident(name) && all.split(',').any(|part| words.contains(&part.trim()))
}
