//! Reports as pages: one file each, that needs no network, no script and no other file.
//!
//! Everything that a driver says goes through [`markup`], which escapes it. Should something slip through all the same, the
//! page's own policy lets no script run and nothing be loaded.

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

/// Nothing is loaded, nothing runs; only the page's own style applies.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'";

/// Writes a page where the caller wants it.
pub fn save(path: &Path, page: &str) -> Result<()> {
    fs::write(path, page).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// A whole page: its heading, what it is about, and its sections.
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

/// A part of the page with a heading of its own.
fn section(id: &'static str, heading: &str) -> Element {
    let title = format!("{id}-heading");
    el("section")
        .attr("id", id)
        .attr("aria-labelledby", &title)
        .child(el("h2").attr("id", &title).text(heading))
}

/// A table with a caption and headed columns; it scrolls by itself where it is too wide.
///
/// A head that begins with `#` is one of numbers.
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

/// A row that is named by its first cell.
fn row(name: &str, cells: impl IntoIterator<Item = Element>) -> Element {
    el("tr").child(el("th").attr("scope", "row").text(name)).children(cells)
}

fn cell(text: impl std::fmt::Display) -> Element {
    el("td").text(text)
}

fn number(text: impl std::fmt::Display) -> Element {
    cell(text).class("number")
}
