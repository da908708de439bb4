//! HTML elements. Contents are escaped; only texts compiled into the program bypass that.

use std::fmt::{self, Display, Write};

/// Void elements, which have no contents and no end tag.
const VOID: [&str; 2] = ["meta", "br"];

/// An element under construction.
#[derive(Clone)]
pub struct Element {
    tag: &'static str,
    attributes: String,
    inner: String,
}

pub fn el(tag: &'static str) -> Element {
    Element { tag, attributes: String::new(), inner: String::new() }
}

impl Element {
    pub fn attr(mut self, name: &'static str, value: impl Display) -> Self {
        let _ = write!(self.attributes, " {name}=\"{}\"", escaped(value));
        self
    }

    pub fn class(self, names: &str) -> Self {
        self.attr("class", names)
    }

    pub fn text(mut self, text: impl Display) -> Self {
        self.inner += &escaped(text);
        self
    }

    /// Unescaped text; it must be compiled into this program.
    pub fn verbatim(mut self, text: &'static str) -> Self {
        self.inner += text;
        self
    }

    pub fn child(mut self, child: Element) -> Self {
        let _ = write!(self.inner, "{child}");
        self
    }

    pub fn children(self, children: impl IntoIterator<Item = Element>) -> Self {
        children.into_iter().fold(self, Self::child)
    }
}

impl Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, attributes, inner } = self;
        match VOID.contains(tag) {
            true => write!(f, "<{tag}{attributes}>"),
            false => write!(f, "<{tag}{attributes}>{inner}</{tag}>"),
        }
    }
}

/// Escapes text for contents and attribute values. Characters that are not allowed in HTML become U+FFFD.
fn escaped(text: impl Display) -> String {
    let text = text.to_string();
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\n' | '\t' => out.push(c),
            // So do characters that change the text direction.
            c if c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                out.push('\u{fffd}');
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_place() {
        let hostile = "\"'><script>alert(1)</script>&\0\u{202e}";
        let page = el("p").attr("title", hostile).text(hostile).to_string();
        let safe = "&quot;&#39;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;\u{fffd}\u{fffd}";
        assert_eq!(page, format!("<p title=\"{safe}\">{safe}</p>"));
    }

    #[test]
    fn elements_nest_and_some_have_no_end() {
        let page = el("div").child(el("br")).children([el("b").text(1), el("i").verbatim("&")]);
        assert_eq!(page.to_string(), "<div><br><b>1</b><i>&</i></div>");
    }
}
