//! A copy of the workspace with the mutants in it, and its test programs.

use crate::{
    list::Mutant,
    weave::{self, Region, Woven},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A test program, and its package's folder, in which it is run.
pub struct Program {
    pub name: String,
    pub path: PathBuf,
    pub folder: PathBuf,
}

/// What became of mutants before any test ran.
#[derive(Default)]
pub struct Left {
    /// The compiler refuses the mutant itself.
    pub unviable: BTreeSet<usize>,
    /// It cannot be decided at run time: constant code, conditions that bind names, or what the compiler refuses around it.
    pub fixed: BTreeSet<usize>,
}

/// Copies what git knows of, and new files. Unchanged files keep their times, so that cargo compiles only what has changed.
pub fn copy(root: &Path, to: &Path) -> Result<(), String> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    for file in String::from_utf8_lossy(&output.stdout).split('\0').filter(|file| !file.is_empty())
    {
        // Folders' links are no files, and a file may be deleted but not committed so.
        let Ok(bytes) = fs::read(root.join(file)) else { continue };
        let bytes = if file == "Cargo.toml" {
            without_lints(&String::from_utf8_lossy(&bytes)).into_bytes()
        } else {
            bytes
        };
        write(&to.join(file), &bytes)?;
        if let Ok(data) = fs::metadata(root.join(file)) {
            let _ = fs::set_permissions(to.join(file), data.permissions());
        }
    }
    Ok(())
}

/// The mutants are not written in good style: no lint is an error.
fn without_lints(manifest: &str) -> String {
    let start = manifest.find("[workspace.lints.rust]").unwrap_or(manifest.len());
    let end = manifest[start..].find("[profile").map_or(manifest.len(), |at| start + at);
    let allowed = [
        "warnings",
        "arithmetic_overflow",
        "unconditional_panic",
        "overflowing_literals",
        "unconditional_recursion",
    ];
    let table: String = allowed.iter().map(|lint| format!("{lint} = \"allow\"\n")).collect();
    format!("{}[workspace.lints.rust]\n{table}\n{}", &manifest[..start], &manifest[end..])
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(path.parent().expect("a file is in a folder")).map_err(failed)?;
    fs::write(path, bytes).map_err(failed)
}

/// Weaves all mutants into the copy, and compiles its tests. Mutants that do not compile are taken out until the rest does.
pub fn build(
    root: &Path,
    tree: &Path,
    mutants: &[Mutant],
    tests: &[String],
) -> Result<(Vec<Program>, Left), String> {
    let mut left = Left::default();
    let mut files: BTreeMap<&str, (String, Vec<&Mutant>)> = BTreeMap::new();
    for mutant in mutants {
        let file = &*mutant.file;
        if !files.contains_key(file) {
            // Read once: the sources may be edited while this runs.
            let source =
                fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))?;
            files.insert(file, (source, Vec::new()));
        }
        files.get_mut(file).expect("it was inserted").1.push(mutant);
    }
    let roots = crate_roots(root, &files)?;
    let mut round = 0;
    loop {
        let woven = weave_all(tree, &files, &roots, mutants.len(), &mut left)?;
        let (programs, errors) = compile(tree, tests)?;
        round += 1;
        eprintln!(
            "compiled, round {round}: {} errors, {} unviable, {} fixed",
            errors.len(),
            left.unviable.len(),
            left.fixed.len()
        );
        if errors.is_empty() {
            return Ok((programs, left));
        }
        let before = left.unviable.len() + left.fixed.len();
        for error in &errors {
            blame(error, &woven, &mut left);
        }
        if left.unviable.len() + left.fixed.len() == before {
            return Err(format!(
                "the compiler refuses the tree for no mutant:\n{}",
                errors[0]["rendered"].as_str().unwrap_or_default()
            ));
        }
    }
}

/// The files with the crates' roots, which get the function that all mutants ask, and their texts.
fn crate_roots(
    root: &Path,
    files: &BTreeMap<&str, (String, Vec<&Mutant>)>,
) -> Result<BTreeMap<PathBuf, String>, String> {
    let mut roots = BTreeMap::new();
    for file in files.keys() {
        let Some(folder) = Path::new(file).ancestors().find(|folder| folder.ends_with("src"))
        else {
            continue;
        };
        for path in ["lib.rs", "main.rs"].map(|name| folder.join(name)) {
            if root.join(&path).exists() && !roots.contains_key(&path) {
                let text = fs::read_to_string(root.join(&path))
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                roots.insert(path, text);
            }
        }
    }
    Ok(roots)
}

fn weave_all<'m>(
    tree: &Path,
    files: &BTreeMap<&'m str, (String, Vec<&Mutant>)>,
    roots: &BTreeMap<PathBuf, String>,
    count: usize,
    left: &mut Left,
) -> Result<HashMap<&'m str, Woven>, String> {
    let mut all = HashMap::new();
    for (file, (source, mutants)) in files {
        let wanted: Vec<_> = mutants
            .iter()
            .copied()
            .filter(|mutant| {
                !left.unviable.contains(&mutant.id) && !left.fixed.contains(&mutant.id)
            })
            .collect();
        let woven = weave::weave(source, &wanted).map_err(|error| format!("{file}: {error}"))?;
        left.fixed.extend(
            wanted.iter().map(|mutant| mutant.id).filter(|id| woven.ids.binary_search(id).is_err()),
        );
        all.insert(*file, woven);
    }
    let switch = include_str!("switch.txt").replace("@COUNT@", &(count + 1).to_string());
    for (path, plain) in roots {
        let text =
            all.get(path.to_str().expect("paths are UTF-8")).map_or(plain, |woven| &woven.text);
        write(&tree.join(path), format!("{text}{switch}").as_bytes())?;
    }
    for (file, woven) in &all {
        if !roots.contains_key(Path::new(file)) {
            write(&tree.join(file), woven.text.as_bytes())?;
        }
    }
    Ok(all)
}

/// The test programs, or the compiler's errors.
fn compile(tree: &Path, tests: &[String]) -> Result<(Vec<Program>, Vec<Value>), String> {
    let mut command = Command::new("cargo");
    command.current_dir(tree).args([
        "test",
        "--no-run",
        "--workspace",
        "--lib",
        "--bins",
        "--no-fail-fast",
        "--message-format=json",
    ]);
    command.args(tests.iter().map(|test| format!("--test={test}")));
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo: {error}"))?;
    let (mut programs, mut errors) = (Vec::new(), Vec::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        if message["reason"] == "compiler-message" && message["message"]["level"] == "error" {
            // The last one only counts the others.
            let error = message["message"].clone();
            if error["spans"].as_array().is_some_and(|spans| !spans.is_empty()) {
                errors.push(error);
            }
        }
        if let (Some(path), true) =
            (message["executable"].as_str(), message["profile"]["test"] == true)
        {
            let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
            let folder = manifest.parent().unwrap_or(tree).to_owned();
            let name = format!(
                "{} {}",
                folder.file_name().unwrap_or_default().to_string_lossy(),
                message["target"]["name"].as_str().unwrap_or_default()
            );
            programs.push(Program { name, path: path.into(), folder });
        }
    }
    if errors.is_empty() && !output.status.success() {
        return Err("cargo test --no-run failed without an error in a source".to_owned());
    }
    Ok((programs, errors))
}

/// Takes out the mutants that an error is due to: those of the smallest part of the text that it lies in.
fn blame(error: &Value, woven: &HashMap<&str, Woven>, left: &mut Left) {
    let spans = error["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
    let children = error["children"].as_array().map(Vec::as_slice).unwrap_or_default();
    let noted = children.iter().filter_map(|child| child["spans"].as_array()).flatten();
    let primary = spans.iter().filter(|span| span["is_primary"] == true);
    let secondary = spans.iter().filter(|span| span["is_primary"] != true);
    for span in primary.chain(secondary).chain(noted) {
        let (Some(file), Some(start), Some(end)) =
            (span["file_name"].as_str(), span["byte_start"].as_u64(), span["byte_end"].as_u64())
        else {
            continue;
        };
        let Some(woven) = woven.get(file) else { continue };
        let around = woven
            .regions
            .iter()
            .filter(|region| region.range.start as u64 <= start && end <= region.range.end as u64);
        if let Some(region) = around.min_by_key(|region| region.range.len()) {
            let refused = region.own && span["is_primary"] == true;
            if refused { &mut left.unviable } else { &mut left.fixed }.extend(&region.ids);
            return;
        }
    }
    // Somewhere else in a file: what is nearest.
    for span in spans {
        let Some(woven) = span["file_name"].as_str().and_then(|file| woven.get(file)) else {
            continue;
        };
        let at = span["byte_start"].as_u64().unwrap_or_default();
        let far = |region: &&Region| {
            (region.range.start as u64).abs_diff(at).min((region.range.end as u64).abs_diff(at))
        };
        let there = woven
            .regions
            .iter()
            .filter(|region| region.ids.iter().any(|id| !left.fixed.contains(id)));
        if let Some(region) = there.min_by_key(far) {
            left.fixed.extend(&region.ids);
            return;
        }
    }
}
