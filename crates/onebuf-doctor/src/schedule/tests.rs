//! Which helpers make which experiments. The helpers are scripts, which write a line to a file for each start and experiment.

use super::*;
use onebuf_core::{fake::FakeConfig, identity};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};
use tempfile::TempDir;

#[test]
fn memory_limits_helpers_first_and_then_their_buffers() {
    let gib = 1 << 30;
    assert_eq!(fitting(16, gib, u64::MAX), (16, gib));
    assert_eq!(fitting(8, gib, 12 * gib), (4, gib));
    assert_eq!(fitting(8, gib, 2 * gib), (1, 2 * gib / 3));
    assert_eq!(fitting(8, 0, gib), (8, 0));
}

#[test]
fn costs_complete_a_verdict_and_do_not_replace_its_state() {
    let verdict = |state, why: &str| Verdict { state, why: why.into(), ..Verdict::default() };
    let shares = verdict(VerdictState::Proven, "every page");
    let measured = Verdict { zero_copy: Some(true), ..verdict(VerdictState::Proven, "fast") };
    let both = with_costs(shares.clone(), measured);
    assert_eq!((&*both.why, both.zero_copy), ("every page; fast", Some(true)));
    let noisy = with_costs(shares.clone(), verdict(VerdictState::Declared, "not measured"));
    assert_eq!((&*noisy.why, noisy.state), ("every page; not measured", VerdictState::Declared));
    let crashed = with_costs(shares, verdict(VerdictState::Refuted, "crashed"));
    assert_eq!((&*crashed.why, crashed.state), ("crashed", VerdictState::Refuted));
}

/// Answers every request with `$VERDICT`, which a script sets. `$N` is the number of this start, `$COUNT` of this request.
const HEAD: &str = r#"#!/bin/sh
cd "${0%/*}" || exit 1
say() { echo; echo "$@"; }
verdict() { say verdict "{\"state\":\"$1\",\"zero_copy\":true,\"why\":\"$2\",\"sync\":\"host_wait\",\"handoff_us\":1,\"gb_per_s\":1,\"envelope\":null}"; }
say stage discovering devices
# A folder is created once, whichever of several helpers is first.
N=1; while ! mkdir start$N 2>/dev/null; do N=$((N + 1)); done
COUNT=0
while read -r WHAT FROM TO REST; do
    COUNT=$((COUNT + 1))
    echo "$N $WHAT $FROM $TO" >> log
    say devices "$DEVICES"
    say stage trying
"#;

/// A folder with a helper that runs `script` for each request.
fn helper(devices: &str, script: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("helper");
    let text = HEAD.replace("\"$DEVICES\"", &format!("'{devices}'"));
    fs::write(&program, format!("{text}\n{script}\ndone\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    folder
}

/// Tries the same route several times. Returns the verdicts and what the helpers did.
fn run(times: usize, width: usize, script: &str) -> (Vec<Verdict>, Vec<String>) {
    let builder = onebuf::builder().only(["host"]).verdicts(Default::default());
    let hub = builder.fake(FakeConfig::default()).build().unwrap();
    let [from, to] =
        ["host", "fake:0"].map(|id| hub.topology().node(hub.device(id).unwrap().index()));
    let devices = format!("{} and {}", identity::of_node(from), identity::of_node(to));
    let folder = helper(&devices, script);
    let program = folder.path().join("helper");
    let helper = Helper {
        program: &program,
        silence: Duration::from_secs(20),
        libraries: &[],
        apis: Vec::new(),
    };
    let schedule = Schedule { helper, width, reach: 0 };
    let kind = RouteKind::HostPointer;
    let tasks: Vec<Task<'_>> = (0..times).map(|_| Task { from, to, kind }).collect();
    let mut verdicts = vec![None; times];
    schedule
        .run(&tasks, &mut |step| {
            if let Stage::Ends(task, verdict) = step {
                assert!(verdicts[task].replace(verdict).is_none(), "two verdicts on one route");
            }
        })
        .unwrap();
    (verdicts.into_iter().map(|verdict| verdict.expect("a verdict")).collect(), log(folder.path()))
}

fn log(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("log")).unwrap();
    text.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn one_helper_makes_many_experiments_and_times_last() {
    let (verdicts, log) = run(3, 1, "verdict proven good");
    assert!(verdicts.iter().all(|verdict| verdict.state == VerdictState::Proven));
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict.why == "good; good" && verdict.handoff_us == Some(1.0))
    );
    assert_eq!(log, ["1 share", "1 share", "1 share", "1 time", "1 time", "1 time"]);
}

#[test]
fn several_helpers_share_the_work_and_one_times_alone() {
    let (verdicts, log) = run(8, 2, "sleep 0.05; verdict proven good");
    assert_eq!(verdicts.len(), 8);
    let timed: Vec<&String> = log.iter().filter(|line| line.ends_with("time")).collect();
    assert_eq!(timed.len(), 8);
    assert!(timed.iter().all(|line| *line == timed[0]), "{log:?}");
    assert!(log[..8].iter().all(|line| line.ends_with("share")), "{log:?}");
    assert!(log.iter().all(|line| line.starts_with(['1', '2'])), "{log:?}");
}

#[test]
fn a_failure_is_repeated_in_a_fresh_helper_before_it_counts() {
    let (verdicts, log) = run(1, 1, "verdict refuted wrong");
    assert_eq!((verdicts[0].state, &*verdicts[0].why), (VerdictState::Refuted, "wrong"));
    assert_eq!(log, ["1 share", "2 share"]);
    // A crash, too; and the helper that failed makes no other experiment.
    let (verdicts, log) =
        run(2, 1, "[ $N != 1 ] || [ $COUNT != 1 ] || kill -SEGV $$; verdict proven good");
    assert!(verdicts.iter().all(|verdict| verdict.state == VerdictState::Proven), "{verdicts:?}");
    // It is repeated after the others, and succeeds twice in a row.
    assert_eq!(log[..4], ["1 share", "2 share", "3 share", "4 share"]);
    assert!(log[4..].iter().all(|line| line == "2 time"), "{log:?}");
}

#[test]
fn what_fails_now_and_then_is_refuted() {
    let (verdicts, log) =
        run(1, 1, "case $N in 2) verdict proven good;; *) verdict refuted wrong;; esac");
    assert_eq!((verdicts[0].state, &*verdicts[0].why), (VerdictState::Refuted, "wrong"));
    assert_eq!(log, ["1 share", "2 share", "3 share"]);
}

/// Costs that cannot be measured are tried again, and leave the route declared.
#[test]
fn what_cannot_be_measured_stays_declared() {
    let noisy =
        "case $WHAT in share) verdict proven good;; *) verdict declared 'not measured';; esac";
    let (verdicts, log) = run(1, 1, noisy);
    assert_eq!(verdicts[0].state, VerdictState::Declared);
    assert_eq!(verdicts[0].why, "good; not measured");
    assert_eq!(log, ["1 share", "1 time", "2 time"]);
}

#[test]
fn a_helper_with_other_devices_is_an_error() {
    let builder = onebuf::builder().only(["host"]).verdicts(Default::default());
    let hub = builder.fake(FakeConfig::default()).build().unwrap();
    let [from, to] =
        ["host", "fake:0"].map(|id| hub.topology().node(hub.device(id).unwrap().index()));
    let folder = helper("others", "verdict proven good");
    let program = folder.path().join("helper");
    let helper = Helper {
        program: &program,
        silence: Duration::from_secs(20),
        libraries: &[],
        apis: Vec::new(),
    };
    let schedule = Schedule { helper, width: 2, reach: 0 };
    let tasks =
        [Task { from, to, kind: RouteKind::Staged }, Task { from, to, kind: RouteKind::Staged }];
    let error = schedule.run(&tasks, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("sees other devices: others"), "{error}");
}
