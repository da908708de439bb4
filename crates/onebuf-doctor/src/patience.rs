//! How long to wait for a silent helper.
//!
//! A helper is silent because its driver hangs, or because the machine does not let it run. Only the first says anything
//! about the route, so the silence is counted in slices, and each slice is divided by its causes: a helper that gets a quarter of
//! a processor has four times as long. A slice counts with its nominal length: one in which this process itself was stopped is
//! no longer than the others.

use std::{collections::BTreeMap, ffi::OsString, fs, path::Path, time::Duration};

/// Why the doctor stopped waiting for a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// It could run, and wrote nothing.
    Hung,
    /// It was stopped (`SIGSTOP`, a debugger).
    Stopped,
    /// It was ready to run and got too little processor time.
    Starved,
}

/// A helper without processor time gets this many times the limit.
const STARVED_TIMES: u32 = 3;

#[derive(Debug)]
pub(super) struct Patience {
    pid: u32,
    limit: Duration,
    hung: Duration,
    held_up: HeldUp,
    threads: Threads,
}

/// How long a helper could not run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldUp {
    stopped: Duration,
    starved: Duration,
}

impl HeldUp {
    /// Whether a timeout inside the helper may not be the driver's fault. A stop is certain; starvation is estimated from
    /// samples, so it needs more.
    pub fn excuses(self, limit: Duration) -> bool {
        self.stopped >= limit / 8 || self.starved >= limit / 2
    }

    /// The maximum of both.
    pub fn or(self, other: Self) -> Self {
        let (stopped, starved) = (self.stopped.max(other.stopped), self.starved.max(other.starved));
        Self { stopped, starved }
    }
}

type Threads = BTreeMap<OsString, Times>;

/// A thread's times since its start. The kernel adds a wait for a processor when that wait ends.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    ran: Duration,
    waited: Duration,
    /// Whether it is running or runnable.
    is_ready: bool,
}

impl Patience {
    pub fn new(pid: u32, limit: Duration) -> Self {
        let held_up = HeldUp::default();
        Self { pid, limit, hung: Duration::ZERO, held_up, threads: threads(pid) }
    }

    /// How long to listen before calling [`Patience::count`].
    pub fn slice(&self) -> Duration {
        (self.limit / 20).clamp(Duration::from_millis(1), Duration::from_millis(250))
    }

    /// Restarts the limit, because the helper wrote something. Returns how long it could not run before.
    pub fn renew(&mut self) -> HeldUp {
        let held_up = self.held_up;
        *self = Self::new(self.pid, self.limit);
        held_up
    }

    /// Counts one slice of silence. Returns the cause if the silence has lasted too long.
    pub fn count(&mut self) -> Option<Silence> {
        let (slice, now) = (self.slice(), threads(self.pid));
        let before = std::mem::replace(&mut self.threads, now);
        let Self { limit, hung, held_up, .. } = self;
        if is_stopped(self.pid) {
            held_up.stopped += slice;
        } else {
            let starved = starved(&before, &self.threads, slice);
            held_up.starved += starved;
            *hung += slice - starved;
        }
        match () {
            () if *hung >= *limit => Some(Silence::Hung),
            () if held_up.stopped >= *limit => Some(Silence::Stopped),
            () if held_up.starved >= *limit * STARVED_TIMES => Some(Silence::Starved),
            () => None,
        }
    }
}

/// The part of a slice in which a thread waited for a processor: the longest of all threads. Short waits are none, because any
/// machine has them.
fn starved(before: &Threads, now: &Threads, slice: Duration) -> Duration {
    let waited = now.iter().map(|(thread, now)| {
        let before = before.get(thread).copied().unwrap_or_default();
        let ran = now.ran.saturating_sub(before.ran);
        let waited = now.waited.saturating_sub(before.waited);
        // An unfinished wait is not in the counters yet: the thread was runnable all the time and never ran.
        let is_waiting = before.is_ready && now.is_ready && ran.is_zero() && waited.is_zero();
        if is_waiting { slice } else { waited }
    });
    waited.max().filter(|waited| *waited >= slice / 8).unwrap_or_default().min(slice)
}

fn is_stopped(pid: u32) -> bool {
    matches!(state(Path::new(&format!("/proc/{pid}"))), Some('T' | 't'))
}

/// The state of a process or thread.
fn state(folder: &Path) -> Option<char> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The process name in parentheses may contain any characters.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// The threads of a process. Empty if the kernel has no such counters; then no silence is attributed to the machine's load.
fn threads(pid: u32) -> Threads {
    let Ok(all) = fs::read_dir(format!("/proc/{pid}/task")) else { return Threads::new() };
    let times = |folder: &Path| {
        let line = fs::read_to_string(folder.join("schedstat")).ok()?;
        let mut fields = line.split_whitespace().map(|field| field.parse().unwrap_or(0));
        let mut next = || Duration::from_nanos(fields.next().unwrap_or(0));
        Some(Times { ran: next(), waited: next(), is_ready: state(folder) == Some('R') })
    };
    all.filter_map(|thread| {
        let thread = thread.ok()?;
        Some((thread.file_name(), times(&thread.path())?))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        process::{Child, Command},
        thread,
        time::Instant,
    };

    const LIMIT: Duration = Duration::from_millis(400);

    /// A process that is killed with the test.
    struct Started(Child);

    impl Started {
        fn new(command: &str) -> Self {
            let words: Vec<&str> = command.split(' ').collect();
            Self(Command::new(words[0]).args(&words[1..]).spawn().expect(command))
        }

        /// The cause for which waiting for it ends.
        fn given_up(self) -> Silence {
            let mut patience = Patience::new(self.0.id(), LIMIT);
            let start = Instant::now();
            loop {
                thread::sleep(patience.slice());
                if let Some(silence) = patience.count() {
                    return silence;
                }
                assert!(start.elapsed() < Duration::from_secs(60), "{patience:?}");
            }
        }
    }

    impl Drop for Started {
        fn drop(&mut self) {
            drop((self.0.kill(), self.0.wait()));
        }
    }

    #[test]
    fn a_process_that_sleeps_hangs_and_one_that_is_stopped_does_not() {
        assert_eq!(Started::new("sleep 600").given_up(), Silence::Hung);
        let stopped = Started::new("sleep 600");
        let pid = rustix::process::Pid::from_child(&stopped.0);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        assert_eq!(stopped.given_up(), Silence::Stopped);
    }

    /// Four busy processes on one processor, with the watched one at the lowest priority.
    #[test]
    fn a_process_without_processor_time_is_starved() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let first: String =
            allowed.unwrap().trim().chars().take_while(char::is_ascii_digit).collect();
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("busy");
        fs::write(&script, "while :; do :; done").unwrap();
        // Each command replaces itself by the next, so the shell has the started process's id.
        let busy = |nice| format!("taskset -c {first} nice -n{nice} sh {}", script.display());
        let watched = Started::new(&busy(19));
        let _others = [0; 3].map(|nice| Started::new(&busy(nice)));
        thread::sleep(Duration::from_millis(200));
        assert_eq!(watched.given_up(), Silence::Starved);
    }

    /// A slice in which the helper got a part of a processor counts in part.
    #[test]
    fn waiting_for_a_processor_is_not_hanging() {
        let slice = Duration::from_millis(250);
        let times = |ran, waited, is_ready| {
            let [ran, waited] = [ran, waited].map(Duration::from_millis);
            Threads::from([("1".into(), Times { ran, waited, is_ready })])
        };
        let before = times(100, 100, true);
        let part = |now: Threads| starved(&before, &now, slice).as_millis();
        assert_eq!(part(times(150, 300, true)), 200, "a fifth of a processor");
        assert_eq!(part(times(340, 110, true)), 0, "waits of any machine");
        assert_eq!(part(times(100, 100, false)), 0, "asleep: it hangs");
        assert_eq!(part(times(100, 100, true)), 250, "it never ran");
        assert_eq!(part(times(100, 900, true)), 250, "a wait that began before the slice");
    }
}
