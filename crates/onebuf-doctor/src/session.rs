//! The doctor's side of an experiment: helper processes, and what their ends say about a route.
//!
//! A helper that exits without a verdict refutes the route only if the driver can be the cause: it crashed, or was silent
//! although it could run, after the experiment had begun. Before that, all drivers of the machine are loaded and queried,
//! which says nothing about this route. A helper that was stopped, killed or starved says nothing about it either.

use super::{
    experiment,
    helper::HELPER_COMMAND,
    patience::{HeldUp, Patience, Silence},
    request::{Request, What},
};
use onebuf_core::{
    identity,
    topology::{Node, Verdict, VerdictState},
};
use onebuf_hal::{Error, Result};
use rustix::net;
use std::{
    io::{self, BufRead, BufReader, Read},
    iter,
    os::{
        fd::OwnedFd,
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// How helpers are started.
#[derive(Clone)]
pub(super) struct Helper<'d> {
    pub program: &'d Path,
    pub silence: Duration,
    /// The libraries that the hub was configured to load, by their environment variables.
    pub libraries: &'d [(&'static str, String)],
    /// The only APIs that the helper uses; all if there are none.
    pub apis: Vec<&'d str>,
}

impl Helper<'_> {
    /// Makes one experiment in a fresh helper.
    pub fn run(&self, from: &Node, to: &Node, what: What) -> Result<Verdict> {
        self.ask(&mut None, from, to, what)
    }

    /// Makes one experiment in the given helper. A failure counts only if it happens in a fresh helper too. What failed with one
    /// of them alone must succeed twice in a row.
    pub fn tried(
        &self,
        kept: &mut Option<Session>,
        from: &Node,
        to: &Node,
        what: What,
    ) -> Result<Verdict> {
        let first = self.ask(kept, from, to, what)?;
        self.confirmed(first, from, to, what)
    }

    /// Why a device fails by itself; `None` if it does not. Tried are devices of runtimes that are built on another device of the
    /// hub, in a hub of all APIs and in one of that API alone: there the runtime joins its streams by its own calls.
    pub fn broken(&self, node: &Node) -> Result<Option<Verdict>> {
        if node.info.caps.built_on.is_none() {
            return Ok(None);
        }
        let alone = Helper { apis: vec!["host", node.info.api.0], ..self.clone() };
        for helper in [self, &alone] {
            let lives = helper.tried(&mut None, node, node, What::Life)?;
            if lives.state != VerdictState::Proven {
                let why = format!("{} by itself: {}", node.id, lives.why);
                return Ok(Some(Verdict { why, ..lives }));
            }
        }
        Ok(None)
    }

    /// Repeats an experiment that did not prove its subject, in fresh helpers.
    pub fn confirmed(&self, first: Verdict, from: &Node, to: &Node, what: What) -> Result<Verdict> {
        if first.state == VerdictState::Proven {
            return Ok(first);
        }
        tracing::info!(why = first.why, "an experiment failed and is repeated");
        let again = self.run(from, to, what)?;
        match (first.state, again.state) {
            // One refutation and one other answer: the third decides.
            (VerdictState::Refuted, VerdictState::Proven)
            | (VerdictState::Declared, VerdictState::Refuted) => self.run(from, to, what),
            _ => Ok(again),
        }
    }

    /// Makes one experiment in the given helper, or in a fresh one if there is none. The helper is left for further experiments
    /// only after a proof: a driver that failed may have left it in any state. A helper that crashes or hangs in the
    /// experiment refutes it. If a helper cannot be started, that is an error.
    pub fn ask(
        &self,
        kept: &mut Option<Session>,
        from: &Node,
        to: &Node,
        what: What,
    ) -> Result<Verdict> {
        let mut session = match kept.take() {
            Some(session) => session,
            None => self.start()?,
        };
        session.send(&Request { from: from.id.clone(), to: to.id.clone(), what });
        let heard = self.listen(&session);
        let wanted = format!("{} and {}", identity::of_node(from), identity::of_node(to));
        match heard {
            Heard { verdict: Some(_), devices, .. } if devices != wanted => {
                Err(Error::Unavailable {
                    what: "the doctor's helper".into(),
                    tried: vec![self.program.display().to_string()],
                    reason: format!("the helper sees other devices: {devices} instead of {wanted}"),
                })
            }
            Heard { verdict: Some(verdict), held_up, .. } => {
                let verdict = self.excused(verdict, held_up);
                *kept = (verdict.state == VerdictState::Proven).then_some(session);
                Ok(verdict)
            }
            Heard { silence: Some(silence), .. } => Ok(self.silent(&heard, silence)),
            _ => {
                let status = session.ended();
                let last_words = session.complaints.recv_timeout(GRACE).unwrap_or_default();
                Ok(died(status, &heard, &last_words))
            }
        }
    }

    fn start(&self) -> Result<Session> {
        // Waits inside the helper are shorter than the silence limit, so that a hang which the library detects is reported
        // with the library's own error.
        let wait_ms = (self.silence / 5 * 4).as_millis().to_string();
        let mut command = Command::new(self.program);
        command.args([HELPER_COMMAND, &wait_ms]).args(&self.apis);
        command.env_clear().envs(identity::environment().iter().map(|(name, value)| (name, value)));
        command.envs(self.libraries.iter().map(|(name, library)| (name, library)));
        let not_started = |error: io::Error| Error::Unavailable {
            what: "the doctor's helper".into(),
            tried: vec![self.program.display().to_string()],
            reason: error.to_string(),
        };
        // Standard input stays open while this process lives; its end ends the helper. A socket, because writing to the pipe of
        // a helper that has exited would signal `SIGPIPE` to a program that does not ignore it.
        let (requests, input) = UnixStream::pair().map_err(not_started)?;
        command.stdin(OwnedFd::from(input)).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process group of its own: the processes that a driver starts end with it, and the terminal's signals do not reach
        // it.
        command.process_group(0);
        let mut child = command.spawn().map_err(not_started)?;
        let (complaints, lines) = (complaints(&mut child), lines(&mut child));
        Ok(Session { child, requests, lines, complaints })
    }

    /// Reads the helper's lines until it has a verdict, exits, or is silent for too long.
    fn listen(&self, session: &Session) -> Heard {
        let mut heard = Heard { stage: "starting".into(), ..Heard::default() };
        let mut patience = Patience::new(session.child.id(), self.silence);
        while heard.verdict.is_none() && heard.silence.is_none() {
            match session.lines.recv_timeout(patience.slice()) {
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

/// A running helper. Dropping it ends the process and all processes it started.
pub(super) struct Session {
    child: Child,
    requests: UnixStream,
    lines: mpsc::Receiver<String>,
    complaints: mpsc::Receiver<String>,
}

impl Session {
    /// A helper that has exited does not read: its end is noticed by [`Helper::listen`].
    fn send(&self, request: &Request) {
        let line = format!("{request}\n");
        let sent = net::send(&self.requests, line.as_bytes(), net::SendFlags::NOSIGNAL);
        tracing::trace!(%request, ?sent, "an experiment");
    }

    /// Waits for a helper that closed its output, and is about to exit by itself.
    fn ended(&mut self) -> Option<ExitStatus> {
        status_within(&mut self.child, GRACE).or_else(|| self.kill())
    }

    fn kill(&mut self) -> Option<ExitStatus> {
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        // A process that is stuck in the kernel is left to init.
        status_within(&mut self.child, GRACE)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // After the wait the id may belong to another process.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.kill();
        }
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

/// Reads standard output. One thread per helper; it ends with the pipe, at the latest when the child is killed.
fn lines(child: &mut Child) -> mpsc::Receiver<String> {
    let (send, lines) = mpsc::sync_channel(LINES_AHEAD);
    if let Some(out) = child.stdout.take() {
        thread::spawn(move || lines_of(out).try_for_each(|line| send.send(line)));
    }
    lines
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
