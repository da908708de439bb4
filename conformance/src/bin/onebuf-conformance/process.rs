//! Runs one program in a process group of its own, with limits on its time and its output, and ends all that it started.
//!
//! # Safety
//! The system calls here take integers and pointers to local data. Signals are sent to children of this process that were not
//! waited for, so no other process has their numbers.
//!
//! Several programs may run at a time. What one of them leaves behind becomes a child of this process; a variable of its
//! environment says whose it was.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Bytes of output after which a program is ended.
const MOST_OUTPUT: u64 = 64 << 20;
/// How long the rest of a process group may take to disappear.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The variable that marks a program and all that it starts.
const MARK: &str = "ONEBUF_CONFORMANCE_PART";

/// The programs that run now, as their process numbers. The lock is held while a program is started, so that no thread reaps it as an orphan.
static LEADERS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

fn leaders() -> MutexGuard<'static, Vec<i32>> {
    LEADERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The signal that asks this program to end; 0 if there was none.
static ASKED_TO_END: AtomicI32 = AtomicI32::new(0);

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    Exit(i32),
    Signal(i32),
    TimedOut(Duration),
    TooMuchOutput,
    /// It could not be started.
    NotStarted(String),
    /// The user ended the whole run.
    Interrupted(i32),
}

impl How {
    /// Why it counts as a failure; `None` if it ended by itself with status 0.
    pub fn trouble(&self) -> Option<String> {
        match self {
            How::Exit(0) => None,
            How::Exit(status) => Some(format!("exit status {status}")),
            How::Signal(signal) => Some(format!("crashed: {}", signal_name(*signal))),
            How::TimedOut(limit) => Some(format!("hung: no end after {} s", limit.as_secs())),
            How::TooMuchOutput => Some(format!("printed more than {} MiB", MOST_OUTPUT >> 20)),
            How::NotStarted(why) => Some(format!("cannot be started: {why}")),
            How::Interrupted(signal) => Some(format!("interrupted: {}", signal_name(*signal))),
        }
    }
}

/// A program that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    pub how: How,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

/// A program to run.
#[derive(Debug)]
pub struct Program<'p> {
    pub path: &'p Path,
    pub arguments: &'p [String],
    pub environment: &'p BTreeMap<String, String>,
    pub limit: Duration,
    /// A folder for its output and its files.
    pub scratch: &'p Path,
}

/// Makes this process the parent of orphans, so that none outlives a run, and takes notice of the signals that end it.
pub fn prepare() {
    extern "C" fn asked(signal: i32) {
        ASKED_TO_END.store(signal, Ordering::Relaxed);
    }
    let handler: extern "C" fn(i32) = asked;
    // SAFETY: the handler only stores to an atomic; the other call takes integers.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::signal(signal, handler as libc::sighandler_t);
        }
    }
}

/// The signal that asked this program to end.
pub fn interrupted() -> Option<i32> {
    Some(ASKED_TO_END.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Runs a program to its end.
pub fn run(program: &Program<'_>) -> Ended {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let start = Instant::now();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = program.scratch.join(format!("part-{number}"));
    let mark = format!("{}-{number}", std::process::id());
    let files = ["stdout", "stderr"].map(|name| folder.join(name));
    let how = start_program(program, &folder, &files, &mark).map_or_else(
        |error| How::NotStarted(error.kind().to_string()),
        |pid| attend(pid, program, &files, &mark),
    );
    let [stdout, stderr] = files.map(|file| read_some(&file));
    Ended { how, stdout, stderr, took: start.elapsed() }
}

/// Returns the process number, which is also that of its group.
fn start_program(
    program: &Program<'_>,
    folder: &Path,
    files: &[PathBuf; 2],
    mark: &str,
) -> io::Result<i32> {
    let work = folder.join("work");
    fs::create_dir_all(&work)?;
    let mut command = Command::new(program.path);
    command.args(program.arguments).envs(program.environment).env(MARK, mark);
    command.current_dir(work).process_group(0);
    command.stdin(Stdio::null()).stdout(File::create(&files[0])?).stderr(File::create(&files[1])?);
    // SAFETY: only `prctl` and `signal`, which are async-signal-safe, are called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    let mut leaders = leaders();
    // It is waited for by its number.
    let pid = command.spawn()?.id() as i32;
    leaders.push(pid);
    Ok(pid)
}

/// Waits until the program ends or must be ended. Then ends its group and its orphans.
fn attend(pid: i32, program: &Program<'_>, files: &[PathBuf; 2], mark: &str) -> How {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    let forced = loop {
        reap_orphans();
        if ended(libc::P_PID, pid as u32) == pid {
            break None;
        }
        let size = |file: &PathBuf| fs::metadata(file).map_or(0, |meta| meta.len());
        if let Some(signal) = interrupted() {
            break Some(How::Interrupted(signal));
        } else if start.elapsed() > program.limit {
            break Some(How::TimedOut(program.limit));
        } else if files.iter().map(size).sum::<u64>() > MOST_OUTPUT {
            break Some(How::TooMuchOutput);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    // SAFETY: see the head of this file; the leader was not waited for, so the group's number is still its own.
    unsafe { libc::kill(-pid, libc::SIGKILL) };
    let status = reap(pid);
    leaders().retain(|leader| *leader != pid);
    end_orphans(mark);
    forced.unwrap_or_else(|| match status.signal() {
        Some(signal) => How::Signal(signal),
        None => How::Exit(status.code().unwrap_or(-1)),
    })
}

/// A child of this kind that has ended and is not waited for yet; 0 if there is none.
fn ended(kind: libc::idtype_t, id: u32) -> i32 {
    // SAFETY: `info` is a local variable of the type that the call fills in; all zeroes is a valid value.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        match libc::waitid(kind, id, &raw mut info, options) {
            0 => info.si_pid(),
            _ => 0,
        }
    }
}

/// Removes orphans that have ended at once, as the system would: tests look whether they are gone.
fn reap_orphans() {
    loop {
        let leaders = leaders();
        let pid = ended(libc::P_ALL, 0);
        // A program that has ended is waited for where it is attended.
        if pid == 0 || leaders.contains(&pid) {
            return;
        }
        reap(pid);
    }
}

/// Waits for a child that has ended, or is about to.
fn reap(pid: i32) -> ExitStatus {
    let mut status = 0;
    // SAFETY: `status` is a local variable.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    ExitStatus::from_raw(status)
}

/// Ends the processes that a program has left behind. They are children of this process now. Those without its mark are ended
/// when no other program runs.
fn end_orphans(mark: &str) {
    let start = Instant::now();
    let variable = format!("{MARK}={mark}");
    let has_mark = |pid: &i32| {
        let all = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        all.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
    };
    while start.elapsed() < LAST_WORDS {
        let leaders = leaders();
        let mut orphans = children();
        orphans.retain(|pid| !leaders.contains(pid) && (leaders.is_empty() || has_mark(pid)));
        if orphans.is_empty() {
            return;
        }
        for pid in orphans {
            // SAFETY: see the head of this file. No thread reaps an orphan while this one holds the lock.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        drop(leaders);
        reap_orphans();
        thread::sleep(Duration::from_millis(2));
    }
}

/// The processes whose parent is this one.
fn children() -> Vec<i32> {
    let this = std::process::id().to_string();
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = names.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in parentheses, may contain anything; then come the state and the parent.
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        rest.split(' ').nth(1) == Some(this.as_str())
    };
    numbers.filter(is_child).collect()
}

/// Reads a file of output; bytes that are no text are replaced.
fn read_some(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

fn signal_name(signal: i32) -> String {
    let names = [
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGTRAP, "SIGTRAP"),
    ];
    let known = names.iter().find(|(number, _)| *number == signal).map(|(_, name)| *name);
    known.map_or_else(|| format!("signal {signal}"), str::to_owned)
}
