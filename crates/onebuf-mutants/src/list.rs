//! The mutants that cargo-mutants finds, and which of them a run takes.

use serde_json::Value;
use std::{fs, path::Path, process::Command};

/// What a mutant changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

/// One change of one source file.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Its number in this run, from 1.
    pub id: usize,
    /// File, line, column and change, as cargo-mutants names it.
    pub name: String,
    pub package: String,
    pub file: String,
    pub genre: Genre,
    /// Where the text begins that is replaced, both from 1, the column in characters.
    pub line: usize,
    pub column: usize,
    pub replacement: String,
    /// In one of the files that are taken whole.
    pub pure: bool,
}

/// What is mutated: files taken whole, and files never taken. Of all others there is a sample.
pub struct Choice {
    pub whole: Vec<String>,
    pub never: Vec<String>,
}

impl Choice {
    /// Reads `examine_globs` and `exclude_globs` of cargo-mutants' settings.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { whole: globs(&text, "examine_globs")?, never: globs(&text, "exclude_globs")? })
    }

    /// `Some(true)`: taken whole. `Some(false)`: may be in a sample.
    pub fn of(&self, file: &str) -> Option<bool> {
        let any = |globs: &[String]| globs.iter().any(|glob| matches(glob, file));
        (!any(&self.never)).then(|| any(&self.whole))
    }
}

/// The strings of a list in TOML.
fn globs(text: &str, key: &str) -> Result<Vec<String>, String> {
    let start = text
        .lines()
        .position(|line| line.starts_with(key))
        .ok_or(format!("no {key} in the settings"))?;
    let lines = text.lines().skip(start + 1).take_while(|line| !line.starts_with(']'));
    Ok(lines.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect())
}

/// Whether a path matches a pattern: `*` is any part of a name, `**` any number of folders.
pub fn matches(glob: &str, path: &str) -> bool {
    fn names(glob: &[&str], path: &[&str]) -> bool {
        match (glob.split_first(), path.split_first()) {
            (None, None) => true,
            (Some((&"**", rest)), _) => (0..=path.len()).any(|skip| names(rest, &path[skip..])),
            (Some((first, glob)), Some((name, path))) => {
                part(first.as_bytes(), name.as_bytes()) && names(glob, path)
            }
            _ => false,
        }
    }
    fn part(glob: &[u8], name: &[u8]) -> bool {
        match (glob.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => (0..=name.len()).any(|skip| part(rest, &name[skip..])),
            (Some((first, glob)), Some((byte, name))) => first == byte && part(glob, name),
            _ => false,
        }
    }
    names(&glob.split('/').collect::<Vec<_>>(), &path.split('/').collect::<Vec<_>>())
}

/// All mutants that cargo-mutants finds in the workspace.
pub fn all(root: &Path) -> Result<Value, String> {
    let mut command = Command::new("cargo");
    command.args(["mutants", "--no-config", "--list", "--json", "--dir"]).arg(root);
    let output = command.output().map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo mutants --list: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo mutants --list: {error}"))
}

/// Takes the files of `choice` whole, and of the others a sample that depends on the seed alone.
pub fn choose(
    all: &Value,
    choice: &Choice,
    sample: usize,
    seed: u64,
) -> Result<Vec<Mutant>, String> {
    let all = all.as_array().ok_or("cargo mutants --list: no array")?;
    let (mut taken, mut others) = (Vec::new(), Vec::new());
    for value in all {
        let mutant = parse(value).ok_or_else(|| format!("unknown shape of a mutant: {value}"))?;
        match choice.of(&mutant.file) {
            Some(true) => taken.push(Mutant { pure: true, ..mutant }),
            Some(false) => others.push((hash(seed, &without_place(&mutant)), mutant)),
            None => {}
        }
    }
    others.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.name.cmp(&b.1.name)));
    taken.extend(others.into_iter().take(sample).map(|(_, mutant)| mutant));
    for (at, mutant) in taken.iter_mut().enumerate() {
        mutant.id = at + 1;
    }
    Ok(taken)
}

/// The name without line and column, so that a sample survives edits elsewhere in the file.
fn without_place(mutant: &Mutant) -> String {
    mutant.name.replacen(&format!(":{}:{}:", mutant.line, mutant.column), ":", 1)
}

/// FNV-1a, begun with a seed.
fn hash(seed: u64, text: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    text.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn parse(value: &Value) -> Option<Mutant> {
    let string = |key: &str| value[key].as_str().map(str::to_owned);
    let number = |key: &str| Some(value["span"]["start"][key].as_u64()? as usize);
    let genre = match value["genre"].as_str()? {
        "FnValue" => Genre::FnValue,
        "BinaryOperator" => Genre::BinaryOperator,
        "UnaryOperator" => Genre::UnaryOperator,
        "MatchArm" => Genre::MatchArm,
        "MatchArmGuard" => Genre::MatchArmGuard,
        "StructField" => Genre::StructField,
        _ => return None,
    };
    Some(Mutant {
        id: 0,
        name: string("name")?,
        package: string("package")?,
        file: string("file")?,
        genre,
        line: number("line")?,
        column: number("column")?,
        replacement: string("replacement")?,
        pure: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patterns_match_names_and_folders() {
        assert!(matches("crates/onebuf-graft/src/**", "crates/onebuf-graft/src/spirv/types.rs"));
        assert!(matches("**/tests.rs", "crates/a/src/tests.rs"));
        assert!(matches("**/*_tests.rs", "crates/a/src/b/ipc_tests.rs"));
        assert!(matches("crates/a/src/plan.rs", "crates/a/src/plan.rs"));
        assert!(!matches("crates/a/src/plan.rs", "crates/a/src/plan/explain.rs"));
        assert!(!matches("**/tests.rs", "crates/a/src/contests.rs"));
        assert!(!matches("crates/*/src/a.rs", "crates/b/c/src/a.rs"));
    }

    fn mutant(file: &str, line: u64, change: &str) -> Value {
        json!({ "name": format!("{file}:{line}:5: {change}"), "package": "p", "file": file, "genre": "FnValue", "replacement": "()",
            "span": { "start": { "line": line, "column": 5 }, "end": { "line": line, "column": 9 } } })
    }

    #[test]
    fn a_sample_depends_on_the_seed_and_not_on_lines() {
        let choice = Choice { whole: vec!["pure.rs".into()], never: vec!["tests.rs".into()] };
        let list = |shift: u64| {
            let mut all = vec![mutant("pure.rs", 3, "x"), mutant("tests.rs", 4, "y")];
            all.extend((0..100).map(|n| mutant("other.rs", n + shift, &format!("change {n}"))));
            Value::Array(all)
        };
        let names = |shift, seed| -> Vec<String> {
            let taken = choose(&list(shift), &choice, 10, seed).unwrap();
            assert_eq!(taken.len(), 11);
            assert!(
                taken[0].pure
                    && taken[1..].iter().all(|mutant| !mutant.pure && mutant.file == "other.rs")
            );
            taken.iter().map(without_place).collect()
        };
        assert_eq!(names(1, 7), names(50, 7));
        assert_ne!(names(1, 7), names(1, 8));
    }

    #[test]
    fn settings_are_those_of_cargo_mutants() {
        let text = "# words\nexamine_globs = [\n    \"a/**\", # why\n    \"b.rs\",\n]\nexclude_globs = [\n    \"c\",\n]\n";
        assert_eq!(globs(text, "examine_globs").unwrap(), ["a/**", "b.rs"]);
        assert_eq!(globs(text, "exclude_globs").unwrap(), ["c"]);
        assert!(globs(text, "other").is_err());
    }
}
