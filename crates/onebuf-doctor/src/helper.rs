//! The helper process: one experiment, reported line by line.
//!
//! The helper writes `stage <text>` before each step, `devices <text>` when the experiment begins, and `verdict <json>` at
//! the end. If no line arrives within the silence limit, the driver hangs in that stage.
//!
//! A helper that exits without a verdict refutes the route only if the driver can be the cause: it crashed, or was silent
//! although it could run, after the experiment had begun. Before that, all drivers of the machine are loaded and queried,
//! which says nothing about this route. A helper that was stopped, killed or starved says nothing about it either.

use super::{
    experiment, graft,
    patience::{HeldUp, Patience, Silence},
};
use onebuf_core::{
    HubBuilder, identity,
    internals::GRAFT,
    topology::{Node, Verdict, VerdictState},
};
use onebuf_hal::{Error, Result, RouteKind};
use std::{
    fmt,
    io::{BufRead, BufReader, Read, Write},
    iter,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// The first command-line argument of a helper.
pub const HELPER_COMMAND: &str = "onebuf-doctor-helper";

/// Runs the experiment and exits if this process was started as a helper; otherwise returns. Call it at the start of `main`,
/// before any driver is loaded. Pass the builder of the hub whose routes are tried, with the same backends. Libraries,
/// excluded APIs and timeouts come from the doctor.
pub fn helper_main(builder: HubBuilder) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [command, from, to, kind, wait_ms, reach] = args.as_slice()
        && command == HELPER_COMMAND
    {
        std::process::exit(match tell(builder, [from, to], kind, wait_ms, reach) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("{error}");
                1
            }
        });
    }
}

/// The helper's side. It writes every result to standard output at once.
fn tell(builder: HubBuilder, ids: [&str; 2], kind: &str, wait_ms: &str, reach: &str) -> Result<()> {
    let route = match kind {
        GRAFT => None,
        kind => Some(route_kind(kind)?),
    };
    let number =
        |text: &str| text.parse().map_err(|_| Error::invalid(format!("`{text}` is not a number")));
    let (timeout, reach) = (Duration::from_millis(number(wait_ms)?), number(reach)?);
    end_with_the_doctor()?;
    say("stage", "discovering devices");
    let hub = builder.timeout(timeout).verdicts(Default::default()).build()?;
    let of = |id: &str| hub.device(id).map(|d| identity::of_node(hub.topology().node(d.index())));
    say("devices", &format!("{} and {}", of(ids[0])?, of(ids[1])?));
    let mut tell = |stage: &str| say("stage", stage);
    let verdict = match route {
        Some(kind) => experiment::run(&hub, ids, kind, reach, &mut tell),
        None => graft::run(&hub, ids, &mut tell),
    };
    let text = serde_json::to_string(&verdict).map_err(|e| Error::invalid(e.to_string()))?;
    say("verdict", &text);
    Ok(())
}

/// Ends this process, and what its drivers started, when the doctor exits for any reason: standard input is closed then. A
/// hanging driver does not block this thread.
fn end_with_the_doctor() -> Result<()> {
    let watch = || {
        let ended = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let (own, group) = (rustix::process::getpid(), rustix::process::getpgrp());
        if own == group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        std::process::exit(if ended.is_ok() { 1 } else { 2 });
    };
    let thread = thread::Builder::new().name("onebuf-doctor".into()).spawn(watch);
    thread.map(drop).map_err(|error| Error::Unavailable {
        what: "a thread of the doctor's helper".into(),
        tried: Vec::new(),
        reason: error.to_string(),
    })
}

fn route_kind(name: &str) -> Result<RouteKind> {
    serde_json::from_value(name.into())
        .map_err(|_| Error::invalid(format!("`{name}` is not a kind of route")))
}

fn say(word: &str, text: &str) {
    let mut out = std::io::stdout().lock();
    // Starts a new line, because a driver may have left one unfinished. Errors are ignored: if the parent is gone, there is
    // no reader.
    let _ = writeln!(out, "\n{word} {}", text.replace('\n', " ")).and_then(|()| out.flush());
}

/// The doctor's side.
pub(super) struct Helper<'d> {
    pub program: &'d Path,
    pub silence: Duration,
    pub reach: u64,
    /// The libraries that the hub was configured to load, by their environment variables.
    pub libraries: &'d [(&'static str, String)],
}

impl Helper<'_> {
    /// Tries one route, or a graft. A helper that crashes or hangs in the experiment refutes it. If the helper cannot be
    /// started, that is an error.
    pub fn run(&self, from: &Node, to: &Node, kind: impl fmt::Display) -> Result<Verdict> {
        // Waits inside the helper are shorter than the silence limit, so that a hang which the library detects is reported
        // with the library's own error.
        let wait_ms = (self.silence / 5 * 4).as_millis().to_string();
        let reach = self.reach.to_string();
        let mut command = Command::new(self.program);
        command.args([HELPER_COMMAND, &from.id, &to.id, &kind.to_string(), &wait_ms, &reach]);
        command.env_clear().envs(identity::environment().iter().map(|(name, value)| (name, value)));
        command.envs(self.libraries.iter().map(|(name, library)| (name, library)));
        // Standard input stays open and empty while this process lives; see `end_with_the_doctor`.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process group of its own: the processes that a driver starts end with it, and the terminal's signals do not reach
        // it.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| Error::Unavailable {
            what: "the doctor's helper".into(),
            tried: vec![self.program.display().to_string()],
            reason: error.to_string(),
        })?;
        let complaints = complaints(&mut child);
        let heard = self.listen(&mut child);
        let is_ending = heard.verdict.is_none() && heard.silence.is_none();
        let status = end(&mut child, is_ending);
        let last_words = complaints.recv_timeout(GRACE).unwrap_or_default();
        let wanted = format!("{} and {}", identity::of_node(from), identity::of_node(to));
        match heard {
            Heard { verdict: Some(_), devices, .. } if devices != wanted => {
                Err(Error::Unavailable {
                    what: "the doctor's helper".into(),
                    tried: vec![self.program.display().to_string()],
                    reason: format!("the helper sees other devices: {devices} instead of {wanted}"),
                })
            }
            Heard { verdict: Some(verdict), held_up, .. } => Ok(self.excused(verdict, held_up)),
            Heard { silence: Some(silence), .. } => Ok(self.silent(&heard, silence)),
            _ => Ok(died(status, &heard, &last_words)),
        }
    }

    /// Reads the helper's lines until it has a verdict, exits, or is silent for too long.
    fn listen(&self, child: &mut Child) -> Heard {
        let mut heard = Heard { stage: "starting".into(), ..Heard::default() };
        let Some(out) = child.stdout.take() else { return heard };
        let (send, lines) = mpsc::sync_channel(LINES_AHEAD);
        // One thread per helper. It ends with the pipe, at the latest when the child is killed.
        thread::spawn(move || lines_of(out).try_for_each(|line| send.send(line)));
        let mut patience = Patience::new(child.id(), self.silence);
        while heard.verdict.is_none() && heard.silence.is_none() {
            match lines.recv_timeout(patience.slice()) {
                Ok(line) if is_of_helper(&line) => heard.note(&line, patience.renew()),
                Ok(_) => {} // a driver's line, which is no progress of the experiment
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => heard.silence = patience.count(),
            }
        }
        heard
    }

    /// The verdict after a silence.
    fn silent(&self, heard: &Heard, silence: Silence) -> Verdict {
        let (stage, limit_s) = (&heard.stage, self.silence.as_secs_f32());
        match silence {
            _ if !heard.has_begun() => {
                not_known(format!("the helper was silent for {limit_s} s while {stage}"))
            }
            Silence::Hung => refuted(format!("hung: nothing for {limit_s} s while {stage}")),
            Silence::Stopped => not_known(format!("the helper was stopped while {stage}")),
            Silence::Starved => {
                not_known(format!("the helper got too little processor time while {stage}"))
            }
        }
    }

    /// A timeout inside the helper refutes the route or the sync method, unless the helper could not run meanwhile. Then
    /// nothing is known.
    fn excused(&self, verdict: Verdict, held_up: HeldUp) -> Verdict {
        if !held_up.excuses(self.silence) {
            return verdict;
        }
        not_known(format!("the helper could not run meanwhile: {}", verdict.why))
    }
}

#[derive(Default)]
struct Heard {
    stage: String,
    /// The devices that the helper examines; empty before the experiment.
    devices: String,
    verdict: Option<Verdict>,
    /// Why the doctor stopped waiting.
    silence: Option<Silence>,
    /// How long the helper could not run before one of its own waits timed out.
    held_up: HeldUp,
}

impl Heard {
    fn note(&mut self, line: &str, held_up: HeldUp) {
        match line.split_once(' ') {
            Some(("stage", experiment::TIMED_OUT)) => self.held_up = self.held_up.or(held_up),
            Some(("stage", stage)) => self.stage = stage.into(),
            Some(("devices", devices)) => self.devices = devices.into(),
            Some(("verdict", json)) => self.verdict = serde_json::from_str(json).ok(),
            _ => {}
        }
    }

    fn has_begun(&self) -> bool {
        !self.devices.is_empty()
    }
}

/// All other lines come from drivers that write to standard output.
fn is_of_helper(line: &str) -> bool {
    let word = line.split_once(' ').map(|(word, _)| word);
    word.is_some_and(|word| ["stage", "devices", "verdict"].contains(&word))
}

/// Longer lines come from drivers and are split.
const MOST_LINE_BYTES: u64 = 64 << 10;
/// How many lines are read ahead.
const LINES_AHEAD: usize = 16;

/// Lines as they arrive, with invalid UTF-8 replaced.
fn lines_of(pipe: impl Read) -> impl Iterator<Item = String> {
    let mut pipe = BufReader::new(pipe);
    iter::from_fn(move || {
        let mut line = Vec::new();
        let read = pipe.by_ref().take(MOST_LINE_BYTES).read_until(b'\n', &mut line);
        read.ok().filter(|bytes| *bytes > 0)?;
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        Some(String::from_utf8_lossy(line).into_owned())
    })
}

/// Drains standard error, so that a verbose driver does not block, and returns its last line at the end.
fn complaints(child: &mut Child) -> mpsc::Receiver<String> {
    let (send, last) = mpsc::channel();
    if let Some(err) = child.stderr.take() {
        thread::spawn(move || {
            let said = lines_of(err).filter(|line| !line.trim().is_empty());
            send.send(said.last().unwrap_or_default().trim().to_owned())
        });
    }
    last
}

/// How long a helper may take to exit after its last line.
const GRACE: Duration = Duration::from_secs(1);

/// Ends the helper and all processes it started. If it is about to exit by itself, waits for its status first.
fn end(child: &mut Child, ending: bool) -> Option<ExitStatus> {
    if ending && let Some(status) = status_within(child, GRACE) {
        return Some(status);
    }
    let group = rustix::process::Pid::from_child(child);
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    // A process that is stuck in the kernel is left to init.
    status_within(child, GRACE)
}

fn status_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
    None
}

/// A helper that crashes in the experiment refutes its route. One that crashed before it, exited by itself, or was killed (by
/// a user, a supervisor, the kernel for lack of memory) says nothing about it, and the route keeps its state.
fn died(status: Option<ExitStatus>, heard: &Heard, last_words: &str) -> Verdict {
    let words = if last_words.is_empty() { String::new() } else { format!(" ({last_words})") };
    let stage = &heard.stage;
    let signal = status.and_then(|s| s.signal());
    let how = match signal.map(|signal| (signal, crash_name(signal))) {
        Some((signal, Some(name))) => format!("crashed: signal {signal} ({name})"),
        Some((signal, None)) => format!("ended by signal {signal}"),
        None => "the helper gave up".into(),
    };
    match signal.and_then(crash_name) {
        Some(_) if heard.has_begun() => refuted(format!("{how} while {stage}{words}")),
        _ => {
            Verdict { why: format!("not tried: {how} while {stage}{words}"), ..Verdict::default() }
        }
    }
}

/// Signals that a crashing process causes itself.
fn crash_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGILL => "SIGILL",
        libc::SIGFPE => "SIGFPE",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGSYS => "SIGSYS",
        _ => return None,
    })
}

/// The route stays declared.
fn not_known(why: String) -> Verdict {
    Verdict { why: format!("not known: {why}"), ..Verdict::default() }
}

fn refuted(why: String) -> Verdict {
    Verdict { state: VerdictState::Refuted, why, ..Verdict::default() }
}

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests;
