//! Links in pages, and the places that they name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

/// How many relative links the pages have, and those that lead nowhere.
pub fn check(root: &Path, pages: &[PathBuf]) -> (usize, Vec<String>) {
    let texts: BTreeMap<PathBuf, String> = pages
        .iter()
        .map(|page| (root.join(page), fs::read_to_string(root.join(page)).expect("a page")))
        .collect();
    let places: BTreeMap<&PathBuf, BTreeSet<String>> =
        texts.iter().map(|(page, text)| (page, anchors(text))).collect();
    let (mut count, mut problems) = (0, Vec::new());
    for page in pages {
        let page_path = root.join(page);
        for link in of(&texts[&page_path]) {
            count += 1;
            let (file, anchor) = split(&link);
            let folder = page_path.parent().expect("a parent");
            let target = if file.is_empty() { page_path.clone() } else { resolve(folder, file) };
            let right = match (anchor, places.get(&target)) {
                (Some(anchor), Some(anchors)) => anchors.contains(anchor),
                (Some(_), None) => false, // only pages have anchors
                (None, _) => target.exists(),
            };
            if !right {
                problems.push(format!("{}: {link}", page.display()));
            }
        }
    }
    (count, problems)
}

/// Checks the links, images and anchors of a folder of HTML.
pub fn check_html(folder: &Path) -> (usize, Vec<String>) {
    let mut files = Vec::new();
    html_files(folder, &mut files);
    let texts: BTreeMap<&PathBuf, String> =
        files.iter().map(|file| (file, fs::read_to_string(file).expect("a page"))).collect();
    let ids: BTreeMap<&PathBuf, BTreeSet<String>> = texts
        .iter()
        .map(|(file, text)| (*file, attributes(text, "id").into_iter().collect()))
        .collect();
    let (mut count, mut problems) = (0, Vec::new());
    for (file, text) in &texts {
        // Its links are relative to a place on a server.
        if file.ends_with("404.html") {
            continue;
        }
        for link in attributes(text, "href").into_iter().chain(attributes(text, "src")) {
            if is_elsewhere(&link) {
                continue;
            }
            count += 1;
            let (name, anchor) = split(&link);
            let place = file.parent().expect("a parent");
            let target = if name.is_empty() { (*file).clone() } else { resolve(place, name) };
            let right = match (anchor, ids.get(&target)) {
                (Some(anchor), Some(ids)) => anchor.is_empty() || ids.contains(anchor),
                _ => target.exists(),
            };
            if !right {
                let page = file.strip_prefix(folder).unwrap_or(file);
                problems.push(format!("{}: {link}", page.display()));
            }
        }
    }
    (count, problems)
}

fn html_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the built book").flatten() {
        let path = entry.path();
        if path.is_dir() {
            html_files(&path, files);
        } else if path.extension().is_some_and(|end| end == "html") {
            // One page with everything, for printing: its links are those of the others.
            if !path.ends_with("print.html") && !path.ends_with("toc.html") {
                files.push(path);
            }
        }
    }
}

/// The relative links and images of a page.
pub fn of(text: &str) -> Vec<String> {
    let text = prose(text);
    let mut links: Vec<String> = text.split("](").skip(1).filter_map(target).collect();
    links.extend(attributes(&text, "src"));
    links.extend(attributes(&text, "href"));
    links.extend(attributes(&text, "srcset"));
    links.retain(|link| !is_elsewhere(link));
    links
}

/// What stands before the closing bracket: a link has no spaces.
fn target(rest: &str) -> Option<String> {
    let link = rest.split(')').next()?;
    (!link.is_empty() && !link.contains(char::is_whitespace)).then(|| link.to_owned())
}

fn attributes(text: &str, name: &str) -> Vec<String> {
    let opening = format!(" {name}=\"");
    let values = text.split(&opening).skip(1);
    values.filter_map(|rest| rest.split('"').next().map(str::to_owned)).collect()
}

fn is_elsewhere(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:")
}

fn split(link: &str) -> (&str, Option<&str>) {
    match link.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (link, None),
    }
}

/// A path without `.` and `..`, as links are resolved.
pub fn resolve(folder: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(split(link).0).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(path.components().next_back(), Some(Component::Normal(_))) =>
            {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path
}

/// The text without blocks and spans of code.
fn prose(text: &str) -> String {
    let mut spans = String::new();
    let mut code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            spans.push_str(line);
            spans.push('\n');
        }
    }
    let (mut prose, mut rest) = (String::new(), spans.as_str());
    while let Some(at) = rest.find('`') {
        prose.push_str(&rest[..at]);
        let ticks = rest[at..].chars().take_while(|&c| c == '`').count();
        let (fence, after) = rest[at..].split_at(ticks);
        // A link around a span of code is still one.
        rest = after.find(fence).map_or(after, |end| &after[end + ticks..]);
    }
    prose + rest
}

/// The anchors of a page: those of its headings, and its own.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let (mut seen, mut code) = (BTreeMap::<String, usize>::new(), false);
    let mut anchors = BTreeSet::from_iter(attributes(&prose(text), "id"));
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        let heading = line.trim_start_matches('#');
        if code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let name = anchor(heading.trim());
        let times = seen.entry(name.clone()).or_insert(0);
        anchors.insert(if *times == 0 { name } else { format!("{name}-{times}") });
        *times += 1;
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let mut name = String::new();
    let mut rest = heading;
    while let Some(c) = rest.chars().next() {
        // The target of a link is not part of the heading.
        if let Some(end) = rest.strip_prefix("](").and_then(|link| link.find(')')) {
            rest = &rest[end + 3..];
            continue;
        }
        match c {
            ' ' => name.push('-'),
            '-' | '_' => name.push(c),
            c if c.is_alphanumeric() => name.extend(c.to_lowercase()),
            _ => {}
        }
        rest = &rest[c.len_utf8()..];
    }
    name
}
