//! The command line.

use std::time::Duration;

pub const USAGE: &str = "\
usage: ./onebuf-conformance [--devices A,B,…] [--quick | --soak [N]] [--jobs N] [--json] [--html FILE]

Runs the whole conformance proof on the drivers of this machine. Each chapter runs in a process of its own: a driver that
crashes or hangs loses that chapter only.

  --devices A,B,…   only these devices, by id (opencl:0), API (opencl) or a part of the name; pairs among them, or with the one named
  --quick           a few minutes: fewer hand-overs, no large buffers, no long chapters
  --soak [N]        N hand-overs for each pair and sync method (default 100000; otherwise 2000)
  --jobs N          run up to N processes side by side (default 1); the doctor and large buffers always have the machine alone
  --json            print one JSON object to standard output
  --html FILE       also write the report as a page
  --help            print this

ONEBUF_CONFORMANCE_LIMIT_S is the time in seconds after which a chapter's process counts as hung (default 900; longer with --soak).
Writes the report to onebuf-conformance-report.txt in the current folder. It names no user, host or path, and can be attached
to a bug report. Exit status: 0 if nothing failed, 1 if something failed, 2 for wrong usage.";

/// Hand-overs for each pair and sync method.
const HAND_OVERS: u32 = 2000;
const QUICK_HAND_OVERS: u32 = 200;
const SOAK_HAND_OVERS: u32 = 100_000;

/// The variable with the seconds after which a process hangs.
pub const LIMIT_VARIABLE: &str = "ONEBUF_CONFORMANCE_LIMIT_S";
/// The longest process takes minutes on two processors.
const LIMIT: Duration = Duration::from_secs(900);

/// Reads the time limit of one process.
pub fn limit(value: Option<String>) -> Result<Duration, String> {
    let Some(text) = value.filter(|text| !text.is_empty()) else { return Ok(LIMIT) };
    let seconds = text.parse::<u32>().ok().filter(|seconds| *seconds > 0);
    let seconds = seconds.ok_or_else(|| format!("{LIMIT_VARIABLE} takes seconds, not `{text}`"))?;
    Ok(Duration::from_secs(seconds.into()))
}

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Quick,
    Default,
    Soak(u32),
}

impl Length {
    pub fn hand_overs(self) -> u32 {
        match self {
            Length::Quick => QUICK_HAND_OVERS,
            Length::Default => HAND_OVERS,
            Length::Soak(rounds) => rounds,
        }
    }
}

/// What the program is asked to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    Help,
    /// Prints the files that a bundle must contain, for `./dev bundle`.
    Contents,
    Run(Options),
}

/// The parsed command line of a run.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// Names of devices; all if empty.
    pub devices: Vec<String>,
    pub length: Length,
    /// Processes side by side.
    pub jobs: usize,
    pub json: bool,
    pub html: Option<String>,
}

impl Request {
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut words = words.into_iter().peekable();
        let (mut quick, mut soak) = (false, None);
        let mut options = Options {
            devices: Vec::new(),
            length: Length::Default,
            jobs: 1,
            json: false,
            html: None,
        };
        while let Some(word) = words.next() {
            let (name, inline) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let mut value = || {
                let next = inline.clone().or_else(|| words.next());
                next.filter(|text| !text.is_empty()).ok_or(format!("{name} needs a value"))
            };
            match name {
                "--help" | "-h" => return Ok(Request::Help),
                "--contents" => return Ok(Request::Contents),
                "--devices" => options.devices.extend(listed(&value()?)?),
                "--html" => options.html = Some(value()?),
                "--jobs" => options.jobs = number(name, &value()?)? as usize,
                "--json" => options.json = true,
                "--quick" => quick = true,
                "--soak" => {
                    let is_number =
                        |text: &String| text.starts_with(|first: char| first.is_ascii_digit());
                    let given = inline.or_else(|| words.next_if(is_number));
                    soak = Some(given.map_or(Ok(SOAK_HAND_OVERS), |text| number(name, &text))?);
                }
                _ => return Err(format!("no such option: {word}")),
            }
        }
        options.length = match (quick, soak) {
            (true, Some(_)) => return Err("--quick and --soak exclude each other".into()),
            (true, None) => Length::Quick,
            (false, Some(rounds)) => Length::Soak(rounds),
            (false, None) => Length::Default,
        };
        Ok(Request::Run(options))
    }
}

fn listed(text: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    match names.iter().any(String::is_empty) {
        true => Err(format!("--devices {text}: a name is empty")),
        false => Ok(names),
    }
}

fn number(option: &str, text: &str) -> Result<u32, String> {
    let number = text.parse::<u32>().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{option} takes a number from 1 to {}, not `{text}`", u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        Request::parse(line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned))
    }

    fn run(line: &str) -> Options {
        match parsed(line) {
            Ok(Request::Run(options)) => options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn options_are_read_in_both_forms() {
        let options = run("--devices host,opencl:0 --devices=gl --json --html=a.html");
        assert_eq!(options.devices, ["host", "opencl:0", "gl"]);
        assert_eq!((options.json, options.html.as_deref()), (true, Some("a.html")));
        assert_eq!(run("").length.hand_overs(), 2000);
        assert_eq!(run("--quick").length, Length::Quick);
        assert_eq!(run("--soak --json").length.hand_overs(), 100_000);
        assert_eq!(run("--soak 7").length.hand_overs(), 7);
        assert_eq!(run("--soak=9").length.hand_overs(), 9);
        assert_eq!([run("").jobs, run("--jobs 4").jobs], [1, 4]);
        assert_eq!(parsed("--json --help").unwrap(), Request::Help);
        assert_eq!(limit(None), limit(Some(String::new())));
        assert_eq!(limit(Some("7".into())), Ok(Duration::from_secs(7)));
        assert!(limit(Some("-7".into())).unwrap_err().contains("`-7`"));
    }

    #[test]
    fn wrong_usage_is_named() {
        let wrong = [
            ("--devices", "--devices needs a value"),
            ("--devices a,,b", "a name is empty"),
            ("--soak 0", "`0`"),
            ("--soak 99999999999", "`99999999999`"),
            ("--soak=x", "`x`"),
            ("--quick --soak", "exclude each other"),
            ("--html", "--html needs a value"),
            ("--jobs 0", "--jobs takes a number from 1"),
            ("--slow", "--slow"),
            ("chapter", "chapter"),
        ];
        for (line, part) in wrong {
            let why = parsed(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
    }
}
