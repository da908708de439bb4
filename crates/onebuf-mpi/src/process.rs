//! What the kernel knows of processes on this machine.

use std::{fs, os::unix::fs::MetadataExt};

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// It runs, or waits for something.
    Running,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It has ended.
    Gone,
    /// It is on another machine, or in another container.
    Unknown,
}

impl std::fmt::Display for PeerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PeerState::Running => "running",
            PeerState::Stopped => "stopped",
            PeerState::Gone => "gone",
            PeerState::Unknown => "on another machine",
        })
    }
}

/// The state and the start time of a process, from the text of its `/proc/…/stat`.
fn parse(stat: &str) -> Option<(char, u64)> {
    // The name is in parentheses, and may contain some.
    let rest = stat.rsplit_once(") ")?.1;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The 22nd field of the line; the state is the third.
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// The state of a process of this machine that began at that time.
pub(crate) fn state(pid: u32, began: u64) -> PeerState {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return PeerState::Gone };
    match parse(&stat) {
        // Another process has got the number.
        Some((_, other)) if other != began => PeerState::Gone,
        Some(('Z' | 'X' | 'x', _)) => PeerState::Gone,
        Some(('T' | 't', _)) => PeerState::Stopped,
        Some(_) => PeerState::Running,
        None => PeerState::Unknown,
    }
}

/// When this process began, in the kernel's ticks.
pub(crate) fn began() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    parse(&stat).map_or(0, |(_, began)| began)
}

/// A number that two processes share if each can look for the other's number in `/proc`.
pub(crate) fn machine() -> u64 {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let numbers = fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino());
    crate::checksum::checksum(format!("{} {numbers}", boot.trim()).as_bytes())
}

/// The name of this machine.
pub(crate) fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_line_of_a_process_is_read_whatever_its_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(parse(&format!("12 (a) b (c) {rest}")), Some(('S', 777)));
        assert_eq!(parse("12 (a"), None);
        assert_eq!(parse("12 (a) S 1"), None);
        let own = state(std::process::id(), began());
        assert_eq!(own, PeerState::Running);
        assert_eq!(
            state(std::process::id(), began() + 1),
            PeerState::Gone,
            "another one of that number"
        );
    }

    #[test]
    fn a_stopped_process_and_one_that_has_ended_are_told_apart() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let stat = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let began = parse(&stat()).unwrap().1;
        let signal = |name: &str| {
            Command::new("kill").args([name, &child.id().to_string()]).status().unwrap()
        };
        let wait_for = |state: PeerState| {
            while self::state(child.id(), began) != state {
                std::thread::yield_now();
            }
        };
        wait_for(PeerState::Running);
        signal("-STOP");
        wait_for(PeerState::Stopped);
        signal("-KILL");
        wait_for(PeerState::Gone); // its parent has not waited for it yet
        child.wait().unwrap();
        assert_eq!(state(child.id(), began), PeerState::Gone);
    }
}
