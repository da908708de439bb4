//! The commands in the book exist, with their options, and its program that reads the JSON runs.

use crate::support::{Cli, Ran, skip};
use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages of a folder, and of those below it if it is `docs`.
fn pages(folder: &Path, deep: bool) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder of pages").flatten();
    let texts = entries.flat_map(|entry| match entry.path() {
        path if path.is_dir() && deep => pages(&path, deep),
        path if path.extension().is_some_and(|end| end == "md") => {
            vec![fs::read_to_string(path).expect("a page")]
        }
        _ => Vec::new(),
    });
    texts.collect()
}

/// The text of each block in a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let opening = format!("```{language}\n");
    page.split(&opening).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// What the commands of a shell pass to a program.
fn passed_to<'a>(program: &'a str, line: &'a str) -> impl Iterator<Item = String> + 'a {
    let code = line.split(" #").next().unwrap_or_default();
    code.split(['|', '&', ';']).filter_map(move |command| {
        let words: Vec<&str> = command.split_whitespace().collect();
        let at = words.iter().position(|word| *word == program)?;
        Some(words[at + 1..].join(" "))
    })
}

#[test]
fn commands_of_the_book_exist() {
    let texts = [pages(&root(), false), pages(&root().join("docs"), true)].concat();
    let lines = || texts.iter().flat_map(|page| blocks(page, "sh")).flat_map(str::lines);
    let cli = Cli::new();
    // Arguments are read in order, so that a wrong one is found before the question for help.
    let asked = |args: &str| cli.run(&format!("{args} --help"));
    asked("demo --no-such-option").failed(2, "--no-such-option");
    let ours: BTreeSet<String> = lines().flat_map(|line| passed_to("onebuf", line)).collect();
    assert!(ours.len() > 25, "{ours:?}");
    ours.iter().for_each(|args| drop(asked(args).ok()));

    let help: Ran =
        Command::new("bash").arg(root().join("dev")).output().expect("bash starts").into();
    let help = help.ok().stdout;
    let known: BTreeSet<&str> =
        help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    let named = lines().flat_map(|line| passed_to("./dev", line));
    let named: BTreeSet<String> =
        named.filter_map(|args| args.split(' ').next().map(str::to_owned)).collect();
    assert!(named.len() > 8, "{named:?}");
    for command in named {
        assert!(known.contains(command.as_str()), "`./dev {command}` is not in its help");
    }
}

#[test]
fn the_program_that_reads_both_versions_runs() {
    let page = fs::read_to_string(root().join("docs/migration-0.2.md")).expect("the page");
    let [program] = blocks(&page, "python")[..] else { panic!("one program in Python") };
    let program = format!("{program}\nprint(kind)");
    let old = tempfile::tempdir().expect("a folder");
    let stand_in = old.path().join("onebuf");
    fs::write(&stand_in, "#!/bin/sh\necho '{\"schema\":1,\"strategy\":\"host_pages\"}'\n")
        .expect("a file");
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).expect("rights");
    let now = Path::new(env!("CARGO_BIN_EXE_onebuf")).parent().expect("its folder");
    for folder in [old.path(), now] {
        let path = format!("{}:{}", folder.display(), env::var("PATH").unwrap_or_default());
        let run = Command::new("python3").args(["-c", &program]).env("PATH", path).output();
        let Ok(ran) = run else { return skip("python3: not installed") };
        assert_eq!(Ran::from(ran).ok().stdout, "host_pages\n", "{folder:?}");
    }
}
