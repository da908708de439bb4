//! The helper's side of an experiment: a process that the doctor starts and gives one experiment after the other.
//!
//! The helper reads requests from standard input, one line each. It writes `stage <text>` before each step, `devices <text>`
//! when an experiment begins, and `verdict <json>` at its end. If no line arrives within the silence limit, the driver hangs in
//! that stage. A verdict on sharing has no costs; one on costs repeats nothing about sharing.

use super::{
    experiment, graft, large, life,
    request::{Request, What},
    subject::Sides,
};
use onebuf_core::{Hub, HubBuilder, identity};
use onebuf_hal::{Error, Result};
use std::{
    io::{BufRead, Write},
    sync::mpsc,
    thread,
    time::Duration,
};

/// The first command-line argument of a helper.
pub const HELPER_COMMAND: &str = "onebuf-doctor-helper";

/// Runs experiments and exits if this process was started as a helper; otherwise returns. Call it at the start of `main`,
/// before any driver is loaded. Pass the builder of the hub whose routes are tried, with the same backends. Libraries,
/// excluded APIs and timeouts come from the doctor.
pub fn helper_main(builder: HubBuilder) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [command, wait_ms, apis @ ..] = args.as_slice()
        && command == HELPER_COMMAND
    {
        let builder = if apis.is_empty() { builder } else { builder.only(apis) };
        std::process::exit(match serve(builder, wait_ms) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("{error}");
                1
            }
        });
    }
}

/// Answers requests until the doctor closes standard input. Every result is written to standard output at once.
fn serve(builder: HubBuilder, wait_ms: &str) -> Result<()> {
    let wait_ms =
        wait_ms.parse().map_err(|_| Error::invalid(format!("`{wait_ms}` is not a number")))?;
    let requests = requests()?;
    say("stage", "discovering devices");
    let builder = builder.timeout(Duration::from_millis(wait_ms));
    let hub = builder.verdicts(Default::default()).build()?;
    let mut sides = Sides::default();
    while let Ok(request) = requests.recv() {
        answer(&hub, &mut sides, &request.parse()?)?;
    }
    Ok(())
}

fn answer(hub: &Hub, sides: &mut Sides, request: &Request) -> Result<()> {
    let of = |id: &str| hub.device(id).map(|d| identity::of_node(hub.topology().node(d.index())));
    let ids = [&*request.from, &*request.to];
    say("devices", &format!("{} and {}", of(ids[0])?, of(ids[1])?));
    let mut tell = |stage: &str| say("stage", stage);
    let verdict = match request.what {
        What::Share(kind, reach) => experiment::share(hub, sides, ids, kind, reach, &mut tell),
        What::Time(kind, sync) => experiment::time(hub, sides, ids, kind, sync, &mut tell),
        What::Graft => graft::run(hub, ids, &mut tell),
        What::Life => life::run(hub, ids[0], &mut tell),
        What::Large(bytes) => large::run(hub, ids[0], bytes, &mut tell),
    };
    let text = serde_json::to_string(&verdict).map_err(|e| Error::invalid(e.to_string()))?;
    say("verdict", &text);
    Ok(())
}

/// The lines of standard input. Its end, when the doctor exits for any reason, ends this process and what its drivers
/// started; a hanging driver does not block this thread.
fn requests() -> Result<mpsc::Receiver<String>> {
    let (send, requests) = mpsc::channel();
    let watch = move || {
        let mut is_whole = true;
        for line in std::io::stdin().lock().lines() {
            // Without a receiver this process is about to exit by itself.
            is_whole &= line.is_ok_and(|line| send.send(line).is_ok());
            if !is_whole {
                break;
            }
        }
        let (own, group) = (rustix::process::getpid(), rustix::process::getpgrp());
        if own == group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        std::process::exit(if is_whole { 1 } else { 2 });
    };
    let thread = thread::Builder::new().name("onebuf-doctor".into()).spawn(watch);
    thread.map(|_| requests).map_err(|error| Error::Unavailable {
        what: "a thread of the doctor's helper".into(),
        tried: Vec::new(),
        reason: error.to_string(),
    })
}

fn say(word: &str, text: &str) {
    let mut out = std::io::stdout().lock();
    // Starts a new line, because a driver may have left one unfinished. Errors are ignored: if the parent is gone, there is
    // no reader.
    let _ = writeln!(out, "\n{word} {}", text.replace('\n', " ")).and_then(|()| out.flush());
}
