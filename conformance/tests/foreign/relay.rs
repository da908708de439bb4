//! Two devices of one foreign context and a third of another platform, one after the other on one memory: class A transforms
//! on an out-of-order queue of the first, onebuf multiplies the spectrum on the third, class A transforms back on an in-order
//! queue of the second.
//!
//! PoCL reads the variable that selects its devices at its start, so each selection is a separate process. Its device `basic`
//! hangs in the driver if a command has to wait; a process that hangs is killed, and the test fails. Since PoCL 4.0 the devices have
//! other names.

use super::{
    alone, hub,
    many_devices::renamed,
    owners, queue,
    raw::bits,
    reference::{FFT_ERROR, relative_error, samples},
    turner::Turner,
};
use onebuf::{Buffer, Complex32, ForeignBufferInfo, Hub, prelude::*};
use onebuf_conformance::{
    absent,
    class_a::{ClFft, ClassA, Own, Plan},
    note,
};
use onebuf_sys::opencl::{ClMem, ClQueue, consts::CL_MEM_READ_WRITE};
use std::{
    fs::File,
    io::Read,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

const POCL: &str = "Portable Computing Language";
/// In a child's environment: the order of the two devices in the context.
const CHILD: &str = "ONEBUF_TEST_RELAY";
const ONE: &str = "no two devices";
const ROUNDS: usize = 20;
/// A sub-buffer of this length is aligned as every platform requires.
const POINTS: usize = 512;
const I: Complex32 = Complex32::new(0.0, 1.0);
/// A child needs a few seconds, most of them for compilers.
const LIMIT: Duration = Duration::from_secs(120);

/// One process for each pair of devices. The order in the variable does not matter: `basic` is always PoCL's first.
#[test]
fn two_threaded_devices() {
    relay("pthread pthread", "forwards");
}

#[test]
fn two_basic_devices() {
    relay("basic basic", "forwards");
}

#[test]
fn from_a_basic_to_a_threaded_device() {
    relay("basic pthread", "forwards");
}

#[test]
fn from_a_threaded_to_a_basic_device() {
    relay("pthread basic", "backwards");
}

fn relay(devices: &str, order: &str) {
    let thirds = others();
    if thirds.is_empty() {
        return;
    }
    let _alone = alone("a relay of three devices");
    let mut said = ran(devices, order);
    if said.contains(ONE) {
        said = ran(&renamed(devices), order);
    }
    if said.contains(ONE) {
        return absent(
            "two devices of PoCL",
            "this version of it shows fewer, whatever it is told",
        );
    }
    for third in thirds {
        let relays = said.matches(&format!(" by {third} to ")).count();
        assert_eq!(relays, 4, "{devices}: whole and part, in place and not, by {third}\n{said}");
    }
}

/// What a relay in a process of its own said; it must succeed.
fn ran(devices: &str, order: &str) -> String {
    let (ended, said) = run(devices, order);
    let Some(status) = ended else { panic!("{devices}: no end after {LIMIT:?}\n{said}") };
    assert!(status.success(), "{devices}: {status}\n{said}");
    said
}

/// The platforms beside PoCL; none, after a printed skip, without PoCL or without another one.
fn others() -> Vec<String> {
    let mut names: Vec<_> = owners().into_iter().map(|a| a.platform).collect();
    if names.is_empty() {
        return names;
    }
    let count = names.len();
    names.retain(|name| name != POCL);
    if names.len() == count {
        absent(POCL, "no device of this platform");
        names.clear();
    } else if names.is_empty() {
        absent("a platform beside PoCL", "there is none");
    }
    names
}

/// Runs this test program again with a time limit; returns its exit status, unless it was killed, and its output.
fn run(devices: &str, order: &str) -> (Option<ExitStatus>, String) {
    let said = std::env::temp_dir().join(format!("onebuf-relay-{}-{order}", std::process::id()));
    let file = File::create(&said).expect("a file for what the child says");
    let mut child = Command::new(std::env::current_exe().expect("this test's path"));
    child.args(["--exact", "relay::child", "--nocapture"]).stdin(Stdio::null());
    child.env("POCL_DEVICES", devices).env(CHILD, order);
    child.stdout(file.try_clone().expect("one file for both")).stderr(file);
    let mut child = child.spawn().expect("the test program starts again");
    let ended = wait(&mut child);
    let mut text = String::new();
    File::open(&said).and_then(|mut file| file.read_to_string(&mut text)).expect("what it said");
    std::fs::remove_file(&said).expect("our own file");
    (ended, text)
}

fn wait(child: &mut Child) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("a child of ours");
    child.wait().expect("a child of ours");
    None
}

#[test]
fn child() {
    let Some(order) = std::env::var_os(CHILD) else { return };
    let _alone = alone("a relay");
    // A version that does not know the names shows no device at all.
    let a = ClassA::of_all_devices(POCL, order == "backwards").filter(|a| a.devices.len() > 1);
    let Some(a) = a else { return note(ONE) };
    let library = ClFft::open().expect("clFFT");
    let [first, second] = [0, 1].map(|at| a.device_name(at));
    for third in ClassA::all().iter().map(|a| &*a.platform).filter(|name| *name != POCL) {
        for (part, in_place) in [(true, true), (true, false), (false, true), (false, false)] {
            Relay::new(&a, &library, part).run(third, in_place);
            let what = if part { "a part" } else { "the whole" };
            let way = if in_place { "in place" } else { "by copies" };
            note(&format!("relay: {what}, {way}, from {first} by {third} to {second}"));
        }
    }
}

/// Class A's objects.
struct Relay<'t> {
    a: &'t ClassA,
    queues: [Own<ClQueue>; 2],
    plans: [Plan<'t>; 2],
    whole: Own<ClMem>,
    /// The memory that is transformed, and its numbers.
    mem: Own<ClMem>,
    x: Vec<Complex32>,
}

impl<'t> Relay<'t> {
    fn new(a: &'t ClassA, library: &'t ClFft, part: bool) -> Self {
        let queues = [a.unordered_queue_on(0), a.queue_on(1)];
        let plans = queues.each_ref().map(|queue| library.plan(a, queue, POINTS));
        let x = samples(5, 3 * POINTS);
        let whole = a.words(bits(&x));
        let bytes = POINTS * size_of::<Complex32>();
        let (mem, from) = match part {
            true => (a.sub_buffer(&whole, CL_MEM_READ_WRITE, bytes, bytes), POINTS),
            false => (whole.clone(), 0),
        };
        Self { a, queues, plans, whole, mem, x: x[from..from + POINTS].to_vec() }
    }

    fn run(&self, third: &str, in_place: bool) {
        let hub = hub();
        let before = self.references();
        let third = hub.device(third).expect("it was there before");
        let turner = Turner::on(&third);
        let mut turned = self.x.clone();
        for round in 0..ROUNDS {
            let seen = self.round(&hub, &turner, in_place, round);
            turned.iter_mut().for_each(|x| *x *= I);
            let error = relative_error(&seen, &turned);
            assert!(error < FFT_ERROR, "{error} in round {round} by {third}");
        }
        // Nothing is wrapped any more, and no other object holds class A's memory.
        self.assert_restored(&hub, &before, "with a kernel that had it last");
        drop((turner, third, hub));
        // Another hub only asks.
        self.assert_restored(&super::hub(), &before, "at the end");
    }

    /// The reference counts of the whole buffer and of the transformed part.
    fn references(&self) -> Vec<u32> {
        self.a.reference_counts(&[&self.whole, &self.mem], &[]).buffers
    }

    fn assert_restored(&self, hub: &Hub, before: &[u32], when: &str) {
        for (mem, &before) in [&self.whole, &self.mem].into_iter().zip(before) {
            // SAFETY: class A holds a reference.
            let rest = unsafe {
                ForeignBufferInfo::at_rest(hub, mem.raw(), before, Duration::from_secs(5))
            };
            assert_eq!(rest.expect(when).reference_count, before, "{when}");
        }
    }

    /// One round, in which class A waits only for its own read.
    fn round(&self, hub: &Hub, by: &Turner, in_place: bool, round: usize) -> Vec<Complex32> {
        let [first, second] = &self.queues;
        let done = self.plans[0].forward(first.get(), self.mem.get(), &[]);
        // SAFETY: class A holds references, and uses the memory again only after `hand_to`.
        let (done, builder) = unsafe {
            (hub.wrap_event(done.raw()).unwrap(), hub.wrap_buffer::<Complex32>(self.mem.raw()))
        };
        let builder =
            builder.after(&done).shared_with([&by.queue.device()]).trust_declared(in_place);
        let spectrum: Buffer<Complex32> = builder.build().unwrap();
        by.turn(&spectrum, I);
        spectrum.hand_to(&queue(hub, second)).unwrap();
        // Dropped before class A continues, or afterwards.
        let kept = (round % 2 == 1).then_some(spectrum);
        self.plans[1].backward(second.get(), self.mem.get(), &[]);
        drop(kept);
        let words = self.a.read(second, &self.mem, 2 * POINTS);
        bytemuck::cast_slice(&words).to_vec()
    }
}
