//! The names in `onebuf.hpp`: `Class::method`, `Class::field`, `Enum::Value`, functions and types of the namespace `onebuf`.
//!
//! Constructors, destructors, operators, what is private and the namespace `detail` are left out. What a class inherits from a class
//! of `detail` is its own.

use crate::c::without_comments;
use std::collections::{BTreeMap, BTreeSet};

/// All names for users of the header.
pub fn names(header: &str) -> BTreeSet<String> {
    let text = without_comments(header);
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let tokens = tokens(&code.join("\n"));
    let mut all = CppNames::default();
    Scope { path: Vec::new(), is_class: false, all: &mut all }.read(&tokens);
    all.inherit();
    all.names.retain(|name| !name.starts_with("detail::") && name != "detail");
    all.names
}

#[derive(Default)]
struct CppNames {
    names: BTreeSet<String>,
    /// The base of a class.
    bases: BTreeMap<String, String>,
}

impl CppNames {
    /// Adds what classes inherit. Handles are for the classes of the header, not for its users.
    fn inherit(&mut self) {
        for (class, base) in &self.bases {
            let members =
                self.names.iter().filter_map(|name| name.strip_prefix(base)?.strip_prefix("::"));
            let more: Vec<String> = members.map(|member| format!("{class}::{member}")).collect();
            if base != "detail::Owner" {
                self.names.extend(more);
            }
        }
    }
}

/// The structures of `onebuf.h` that users of the header have in their hands: those that its classes derive from
/// (`struct Options : onebuf_options`) or return (`Result<onebuf_profile>`).
pub fn structures(header: &str) -> BTreeSet<String> {
    let text = without_comments(header);
    let shown = |four: &[String]| {
        let is_base = [":", "public"].contains(&&*four[1]) && four[3] == "{";
        let is_returned = four[0] == "Result" && four[1] == "<";
        let is_shown = four[2].starts_with("onebuf_") && (is_base || is_returned);
        is_shown.then(|| four[2].clone())
    };
    tokens(&text).windows(4).filter_map(shown).collect()
}

/// Words, and every other character by itself. Strings become one token.
fn tokens(code: &str) -> Vec<String> {
    let (mut all, mut rest) = (Vec::new(), code.trim_start());
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
        let size = match first {
            '"' | '\'' => quoted(rest, first),
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ if rest.starts_with("::") || rest.starts_with("->") => 2,
            c => c.len_utf8(),
        };
        all.push(rest[..size].to_owned());
        rest = rest[size..].trim_start();
    }
    all
}

fn quoted(text: &str, by: char) -> usize {
    let mut escaped = true; // the quote that begins it
    for (at, c) in text.char_indices() {
        if c == by && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

/// A namespace or class whose members are read.
struct Scope<'n> {
    path: Vec<String>,
    is_class: bool,
    all: &'n mut CppNames,
}

impl Scope<'_> {
    fn read(&mut self, mut rest: &[String]) {
        // A caller sets this for `struct`: only there members are public from the start.
        let mut public = true;
        while let Some(first) = rest.first() {
            match first.as_str() {
                "public" | "private" | "protected" if rest.get(1).is_some_and(|t| t == ":") => {
                    public = first == "public";
                    rest = &rest[2..];
                }
                ";" => rest = &rest[1..],
                _ => {
                    let size = declaration(rest);
                    if public {
                        self.take(&rest[..size]);
                    }
                    rest = &rest[size..];
                }
            }
        }
    }

    fn take(&mut self, whole: &[String]) {
        let tokens = without_template(whole);
        let word = |at: usize| tokens.get(at).map_or("", String::as_str);
        match word(0) {
            "namespace" => self.go_into(word(1), tokens, false, false),
            "class" | "struct" => {
                let name = class_name(tokens);
                self.go_into(&name, tokens, true, word(0) == "class");
            }
            "enum" => {
                let name = word(2).to_owned();
                self.add(&name);
                let values = body(tokens).split(|token| token == ",");
                let values = values.filter_map(|value| value.first());
                values.for_each(|value| self.add(&format!("{name}::{value}")));
            }
            "using" if word(2) == "=" => self.add(word(1)),
            "using" | "friend" | "extern" | "static_assert" => {}
            _ => {
                let own = self.path.last().filter(|_| self.is_class).cloned();
                let names = declared(tokens);
                let shown = names.iter().filter(|name| Some(*name) != own.as_ref());
                shown.for_each(|name| self.add(name));
            }
        }
    }

    fn go_into(&mut self, name: &str, tokens: &[String], is_class: bool, hidden: bool) {
        let inside = body(tokens);
        // A declaration without a body names what stands elsewhere.
        if !tokens.iter().any(|token| token == "{") {
            return;
        }
        if is_class {
            self.add(name);
            self.all.bases.extend(base(tokens).map(|base| (self.whole(name), base)));
        }
        let mut path = self.path.clone();
        if name != "onebuf" || is_class {
            path.push(name.to_owned());
        }
        let start =
            if hidden { inside.iter().position(|token| token == "public") } else { Some(0) };
        let mut scope = Scope { path, is_class, all: self.all };
        scope.read(start.map_or(&[], |start| &inside[start..]));
    }

    fn add(&mut self, name: &str) {
        self.all.names.insert(self.whole(name));
    }

    fn whole(&self, name: &str) -> String {
        [&*self.path, &[name.to_owned()]].concat().join("::")
    }
}

/// How many tokens the first declaration has.
fn declaration(tokens: &[String]) -> usize {
    let mut at = 0;
    let is_type = ["class", "struct", "enum", "union"]
        .iter()
        .any(|word| without_template(tokens).first().is_some_and(|first| first == word));
    while at < tokens.len() {
        match tokens[at].as_str() {
            ";" => return at + 1,
            "(" | "[" => at += balanced(&tokens[at..]),
            "{" => {
                at += balanced(&tokens[at..]);
                let follows = tokens.get(at).map_or("", String::as_str);
                // `x_{1};`, `: a{1}, b{2} {…}` and `struct {…};` go on.
                let goes_on = is_type || [";", ",", "{"].contains(&follows);
                if !goes_on {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    tokens.len()
}

/// How many tokens there are up to the bracket that closes the first.
fn balanced(tokens: &[String]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The tokens after `template <…>`, attributes and words that say nothing about the name.
fn without_template(mut tokens: &[String]) -> &[String] {
    loop {
        match tokens.first().map(String::as_str) {
            Some("template") => tokens = &tokens[1 + angles(&tokens[1..])..],
            Some("[") => tokens = &tokens[balanced(tokens)..],
            Some("inline" | "static" | "explicit" | "constexpr" | "virtual") => {
                tokens = &tokens[1..]
            }
            _ => return tokens,
        }
    }
}

/// How many tokens `<…>` has.
fn angles(tokens: &[String]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < tokens.len() {
        match tokens[at].as_str() {
            "<" => depth += 1,
            ">" => depth -= 1,
            "(" => at += balanced(&tokens[at..]) - 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// `class [[nodiscard]] Name : Base {`
fn class_name(tokens: &[String]) -> String {
    let tokens = without_template(&tokens[1..]);
    tokens.first().cloned().unwrap_or_default()
}

/// `detail::Base` of `class Name : public detail::Base<T> {`.
fn base(tokens: &[String]) -> Option<String> {
    let head = tokens.split(|token| token == "{").next()?;
    let start = head.iter().position(|token| token == ":")? + 1;
    let words = head[start..].iter().filter(|word| *word != "public");
    Some(words.take_while(|word| *word != "<" && *word != ",").cloned().collect())
}

/// What stands in the first braces.
fn body(tokens: &[String]) -> &[String] {
    let Some(start) = tokens.iter().position(|token| token == "{") else { return &[] };
    &tokens[start + 1..start + balanced(&tokens[start..]) - 1]
}

/// The name that a function has, or those of variables (`int a = 1, b = 2;`). None for operators, destructors, and members
/// that are defined outside of their class.
fn declared(tokens: &[String]) -> Vec<String> {
    let (mut names, mut last, mut at) = (Vec::new(), "", 0);
    while at < tokens.len() {
        match tokens[at].as_str() {
            "operator" | "~" => return Vec::new(),
            // `Program::graft` outside of its class.
            "::" if tokens.get(at + 2).is_some_and(|token| token == "(") => return Vec::new(),
            "<" => {
                at += angles(&tokens[at..]);
                continue;
            }
            "(" => return if names.is_empty() { vec![last.to_owned()] } else { names },
            "=" | "{" | "[" | "," | ";" => {
                names.push(last.to_owned());
                at += initialiser(&tokens[at..]);
            }
            word => last = word,
        }
        at += 1;
    }
    names
}

/// How many tokens there are up to the comma or semicolon.
fn initialiser(tokens: &[String]) -> usize {
    let mut at = 0;
    while at < tokens.len() && tokens[at] != "," && tokens[at] != ";" {
        at += if ["{", "(", "["].contains(&&*tokens[at]) { balanced(&tokens[at..]) } else { 1 };
    }
    at
}
