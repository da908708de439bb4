//! What a reader of findings needs to know of the machine.

use serde::{Deserialize, Serialize};
use std::fs;

/// A machine: its system and its processor, no names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The distribution, such as `Debian GNU/Linux 12 (bookworm)`.
    pub system: Option<String>,
    /// The version of Linux.
    pub kernel: Option<String>,
    /// The processor's instruction set, such as `x86_64`.
    pub architecture: Option<String>,
    /// The processor.
    pub cpu: Option<String>,
    /// The processors that this process may use.
    pub processors: Option<usize>,
    /// The memory, in bytes.
    pub memory_bytes: Option<u64>,
}

impl Machine {
    /// The machine that this process runs on. What cannot be read is `None`.
    pub fn here() -> Self {
        let uname = rustix::system::uname();
        let text = |text: &std::ffi::CStr| known(&text.to_string_lossy());
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let system = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            system: system.and_then(|name| known(name.trim_matches('"'))),
            kernel: text(uname.release()),
            architecture: text(uname.machine()),
            cpu: field(&cpus, "model name"),
            processors: std::thread::available_parallelism().ok().map(usize::from),
            memory_bytes: field(&memory, "MemTotal").and_then(|value| bytes(&value)),
        }
    }

    /// All texts.
    pub(crate) fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let Self { system, kernel, architecture, cpu, .. } = self;
        [system, kernel, architecture, cpu].into_iter().flatten()
    }
}

fn known(text: &str) -> Option<String> {
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The value of a line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    known(line.split_once(':')?.1)
}

/// The bytes of a size that `/proc/meminfo` gives in kB, which are KiB.
fn bytes(text: &str) -> Option<u64> {
    text.strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_are_read() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t:\n";
        assert_eq!(field(text, "model name").as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!([field(text, "flags"), field(text, "Model")], [None, None]);
        assert_eq!(bytes("24684100 kB"), Some(24_684_100 << 10));
        assert_eq!([bytes("24684100"), bytes("-1 kB")], [None; 2]);
        assert_eq!(bytes("99999999999999999999 kB"), None);
    }

    #[test]
    fn this_machine_is_known() {
        let here = Machine::here();
        assert!(here.kernel.is_some() && here.processors.is_some_and(|n| n > 0), "{here:?}");
        assert!(here.memory_bytes.is_some_and(|bytes| bytes > 1 << 24), "{here:?}");
    }
}
