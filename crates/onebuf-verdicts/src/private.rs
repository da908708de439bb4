//! Removes the names of users, hosts and paths, and identifiers of hardware, from texts that go into a report.

use crate::identifiers::without_identifiers;
use std::{env, fs};

/// Names that must not be in a report, and what stands for them.
///
/// ```
/// use onebuf_verdicts::Private;
///
/// let private = Private::new(["ada".to_owned()], ["engine.example.org".to_owned()]);
/// let text = "ada cannot open /home/ada/x on engine, GPU 0000:01:00.0";
/// assert_eq!(private.scrub(text), "<user> cannot open <path> on <host>, GPU <id>");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Private {
    names: Vec<(String, &'static str)>,
}

impl Private {
    /// The names of this user and this machine.
    pub fn of_this_machine() -> Self {
        let variable = |name: &str| env::var(name).ok();
        let users = ["USER", "LOGNAME", "SUDO_USER"].into_iter().filter_map(variable);
        let home = variable("HOME").map(|home| last_part(&home).to_owned());
        let users = users.chain(home).chain(owner());
        let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
        Self::new(users, host.into_iter().chain(variable("HOSTNAME")))
    }

    /// The names of these users and hosts. A host's name counts with its domain and without.
    pub fn new(
        users: impl IntoIterator<Item = String>,
        hosts: impl IntoIterator<Item = String>,
    ) -> Self {
        let mut names = Vec::new();
        for host in hosts {
            let whole = host.trim().to_owned();
            let short = whole.split('.').next().unwrap_or_default().to_owned();
            names.extend([(whole, "<host>"), (short, "<host>")]);
        }
        names.extend(users.into_iter().map(|user| (user.trim().to_owned(), "<user>")));
        // These are words of the report itself, and tell nothing.
        names.retain(|(name, _)| !["", "host", "localhost"].contains(&name.as_str()));
        Self { names }
    }

    /// Returns the text without them, without absolute paths, and without UUIDs and addresses of hardware. Of the path to a
    /// shared library the file's name stays.
    pub fn scrub(&self, text: &str) -> String {
        let text = without_identifiers(&without_paths(&text.replace("file://", "")));
        self.names.iter().fold(text, |text, (name, mark)| without_word(&text, name, mark))
    }
}

/// The name of the user that owns this process, where the system's own list has it.
fn owner() -> Option<String> {
    let id = rustix::process::getuid().as_raw().to_string();
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let mut fields = users.lines().map(|line| line.split(':'));
    fields.find_map(|mut user| {
        let name = user.next()?;
        (user.nth(1)? == id).then(|| name.to_owned())
    })
}

fn last_part(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// Replaces absolute paths. Of a shared library the file's name stays, because it names the driver.
fn without_paths(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = next_path(rest, clean.chars().next_back()) {
        clean.push_str(&rest[..at]);
        let end = rest[at..].find(ends_path).map_or(rest.len(), |length| at + length);
        let path = &rest[at..end];
        let (path, tail) = path.split_at(path.trim_end_matches(['.', ',', ':', ';']).len());
        let file = path.rsplit('/').next().unwrap_or_default();
        match file.contains(".so") {
            true => clean.push_str(&format!("…/{file}")),
            false => clean.push_str("<path>"),
        }
        clean.push_str(tail);
        rest = &rest[end..];
    }
    clean + rest
}

/// Where an absolute path begins: at a slash that follows no word and precedes one.
fn next_path(text: &str, before: Option<char>) -> Option<usize> {
    let begins = |(at, _): &(usize, &str)| {
        let before = text[..*at].chars().next_back().or(before);
        let after = text[at + 1..].chars().next();
        let in_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '/' | '.' | '>' | '…');
        !before.is_some_and(in_word)
            && after.is_some_and(|c| c.is_alphanumeric() || "_.~-".contains(c))
    };
    text.match_indices('/').find(begins).map(|(at, _)| at)
}

fn ends_path(c: char) -> bool {
    c.is_whitespace() || "\"'`<>()[]{}|".contains(c)
}

/// Replaces a word; parts of other words stay.
fn without_word(text: &str, word: &str, mark: &str) -> String {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut clean = String::with_capacity(text.len());
    let mut from = 0;
    for (at, _) in text.match_indices(word) {
        let end = at + word.len();
        let apart = !text[..at].chars().next_back().is_some_and(in_word)
            && !text[end..].chars().next().is_some_and(in_word);
        if apart && at >= from {
            clean.push_str(&text[from..at]);
            clean.push_str(mark);
            from = end;
        }
    }
    clean + &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrubbed(text: &str) -> String {
        let users = ["ada".to_owned(), String::new()];
        Private::new(users, ["engine.example.org\n".to_owned(), "host".to_owned()]).scrub(text)
    }

    #[test]
    fn names_and_paths_are_removed() {
        let cases = [
            ("cannot open /home/ada/x.bin: no", "cannot open <path>: no"),
            ("tried /usr/lib/libcuda.so.1, none", "tried …/libcuda.so.1, none"),
            ("(\"/home/ada/secret\")", "(\"<path>\")"),
            ("at conformance/tests/fd.rs:12:5: left", "at conformance/tests/fd.rs:12:5: left"),
            ("user ada on engine, engine.example.org", "user <user> on <host>, <host>"),
            ("adapter ada_x", "adapter ada_x"),
            ("host -> opencl:0, 3 GB/s, n/a", "host -> opencl:0, 3 GB/s, n/a"),
            ("a=/a b=/b", "a=<path> b=<path>"),
            ("file:///home/ada/b", "<path>"),
            ("in ~/.cache/x", "in ~<path>"),
            ("chip 0000:01:00.0 of ada:", "chip <id> of <user>:"),
            ("/", "/"),
        ];
        for (text, clean) in cases {
            assert_eq!(scrubbed(text), clean, "{text}");
            assert_eq!(scrubbed(clean), clean, "nothing is left to remove");
        }
    }

    #[test]
    fn the_last_part_of_a_path_is_the_user() {
        let parts = ["/home/ada", "/home/ada/", "ada", "/", ""].map(last_part);
        assert_eq!(parts, ["ada", "ada", "ada", "", ""]);
    }
}
