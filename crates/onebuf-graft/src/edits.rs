//! Edits of a text, collected while it is read.

use super::lex::Token;

/// Replacements of parts of a text.
#[derive(Default)]
pub(super) struct Edits(Vec<(usize, usize, String)>);

impl Edits {
    pub fn replace(&mut self, first: &Token<'_>, last: &Token<'_>, by: impl Into<String>) {
        self.0.push((first.at, last.end(), by.into()));
    }

    pub fn cut(&mut self, from: usize, to: usize) {
        self.0.push((from, to, String::new()));
    }

    pub fn insert_behind(&mut self, token: &Token<'_>, what: impl Into<String>) {
        self.0.push((token.end(), token.end(), what.into()));
    }

    pub fn insert_before(&mut self, token: &Token<'_>, what: impl Into<String>) {
        self.0.push((token.at, token.at, what.into()));
    }

    pub fn apply(mut self, text: &str) -> String {
        self.0.sort_by_key(|(from, to, _)| (*from, *to));
        let (mut out, mut at) = (String::with_capacity(text.len() + 1024), 0);
        for (from, to, by) in &self.0 {
            out.push_str(text.get(at..*from).unwrap_or_default());
            out.push_str(by);
            at = *to;
        }
        out + text.get(at..).unwrap_or_default()
    }
}
