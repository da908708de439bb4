//! What the end of a helper says about its route. The helpers are scripts.

use super::*;
use onebuf_core::fake::FakeConfig;
use onebuf_hal::{RouteKind, testing::meter::measure};
use std::{fs, io, os::unix::fs::PermissionsExt};

const BEGIN: &str = "say stage sharing";

/// The verdict on a route whose helper runs this script. `$DEVICES` holds the expected devices.
fn verdict(script: &str) -> Verdict {
    let builder = onebuf::builder().only(["host"]);
    let hub = builder.verdicts(Default::default()).fake(FakeConfig::default()).build().unwrap();
    let [from, to] = ["host", "fake:0"].map(|id| hub.device(id).unwrap().index());
    let [from, to] = [from, to].map(|device| hub.topology().node(device).clone());
    let devices = format!("{} and {}", identity::of_node(&from), identity::of_node(&to));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("helper");
    let head = "#!/bin/sh\nsay() { echo; echo \"$@\"; }\nsay stage discovering devices\n";
    fs::write(&program, format!("{head}DEVICES='{devices}'\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let silence = Duration::from_millis(600);
    let helper = Helper { program: &program, silence, libraries: &[], apis: Vec::new() };
    helper.run(&from, &to, What::Share(RouteKind::HostPointer, 0)).unwrap()
}

#[track_caller]
fn expect(script: &str, state: VerdictState, why: &str) {
    let verdict = verdict(script);
    assert_eq!(verdict.state, state, "{script}: {}", verdict.why);
    assert!(verdict.why.contains(why), "no `{why}` in: {}", verdict.why);
}

#[test]
fn nothing_that_happens_before_the_experiment_refutes() {
    expect("sleep 600", VerdictState::Declared, "not known: the helper was silent");
    expect("kill -STOP $$", VerdictState::Declared, "not known: the helper was silent");
    expect("kill -SEGV $$", VerdictState::Declared, "not tried: crashed: signal 11");
    expect("kill -KILL $$", VerdictState::Declared, "not tried: ended by signal 9");
    expect("exit 1", VerdictState::Declared, "not tried: the helper gave up");
}

#[test]
fn in_the_experiment_what_a_driver_can_do_refutes() {
    let begun = |script: &str| format!("say devices $DEVICES\n{BEGIN}\n{script}");
    expect(&begun("sleep 600"), VerdictState::Refuted, "hung: nothing for 0.6 s while sharing");
    expect(
        &begun("kill -SEGV $$"),
        VerdictState::Refuted,
        "crashed: signal 11 (SIGSEGV) while sharing",
    );
    // Signals from other processes do not refute.
    expect(&begun("kill -STOP $$"), VerdictState::Declared, "not known: the helper was stopped");
    expect(&begun("kill -KILL $$"), VerdictState::Declared, "not tried: ended by signal 9");
    expect(&begun("kill -TERM $$"), VerdictState::Declared, "not tried: ended by signal 15");
}

/// A wait that times out in a helper that was stopped meanwhile.
#[test]
fn a_wait_that_timed_out_is_excused_by_a_stop() {
    let late = format!("say stage {}", experiment::TIMED_OUT);
    let refuted = serde_json::to_string(&refuted("timed out after 480 ms".into())).unwrap();
    let end = format!("{late}\nsay verdict '{refuted}'");
    let begun = format!("say devices $DEVICES\n{BEGIN}");
    expect(&format!("{begun}\n{end}"), VerdictState::Refuted, "timed out");
    let stop = "(sleep 0.4; kill -CONT $$) & kill -STOP $$";
    expect(&format!("{begun}\n{stop}\n{end}"), VerdictState::Declared, "could not run meanwhile");
    // A failure other than a timeout counts even after a stop.
    let wrong = format!("{begun}\n{stop}\nsay verdict '{refuted}'");
    expect(&wrong, VerdictState::Refuted, "timed out");
}

#[test]
fn lines_are_heard_whole_and_noise_in_pieces() {
    let heard = |text: &[u8]| lines_of(text).collect::<Vec<_>>();
    assert_eq!(heard(b"stage one\n\nverdict {}\nlast"), ["stage one", "", "verdict {}", "last"]);
    assert_eq!(heard(b"\xff\n"), ["\u{fffd}"]);
    assert!(heard(b"").is_empty());
    let noise = io::repeat(b'a').take(32 << 20);
    let (pieces, taken) = measure(|| lines_of(noise).count());
    assert_eq!(pieces, 512);
    assert!(taken.peak < 1 << 20, "{taken}");
}
