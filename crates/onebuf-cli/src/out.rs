//! What a command answers, and how it gets to standard output.

use serde_json::{Value, json};
use std::{
    fmt,
    fs::File,
    io::{self, Write},
};

/// The version of every JSON object's shape.
const SCHEMA: u32 = 2;

/// An answer in both forms; which is printed is decided in one place.
pub struct Answer {
    /// An object; the schema is added.
    pub json: Value,
    /// For people, whole lines.
    pub text: String,
}

/// Why it could not be done, in words for the user.
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

/// Text of any origin as a terminal can show it. Lines and tabs stay.
pub fn shown(text: &str) -> String {
    let line = |line: &str| line.split('\t').map(onebuf::printable).collect::<Vec<_>>().join("\t");
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Something that the user should know, though the command goes on.
pub fn warn(text: impl fmt::Display) {
    to_stderr(&format!("onebuf: warning: {}", shown(&text.to_string())));
}

/// A line on standard error. One that is closed or full is no reason to stop: `eprintln!` would panic.
fn to_stderr(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Something that was left out, in the form that tests and `./dev` use too.
pub fn skip(what: &str, why: &str) {
    to_stderr(&format!("skip: {what}: {why}"));
}

/// Standard output: lines for people, or one JSON object.
pub enum Output {
    Text,
    Json(File),
}

impl Output {
    /// Drivers print to standard output as they please. Where a program reads ours, it is kept for the
    /// answer alone, and what drivers print goes to standard error.
    pub fn open(json: bool) -> Result<Self> {
        if !json {
            return Ok(Output::Text);
        }
        let kept = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
        rustix::stdio::dup2_stdout(io::stderr())?;
        Ok(Output::Json(kept.into()))
    }

    /// Prints lines for people at once, before what may take long or fail.
    pub fn say(&self, text: &str) -> Result<()> {
        match self {
            Output::Text => unless_gone(io::stdout().write_all(text.as_bytes())),
            Output::Json(_) => Ok(()),
        }
    }

    /// A line on the way: on standard output for people, on standard error where the former is for one JSON object.
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

/// A reader that has seen enough (`onebuf devices | head -1`) is no failure.
fn unless_gone(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
