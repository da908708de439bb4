//! The names in `onebuf.h`: functions, types, constants, and the fields of structures as `structure.field`.

use std::collections::{BTreeMap, BTreeSet};

/// What a header declares.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// All names.
    pub names: BTreeSet<String>,
    /// The types, each with those that its declaration mentions: of fields, or of a function's parameters.
    pub types: BTreeMap<String, BTreeSet<String>>,
}

/// Reads a header.
pub fn read(header: &str) -> Header {
    let text = without_comments(header);
    let mut all = Header::default();
    all.names.extend(text.lines().filter_map(constant));
    let code: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    // What is between `extern "C" {` and its end is not inside anything.
    for declaration in declarations(&code.join("\n").replacen("extern \"C\" {", "", 1)) {
        match declaration.strip_prefix("typedef ") {
            Some(kind) if kind.starts_with("struct") && kind.contains('{') => {
                all.add_structure(kind)
            }
            Some(kind) => declared(kind).into_iter().for_each(|name| all.add_type(&name, kind)),
            None => all.names.extend(function(&declaration)),
        }
    }
    all
}

impl Header {
    /// These types, and all that their declarations lead to.
    pub fn reached(&self, from: BTreeSet<String>) -> BTreeSet<String> {
        let (mut all, mut rest) = (BTreeSet::new(), Vec::from_iter(from));
        while let Some(name) = rest.pop() {
            if all.insert(name.clone()) {
                rest.extend(self.types.get(&name).into_iter().flatten().cloned());
            }
        }
        all
    }

    fn add_type(&mut self, name: &str, declaration: &str) {
        self.names.insert(name.to_owned());
        let words = declaration.split(|c| !is_word(c));
        let others = words.filter(|word| word.starts_with("onebuf_") && *word != name);
        self.types.insert(name.to_owned(), others.map(str::to_owned).collect());
    }

    /// A structure and its fields.
    fn add_structure(&mut self, kind: &str) {
        let inside = kind.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
        let Some((body, name)) = inside.map(|(body, end)| (body, end.trim())) else { return };
        self.add_type(name, body);
        let fields = body.split(';').filter(|field| !field.trim().is_empty());
        self.names.extend(fields.filter_map(declared).map(|field| format!("{name}.{field}")));
    }
}

fn constant(line: &str) -> Option<String> {
    let name = word_at_start(line.strip_prefix("#define ")?);
    // The guard of the header is no name for users.
    (name != "ONEBUF_H").then(|| name.to_owned())
}

/// The declarations of a text, each on one line and without the semicolon. Bodies of functions are left out.
fn declarations(code: &str) -> Vec<String> {
    let (mut all, mut one, mut depth) = (Vec::new(), String::new(), 0);
    for c in code.chars() {
        depth = (depth + i32::from(c == '{') - i32::from(c == '}')).max(0);
        one.push(if c == '\n' { ' ' } else { c });
        let body_ends = c == '}' && depth == 0 && !one.trim_start().starts_with("typedef");
        if depth == 0 && (c == ';' || body_ends) {
            all.push(one.trim().trim_end_matches(';').to_owned());
            one.clear();
        }
    }
    all
}

/// The name that a declaration of a type, variable or function pointer declares.
fn declared(text: &str) -> Option<String> {
    if let Some((_, rest)) = text.split_once("(*") {
        return Some(word_at_start(rest).to_owned());
    }
    let text = text.split('[').next()?.trim_end();
    let start = text.rfind(|c| !is_word(c)).map_or(0, |at| at + 1);
    (start < text.len()).then(|| text[start..].to_owned())
}

fn function(text: &str) -> Option<String> {
    let name = declared(text.split_once('(')?.0)?;
    name.starts_with("onebuf_").then_some(name)
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

fn word_at_start(text: &str) -> &str {
    text.split(|c| !is_word(c)).next().unwrap_or_default()
}

/// Removes `//` and `/* */`, and what macros continue in further lines.
pub(crate) fn without_comments(text: &str) -> String {
    let mut all = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        all += &rest[..at];
        rest = rest[at..].split_once("*/").map_or("", |(_, rest)| rest);
    }
    all += rest;
    let lines = all.lines().map(|line| line.split("//").next().unwrap_or_default());
    let lines = lines.collect::<Vec<_>>().join("\n");
    lines.replace("\\\n", " ")
}
