//! How long a silent helper is waited for.
//!
//! A helper is silent because its driver hangs, or because the machine does not let it run. Only the first speaks of
//! the route, so the silence is counted in slices and each slice is put down to one cause. A slice counts as what it was
//! meant to last: one in which this process itself was stopped is no longer than the others.

use std::{fs, path::Path, time::Duration};

/// Why a helper was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// It could run, and said nothing.
    Hung,
    /// It was stopped (`SIGSTOP`, a debugger).
    Stopped,
    /// It was ready to run and got too little of the processor.
    Starved,
}

/// A helper without processor time is waited for so many times longer than one that could run.
const STARVED_TIMES: u32 = 3;

#[derive(Debug)]
pub(super) struct Patience {
    pid: u32,
    limit: Duration,
    hung: Duration,
    stopped: Duration,
    starved: Duration,
    times: Times,
}

/// Of all threads, since they were started. The kernel adds a wait when it is over.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    ran: Duration,
    waited: Duration,
    /// Whether one of them runs or waits for a processor now.
    is_ready: bool,
}

impl Patience {
    pub fn new(pid: u32, limit: Duration) -> Self {
        let zero = Duration::ZERO;
        Self { pid, limit, hung: zero, stopped: zero, starved: zero, times: times(pid) }
    }

    /// How long to listen before [`Patience::count`].
    pub fn slice(&self) -> Duration {
        (self.limit / 20).clamp(Duration::from_millis(1), Duration::from_millis(250))
    }

    /// The helper said something: it is waited for anew. Returns how long it could not run before.
    pub fn renew(&mut self) -> Duration {
        let held_up = self.stopped + self.starved;
        *self = Self::new(self.pid, self.limit);
        held_up
    }

    /// Counts one slice of silence. `Some` when it has lasted too long.
    pub fn count(&mut self) -> Option<Silence> {
        let (slice, before) = (self.slice(), self.times);
        self.times = times(self.pid);
        let ran = self.times.ran.saturating_sub(before.ran);
        let waited = self.times.waited.saturating_sub(before.waited);
        let wants_to_run = waited >= slice / 2 || self.times.is_ready;
        let silence = match () {
            () if is_stopped(self.pid) => Silence::Stopped,
            () if wants_to_run && ran < slice / 2 => Silence::Starved,
            () => Silence::Hung,
        };
        let (count, limit) = match silence {
            Silence::Hung => (&mut self.hung, self.limit),
            Silence::Stopped => (&mut self.stopped, self.limit),
            Silence::Starved => (&mut self.starved, self.limit * STARVED_TIMES),
        };
        *count += slice;
        (*count >= limit).then_some(silence)
    }
}

fn is_stopped(pid: u32) -> bool {
    matches!(state(Path::new(&format!("/proc/{pid}"))), Some('T' | 't'))
}

/// The state of a process or thread.
fn state(folder: &Path) -> Option<char> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The name in brackets may hold anything.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Zero where the kernel does not count them: then nothing is put down to the machine's load.
fn times(pid: u32) -> Times {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Times::default() };
    let folders = threads.filter_map(|thread| Some(thread.ok()?.path()));
    folders.fold(Times::default(), |sum, folder| {
        let Ok(line) = fs::read_to_string(folder.join("schedstat")) else { return sum };
        let mut fields = line.split_whitespace().map(|field| field.parse().unwrap_or(0));
        let mut next = || Duration::from_nanos(fields.next().unwrap_or(0));
        let is_ready = sum.is_ready || state(&folder) == Some('R');
        Times { ran: sum.ran + next(), waited: sum.waited + next(), is_ready }
    })
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

    /// A process that ends with the test.
    struct Started(Child);

    impl Started {
        fn new(command: &str) -> Self {
            let words: Vec<&str> = command.split(' ').collect();
            Self(Command::new(words[0]).args(&words[1..]).spawn().expect(command))
        }

        /// The cause for which it is given up.
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

    /// Four busy processes on one processor, the watched one at the lowest priority.
    #[test]
    fn a_process_without_processor_time_is_starved() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let first: String =
            allowed.unwrap().trim().chars().take_while(char::is_ascii_digit).collect();
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("busy");
        fs::write(&script, "while :; do :; done").unwrap();
        // Each is replaced by the next: the shell is the process that was started.
        let busy = |nice| format!("taskset -c {first} nice -n{nice} sh {}", script.display());
        let watched = Started::new(&busy(19));
        let _others = [0; 3].map(|nice| Started::new(&busy(nice)));
        thread::sleep(Duration::from_millis(200));
        assert_eq!(watched.given_up(), Silence::Starved);
    }
}
