//! Reports as HTML pages: each is one file without scripts, network access or other files.
//!
//! All text of drivers goes through [`markup`], which escapes it. As a second defence the page's content security
//! policy forbids scripts and loading.

mod bench;
mod machine;
mod markup;
mod plot;
mod routes;
#[cfg(test)]
mod tests;

pub use bench::bench_page;
pub use machine::Machine;
pub use routes::doctor_page;

use crate::out::{Failure, Result};
use markup::{Element, el};
use std::{fs, path::Path};

const STYLE: &str = include_str!("style.css");

/// Forbids loading and scripts; only the page's own style applies.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'";

/// Writes a page to a file.
pub fn save(path: &Path, page: &str) -> Result<()> {
    fs::write(path, page).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// A whole page: its heading, a summary, and its sections.
fn page(title: &str, about: String, sections: impl IntoIterator<Item = Element>) -> String {
    let head = el("head")
        .child(el("meta").attr("charset", "utf-8"))
        .child(el("meta").attr("http-equiv", "Content-Security-Policy").attr("content", POLICY))
        .child(
            el("meta")
                .attr("name", "viewport")
                .attr("content", "width=device-width, initial-scale=1"),
        )
        .child(el("meta").attr("name", "color-scheme").attr("content", "light dark"))
        .child(el("title").text(title))
        .child(el("style").verbatim(STYLE));
    let heading =
        el("header").child(el("h1").text(title)).child(el("p").class("about").text(about));
    let main = sections.into_iter().fold(el("main").child(heading), Element::child);
    let html = el("html").attr("lang", "en").child(head).child(el("body").child(main));
    format!("<!doctype html>\n{html}\n")
}

/// A section with a heading.
fn section(id: &'static str, heading: &str) -> Element {
    let title = format!("{id}-heading");
    el("section")
        .attr("id", id)
        .attr("aria-labelledby", &title)
        .child(el("h2").attr("id", &title).text(heading))
}

/// A table with a caption and column heads; it scrolls if it is too wide.
///
/// A head that begins with `#` marks a column of numbers.
fn table(caption: &str, heads: &[&str], rows: impl IntoIterator<Item = Element>) -> Element {
    let head = |text: &&str| {
        let head = el("th").attr("scope", "col");
        match text.strip_prefix('#') {
            Some(text) => head.class("number").text(text),
            None => head.text(text),
        }
    };
    let heads = el("tr").children(heads.iter().map(head));
    let table = el("table")
        .child(el("caption").text(caption))
        .child(el("thead").child(heads))
        .child(el("tbody").children(rows));
    el("div").class("scroll").attr("tabindex", "0").child(table)
}

/// A row whose first cell is its head.
fn row(name: &str, cells: impl IntoIterator<Item = Element>) -> Element {
    el("tr").child(el("th").attr("scope", "row").text(name)).children(cells)
}

fn cell(text: impl std::fmt::Display) -> Element {
    el("td").text(text)
}

fn number(text: impl std::fmt::Display) -> Element {
    cell(text).class("number")
}
