//! `onebuf top`: live state of a running program, from another terminal.

use crate::{
    out::{self, Answer, Failure, Output, Result},
    screen::{Screen, fit},
    table::{Cell, Table},
    units,
};
use onebuf::{
    Cause, Error,
    live::{self, BufferSeen, HubLiveExt, PipelineSeen, RankSeen, RankState, Snapshot, Viewer},
    pipeline::RunState,
    printable,
};
use serde_json::json;
use std::{
    io::{self, IsTerminal},
    time::Duration,
};

/// Show a running program live: its buffers, routes, fences, copies and pipelines
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf demo --frames 100000             in one terminal; it publishes its state
  onebuf top                              in another: the one published program, or a list
  onebuf top demo-4711 --once             a single snapshot
  mpirun -n 4 onebuf demo --frames 100000 several ranks: the view of the first one shows them all
  onebuf top --once --json | jq '.pipelines[].frames_per_second'

A program publishes its state with `hub.publish(name)`, for processes of the same user only. Viewers
never slow or block it. On a terminal the view is updated twice a second, and lines are cut to
its width; elsewhere one line is printed per update. The command ends when the program does.
Rates are averages over the last five seconds. A running pipeline is shown as stalled if no frame has come out for two
seconds and for three times longer than usual; one that has ended is shown as finished or failed.")]
pub struct TopArgs {
    /// Name of the program, or the path of its socket [default: the only one]
    #[arg(value_name = "NAME|PATH")]
    name: Option<String>,
    /// Print one snapshot
    #[arg(long)]
    once: bool,
    /// Seconds that the program may take to answer
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

pub fn run(args: &TopArgs, output: &Output, screen: Screen) -> Result<Answer> {
    let timeout = Duration::from_secs(args.timeout);
    let name = match &args.name {
        Some(name) => name.clone(),
        None => only(timeout)?,
    };
    let mut viewer = Viewer::attach(&name, timeout)?;
    let seen = viewer.next(timeout)?;
    if args.once {
        return Ok(Answer { json: json!(seen), text: view(&seen, screen) });
    }
    follow(&mut viewer, seen, timeout, output)
}

/// Shows updates until the program ends; the last one is the answer.
fn follow(
    viewer: &mut Viewer,
    mut seen: Snapshot,
    timeout: Duration,
    output: &Output,
) -> Result<Answer> {
    let live = io::stdout().is_terminal();
    loop {
        // The window's size may change.
        output.say(&match live {
            true => clear(&view(&seen, Screen::of_stdout())),
            false => line(&seen),
        })?;
        match viewer.next(timeout) {
            Ok(next) => seen = next,
            Err(Error::PeerLost { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let text = format!("process {} has ended\n", seen.pid);
    Ok(Answer { json: json!(seen), text })
}

/// How long each of several programs may take to say whether it shows the others.
const PATIENCE: Duration = Duration::from_secs(2);

/// The one program that answers, or the one that shows the ranks of a job which all others are; dead ones are skipped.
fn only(timeout: Duration) -> Result<String> {
    let alive = |name: String| Some((Viewer::attach(&name, timeout).ok()?, name));
    let mut found: Vec<(Viewer, String)> = live::names().into_iter().filter_map(alive).collect();
    if found.len() > 1 {
        let pids: Vec<u32> = found.iter().map(|(viewer, _)| viewer.peer().pid).collect();
        // A rank that is stopped does not answer.
        let patience = timeout.min(PATIENCE);
        let gathers = |(viewer, _): &mut (Viewer, String)| {
            viewer.next(patience).is_ok_and(|seen| has_all(&seen, &pids))
        };
        if let Some(first) = found.iter_mut().position(gathers) {
            return Ok(found.swap_remove(first).1);
        }
    }
    match found.len() {
        1 => Ok(found.remove(0).1),
        0 => Err(Failure::new(
            "no published program: start `onebuf demo`, or call `hub.publish(name)` in your program",
        )),
        _ => Err(Failure::new(format!(
            "several programs are published, name one: {}",
            found.iter().map(|(_, name)| printable(name)).collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// Whether a program shows the ranks of a job, and all of these processes are such ranks.
fn has_all(first: &Snapshot, pids: &[u32]) -> bool {
    pids.iter().all(|pid| first.ranks.iter().any(|rank| rank.pid == *pid))
}

/// Draws from the top of the screen, as many lines as fit, and clears the rest.
fn clear(text: &str) -> String {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let rows = size.map_or(usize::MAX, |size| size.ws_row.into()).max(2);
    // Cleared before it is written: after a line that fills the screen, the cursor is on its last character.
    let lines = text.lines().take(rows - 1).map(|line| format!("\x1b[K{line}\n"));
    format!("\x1b[H{}\x1b[J", lines.collect::<String>())
}

/// Everything in one line.
fn line(seen: &Snapshot) -> String {
    let bytes = |cause| moved(seen, cause);
    let pipelines = seen.pipelines.iter().map(|p| {
        let p99 = p.p99_us.map_or_else(|| "-".into(), |us| units::time(us as f64));
        let (name, state, rate) = (printable(&p.name), state(p), rate(p));
        format!("; {name}{state}: {} frames, {rate}, p99 {p99}, {} dropped", p.frames, p.dropped)
    });
    format!(
        "{:.1} s: {} buffers, {} hand-overs, requested {}, implied {}{}{}\n",
        seen.uptime_us as f64 / 1e6,
        seen.buffers.len() + seen.buffers_left_out,
        seen.fences.iter().map(|(_, count)| count).sum::<u64>(),
        units::bytes(bytes(Cause::Asked)),
        units::bytes(bytes(Cause::Implied)),
        pipelines.collect::<String>(),
        ranks_line(seen),
    )
}

/// How many ranks are in which state, and which those are that do not run.
fn ranks_line(seen: &Snapshot) -> String {
    if seen.ranks.is_empty() {
        return String::new();
    }
    let many = seen.ranks.len() + seen.ranks_left_out;
    let ailing = seen.ranks.iter().filter(|rank| rank.state != RankState::Running);
    let ailing = ailing.map(|rank| format!(", rank {} {}", rank.rank, rank.state.name()));
    format!("; {many} ranks{}", ailing.collect::<String>())
}

fn moved(seen: &Snapshot, cause: Cause) -> u64 {
    seen.ledger.iter().filter(|entry| entry.cause == cause).map(|entry| entry.bytes).sum()
}

/// The state of a pipeline as text; empty while it runs normally.
fn state(seen: &PipelineSeen) -> String {
    let seconds = |us: u64| units::time(us as f64);
    match (seen.state, seen.stalled_us) {
        (RunState::Running, Some(us)) => format!(" stalled for {}", seconds(us)),
        (RunState::Running, None) if seen.frames == 0 => {
            format!(" has waited for its first frame for {}", seconds(seen.since_last_us))
        }
        (RunState::Ready, _) => " has not been started".into(),
        (RunState::Finished, _) => format!(" finished after {}", seconds(seen.elapsed_us)),
        (RunState::Failed, _) => format!(" failed after {}", seconds(seen.elapsed_us)),
        _ => String::new(),
    }
}

/// Rate of a pipeline.
fn rate(seen: &PipelineSeen) -> String {
    match seen.state {
        RunState::Finished | RunState::Failed => {
            format!("{:.1}/s on average", seen.average_per_second)
        }
        _ => format!("{:.1}/s", seen.frames_per_second),
    }
}

/// Everything in tables, with lines cut to the screen's width.
fn view(seen: &Snapshot, screen: Screen) -> String {
    let fences = seen.fences.iter().map(|(sync_method, count)| format!(" {sync_method} {count}"));
    let fences = match seen.fences.is_empty() {
        true => " none yet".to_owned(),
        false => fences.collect::<Vec<_>>().join(","),
    };
    let head = format!(
        "{}, process {}, {:.1} s\nhand-overs by sync method:{fences}\n",
        printable(&seen.program),
        seen.pid,
        seen.uptime_us as f64 / 1e6,
    );
    let pipelines: String = seen.pipelines.iter().map(|p| pipeline(p, screen)).collect();
    let ranks = ranks(seen, screen);
    fit(&(head + &ranks + &pipelines + &buffers(seen, screen) + &ledger(seen, screen)), screen)
}

/// The ranks of a job, a line for each of their pipelines.
fn ranks(seen: &Snapshot, screen: Screen) -> String {
    if seen.ranks.is_empty() {
        return String::new();
    }
    let head =
        ["rank", "host", "process", "state", "frames", "rate", "p99", "in flight", "implied"];
    let mut table = Table::new(head);
    for rank in &seen.ranks {
        let pipelines = rank.told.pipelines.iter().map(Some);
        let nothing = rank.told.pipelines.is_empty().then_some(None);
        pipelines.chain(nothing).for_each(|p| table.row(rank_cells(rank, p), ""));
    }
    let more = match seen.ranks_left_out {
        0 => String::new(),
        more => format!("and {more} more\n"),
    };
    format!("\n{}{more}", table.render(screen))
}

fn rank_cells(rank: &RankSeen, pipeline: Option<&PipelineSeen>) -> [Cell; 9] {
    let age = rank.told_us_ago.filter(|_| rank.state != RankState::Running);
    let age = age.map_or_else(String::new, |us| format!(", told {} ago", units::time(us as f64)));
    let state = pipeline.map(state).filter(|state| !state.is_empty());
    let state = state.map_or_else(String::new, |state| format!(",{state}"));
    let number = |text: Option<String>| Cell::number(text.unwrap_or_else(|| "-".into()));
    [
        Cell::number(rank.rank.to_string()),
        Cell::from(printable(&rank.host)),
        Cell::number(rank.pid.to_string()),
        Cell::from(format!("{}{age}{state}", rank.state.name())),
        number(pipeline.map(|p| p.frames.to_string())),
        number(pipeline.map(rate)),
        number(pipeline.and_then(|p| p.p99_us).map(|us| units::time(us as f64))),
        number(pipeline.map(|p| p.on_the_way.to_string())),
        Cell::number(units::bytes(rank.told.implied_bytes)),
    ]
}

fn pipeline(seen: &PipelineSeen, screen: Screen) -> String {
    let time = |us: Option<u64>| us.map_or_else(|| "-".into(), |us| units::time(us as f64));
    let mut table = Table::new(["stage", "device", "frames", "p50", "p99", "busy"]);
    for stage in &seen.stages {
        let busy = 100.0 * stage.busy_us as f64 / seen.elapsed_us.max(1) as f64;
        let cells = [
            Cell::from(printable(&stage.name)),
            Cell::from(printable(&stage.device)),
            Cell::number(stage.frames.to_string()),
            Cell::number(time(stage.p50_us)),
            Cell::number(time(stage.p99_us)),
            Cell::number(format!("{busy:.0} %")),
        ];
        table.row(cells, "");
    }
    format!(
        "\npipeline {}{}: {} frames, {}, p50 {}, p99 {}, {} in flight, {} dropped, {} incomplete\n{}",
        printable(&seen.name),
        state(seen),
        seen.frames,
        rate(seen),
        time(seen.p50_us),
        time(seen.p99_us),
        seen.on_the_way,
        seen.dropped,
        seen.incomplete,
        table.render(screen),
    )
}

fn buffers(seen: &Snapshot, screen: Screen) -> String {
    if seen.buffers.is_empty() {
        return "\nno buffers\n".into();
    }
    let head = ["buffer", "size", "home", "routes", "hand-overs", "last", "implied"];
    let mut table = Table::new(head);
    seen.buffers.iter().for_each(|buffer| table.row(buffer_cells(buffer), ""));
    let more = match seen.buffers_left_out {
        0 => String::new(),
        more => format!("and {more} more\n"),
    };
    format!("\n{}{more}", table.render(screen))
}

fn buffer_cells(buffer: &BufferSeen) -> [Cell; 7] {
    let routes =
        buffer.routes.iter().map(|route| format!("{} {}", printable(&route.to), route.kind));
    let last = buffer.last.as_ref().map_or_else(
        || "-".into(),
        |last| format!("{} -> {} by {}", printable(&last.from), printable(&last.to), last.sync),
    );
    [
        Cell::from(printable(&buffer.name)),
        Cell::number(units::bytes(buffer.bytes)),
        Cell::from(printable(&buffer.home)),
        Cell::from(routes.collect::<Vec<_>>().join(", ")),
        Cell::number(buffer.hand_overs.to_string()),
        Cell::from(last),
        Cell::number(units::bytes(buffer.implied_bytes)),
    ]
}

fn ledger(seen: &Snapshot, screen: Screen) -> String {
    if seen.ledger.is_empty() {
        return "\nnothing was copied\n".into();
    }
    let mut table = Table::new(["from", "to", "cause", "bytes", "operations"]);
    for entry in &seen.ledger {
        let cause = if entry.cause == Cause::Asked { "asked" } else { "implied" };
        let cells = [
            Cell::from(printable(&entry.from)),
            Cell::from(printable(&entry.to)),
            Cell::from(cause),
            Cell::number(units::bytes(entry.bytes)),
            Cell::number(entry.operations.to_string()),
        ];
        table.row(cells, "");
    }
    format!("\n{}", table.render(screen))
}

/// Publishes this process under this name; prints a warning on failure.
pub fn publish(hub: &onebuf::Hub, name: &str) -> Option<live::Published> {
    let name = format!("{name}-{}", std::process::id());
    hub.publish(&name)
        .inspect_err(|error| out::warn(format!("`onebuf top` cannot show this program: {error}")))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nobody_else() {
        let mut seen = Snapshot { program: "\x1b[2Jx".into(), pid: 7, ..Snapshot::default() };
        seen.pipelines.push(PipelineSeen { name: "a\nb".into(), ..PipelineSeen::default() });
        let text = view(&seen, Screen::default()) + &line(&seen);
        assert!(!text.contains('\x1b') && !text.contains("a\nb"), "{text:?}");
        assert!(text.contains("process 7") && text.contains("nothing was copied"));
    }

    fn pipeline_of(seen: PipelineSeen) -> Snapshot {
        let seen = PipelineSeen { name: "radar".into(), frames: 9, elapsed_us: 2_500_000, ..seen };
        Snapshot { pipelines: vec![seen], ..Snapshot::default() }
    }

    #[test]
    fn a_stall_and_an_end_are_told() {
        let running = || PipelineSeen {
            state: RunState::Running,
            frames_per_second: 3.25,
            ..Default::default()
        };
        let stalled = PipelineSeen { stalled_us: Some(16_000_000), ..running() };
        let finished = PipelineSeen {
            state: RunState::Finished,
            average_per_second: 3.6,
            ..Default::default()
        };
        for (seen, words) in [
            (running(), "radar: 9 frames, 3.2/s"),
            (stalled, "radar stalled for 16.00 s: 9 frames, 3.2/s"),
            (finished, "radar finished after 2.50 s: 9 frames, 3.6/s on average"),
        ] {
            let seen = pipeline_of(seen);
            let (view, line) = (view(&seen, Screen::default()), line(&seen));
            assert!(view.contains(words) && line.contains(words), "{words} in {view}{line}");
        }
    }

    fn job() -> Snapshot {
        let rank = |rank: u64, state| RankSeen {
            rank,
            host: "node\x1b7".into(),
            pid: 100 + rank as u32,
            state,
            told_us_ago: (rank != 2).then_some(7_000_000),
            ..RankSeen::default()
        };
        let mut ranks = vec![
            rank(0, RankState::Running),
            rank(1, RankState::Stopped),
            rank(2, RankState::Unknown),
        ];
        let line = PipelineSeen {
            frames: 9,
            state: RunState::Running,
            stalled_us: Some(8_000_000),
            ..Default::default()
        };
        ranks[1].told.pipelines = vec![line];
        Snapshot { pid: 100, ranks, ranks_left_out: 4, ..Snapshot::default() }
    }

    #[test]
    fn every_rank_has_a_line() {
        let (view, line) = (view(&job(), Screen::default()), line(&job()));
        assert!(line.contains("; 7 ranks, rank 1 stopped, rank 2 unknown"), "{line}");
        assert!(!view.contains('\x1b') && view.contains("and 4 more"), "{view}");
        for (pid, words) in [
            ("100", "running "),
            ("101", "stopped, told 7.00 s ago, stalled for 8.00 s"),
            ("102", "unknown "),
        ] {
            let row = view.lines().find(|row| row.contains(pid) && !row.contains("process"));
            assert!(row.is_some_and(|row| row.contains(words)), "{pid}: {view}");
        }
    }

    #[test]
    fn a_job_is_one_program() {
        assert!(has_all(&job(), &[102, 100, 101]));
        assert!(!has_all(&job(), &[100, 7]), "another program");
        assert!(!has_all(&Snapshot { pid: 100, ..Snapshot::default() }, &[100]), "no ranks");
    }

    #[test]
    fn lines_fit_a_narrow_screen() {
        let mut seen = pipeline_of(PipelineSeen::default());
        seen.pipelines[0].name = "フレーム".repeat(20);
        seen.fences = vec![(onebuf::SyncMethod::HostWait, u64::MAX); 5];
        seen.ranks = job().ranks;
        for room in [10, 40, 79, 80] {
            let screen = Screen { width: Some(room), ..Screen::default() };
            for line in view(&seen, screen).lines() {
                assert!(crate::screen::width(line) <= room, "{line}");
            }
        }
    }
}
