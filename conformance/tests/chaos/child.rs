//! The other processes: a sender of frames, and a peer that uses a shared buffer.

use crate::senders;
use onebuf::{CopyPolicy, Hub, peer::Attach};
use std::{
    ffi::OsStr,
    io::Read,
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

const PART: &str = "ONEBUF_TEST_CHAOS";
const TARGET: &str = "ONEBUF_TEST_TARGET";
pub const SOON: Duration = Duration::from_secs(60);

/// A process that ends when its standard input is closed, or with this object.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
}

impl Process {
    /// Starts this program with a part to play.
    pub fn start(part: &str, target: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "child::part", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(PART, part).env(TARGET, target);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let input = child.stdin.take();
        Self { child, input }
    }

    /// Kills it (`SIGKILL`), wherever it is.
    pub fn kill(mut self) {
        self.child.kill().expect("a process of ours");
        self.child.wait().expect("it ends");
    }

    /// Asks it to end, and checks that it did what it had to.
    pub fn finish(mut self) {
        self.input.take();
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "started by the test of this program, as another process"]
fn part() {
    let [part, target] = [PART, TARGET].map(|name| std::env::var(name).expect("set by the parent"));
    match part.as_str() {
        "sender" => senders::send(&target, is_input_closed()),
        "peer" => visit(&target),
        other => panic!("no such part: {other}"),
    }
}

/// A function that tells whether the parent has closed the standard input.
fn is_input_closed() -> impl Fn() -> bool {
    let reader = std::thread::spawn(|| {
        // An error is an end, too.
        let _ = std::io::stdin().read(&mut [0]);
    });
    move || reader.is_finished()
}

/// Adds one to every element in each of its turns.
fn visit(name: &str) {
    let hub: Hub =
        onebuf::builder().only(["host"]).copies(CopyPolicy::Allow).build().expect("the host");
    let mut there = Attach::to(name).open::<u32>(&hub, |builder| builder).expect("the owner");
    // The owner closes the connection when it needs no more turns.
    while there.wait(SOON).is_ok() {
        let mut all = there.buffer().to_vec().expect("our turn");
        all.iter_mut().for_each(|x| *x += 1);
        there.buffer().write(&all).expect("our turn");
        if there.hand_over().is_err() {
            break;
        }
    }
}
