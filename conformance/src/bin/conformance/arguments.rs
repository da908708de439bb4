//! The command line.

use onebuf_conformance::{LARGE_SIZES, Options, Scope};
use std::path::PathBuf;

pub const USAGE: &str = "\
usage: conformance [--list] [--skips] [--device NAME]... [FILTER]...
  --list             print the names of the cases
  --skips            print each check that did not run
  --device NAME      only checks in which this device takes part
  --exactly          only checks of exactly the devices named
  --many             only checks of three or more devices
  --apis A,B         load the drivers of these APIs alone
  --shaders          also OpenGL and Vulkan: only the group `pairs` has kernels for them
  --fakes            add devices without a driver
  --cache FOLDER     use the verdicts there
  --lines            print each check as a line of JSON
  --devices          print the devices as JSON
  --hand-overs N     hand buffers over N times by each sync method
  --large            buffers of gigabytes
  --large-bytes N    buffers of N bytes
  --stubs FOLDER     build the stub drivers there, with $CC";

/// What the program does.
#[derive(Debug, PartialEq, Eq)]
pub enum Work {
    Suite,
    Help,
    List,
    Devices,
    Stubs(PathBuf),
    HandOvers(u32),
    Large(Vec<u64>),
}

/// The parsed command line.
#[derive(Debug)]
pub struct Arguments {
    pub work: Work,
    pub options: Options,
    pub skips: bool,
    pub lines: bool,
    pub fakes: bool,
    pub shaders: bool,
    pub apis: Option<Vec<String>>,
    pub cache: Option<PathBuf>,
}

impl Arguments {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let options = Options { strict: true, ..Options::default() };
        let (skips, lines, fakes, shaders) = Default::default();
        let (work, apis, cache) = (Work::Suite, None, None);
        let mut all = Self { work, options, skips, lines, fakes, shaders, apis, cache };
        while let Some(word) = words.next() {
            if !word.starts_with('-') {
                all.options.filter.push(word);
                continue;
            }
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--help" | "-h" => all.work = Work::Help,
                "--list" => all.work = Work::List,
                "--skips" => all.skips = true,
                "--lines" => all.lines = true,
                "--fakes" => all.fakes = true,
                "--shaders" => all.shaders = true,
                "--exactly" => all.options.scope = Scope::Exactly,
                "--many" => all.options.scope = Scope::Many,
                "--devices" => all.work = Work::Devices,
                "--large" => all.work = Work::Large(LARGE_SIZES.into()),
                "--large-bytes" => all.work = Work::Large(vec![number(&word, &value()?)?]),
                "--hand-overs" => all.work = Work::HandOvers(number(&word, &value()?)?),
                "--stubs" => all.work = Work::Stubs(value()?.into()),
                "--device" => all.options.devices.push(value()?),
                "--apis" => all.apis = Some(value()?.split(',').map(str::to_owned).collect()),
                "--cache" => all.cache = Some(value()?.into()),
                _ => return Err(format!("no such option: {word}")),
            }
        }
        Ok(all)
    }
}

fn number<N: std::str::FromStr>(option: &str, text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{option} takes a number, not `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, String> {
        Arguments::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read() {
        let all = parsed("--exactly --device a --device b --apis host,cuda --lines pairs::");
        let all = all.unwrap();
        assert_eq!((all.options.scope, all.work, all.lines), (Scope::Exactly, Work::Suite, true));
        assert_eq!((all.options.devices.len(), &*all.options.filter[0]), (2, "pairs::"));
        assert_eq!(all.apis.unwrap(), ["host", "cuda"]);
        assert_eq!(parsed("--hand-overs 20").unwrap().work, Work::HandOvers(20));
    }

    #[test]
    fn wrong_options_are_named() {
        let failures = [("--device", "needs a value"), ("--hand-overs x", "`x`"), ("--no", "--no")];
        for (line, part) in failures {
            let why = parsed(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
    }
}
