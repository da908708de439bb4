//! The answer of a command, and how it reaches standard output.

use clap::error::ErrorKind;
use serde_json::{Value, json};
use std::{
    fmt,
    fs::File,
    io::{self, Write},
};

/// The schema version of all JSON objects.
const SCHEMA: u32 = 2;

/// An answer in both forms. One place decides which form is printed.
pub struct Answer {
    /// A JSON object; the schema is added when it is printed.
    pub json: Value,
    /// Text for people, in whole lines.
    pub text: String,
}

/// Why the command failed, as text for the user.
#[derive(Debug)]
pub struct Failure(String);

pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Reports an impossible option and exits with status 2, as clap does.
pub fn wrong_usage(why: &str) -> ! {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{why}\n")).exit()
}

/// Makes text of any origin safe for a terminal. Line breaks and tabs stay.
pub fn shown(text: &str) -> String {
    let line = |line: &str| line.split('\t').map(onebuf::printable).collect::<Vec<_>>().join("\t");
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Prints a warning; the command continues.
pub fn warn(text: impl fmt::Display) {
    to_stderr(&format!("onebuf: warning: {}", shown(&text.to_string())));
}

/// Prints a message; the command continues.
pub fn say(text: impl fmt::Display) {
    to_stderr(&format!("onebuf: {}", shown(&text.to_string())));
}

/// Prints a line to standard error, at once: several ranks may share it. A closed or full standard error is ignored, where `eprintln!`
/// would panic.
fn to_stderr(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Reports something that was skipped, in the format that tests and `./dev` use too.
pub fn skip(what: &str, why: &str) {
    to_stderr(&format!("skip: {what}: {why}"));
}

/// Standard output: lines for people, or one JSON object.
pub enum Output {
    Text,
    Json(File),
}

impl Output {
    /// Drivers may print to standard output. With JSON it is kept for the answer alone, and what drivers print goes to
    /// standard error.
    pub fn open(json: bool) -> Result<Self> {
        if !json {
            return Ok(Output::Text);
        }
        let kept = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
        rustix::stdio::dup2_stdout(io::stderr())?;
        Ok(Output::Json(kept.into()))
    }

    /// Prints lines for people at once, before work that may take long or fail.
    pub fn say(&self, text: &str) -> Result<()> {
        match self {
            Output::Text => unless_gone(io::stdout().write_all(text.as_bytes())),
            Output::Json(_) => Ok(()),
        }
    }

    /// Prints a progress line: to standard output for people, to standard error if standard output is for one JSON
    /// object.
    pub fn tell(&self, line: &str) -> Result<()> {
        if let Output::Json(_) = self {
            to_stderr(&format!("onebuf: {line}"));
        }
        self.say(&format!("{line}\n"))
    }

    pub fn give(self, Answer { mut json, text }: Answer) -> Result<()> {
        match self {
            Output::Text => self.say(&text),
            Output::Json(mut stdout) => {
                json["schema"] = json!(SCHEMA);
                unless_gone(writeln!(stdout, "{json:#}"))
            }
        }
    }
}

/// A reader that closes the pipe early (`onebuf devices | head -1`) is no failure.
fn unless_gone(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
