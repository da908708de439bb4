//! One foreign context with two devices. PoCL shows two only if an environment variable says so at its start, so
//! this runs in a separate process.

use super::{alone, context, hub, queue, twin, wrap, wrapped};
use onebuf::{CopyPolicy, ForeignBufferInfo};
use onebuf_conformance::{
    Side, Step, absent, assert_same,
    class_a::{ClassA, assert_restored},
    random_words, step_model,
};
use std::process::Command;

const CHILD: &str = "ONEBUF_TEST_TWO_DEVICES";
const ONE: &str = "no platform shows two devices";
const N: usize = 3000;

#[test]
fn two_devices_of_one_foreign_context() {
    if ClassA::of("Portable Computing Language").is_none() {
        return absent("PoCL", "not found");
    }
    // Other PoCL devices are tested in `relay.rs`.
    let mut said = ran("pthread pthread");
    if said.contains(ONE) {
        said = ran(&renamed("pthread pthread"));
    }
    if said.contains(ONE) {
        return absent(
            "two devices of PoCL",
            "this version of it shows fewer, whatever it is told",
        );
    }
    // The child really ran this test.
    assert!(said.contains("two devices took turns"), "{said}");
}

/// What PoCL calls these devices since version 4.0.
pub fn renamed(devices: &str) -> String {
    devices.replace("pthread", "cpu").replace("basic", "cpu-minimal")
}

/// What this test said in a process with these devices of PoCL; it must succeed.
fn ran(devices: &str) -> String {
    let this = std::env::current_exe().expect("this test's path");
    let mut child = Command::new(this);
    child.args(["--exact", "many_devices::child", "--nocapture"]);
    child.env("POCL_DEVICES", devices).env(CHILD, "1");
    let output = child.output().expect("the test program starts again");
    let said =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{}\n{}{}", output.status, said[0], said[1]);
    said.concat()
}

#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let _alone = alone("two devices");
    let Some(a) = ClassA::of_many_devices() else { return eprintln!("{ONE}") };
    assert_eq!(a.devices.len(), 2);
    let hub = hub();
    let mut model = random_words(1, N);
    let mem = a.words(&model);
    let second = a.queue_on(1);
    a.step(&second, &mem, N, Step::nth(0), &[]);
    a.finish(&second);
    step_model(&mut model, Step::nth(0));
    let before = a.reference_counts(&[&mem], &[]);
    // SAFETY: class A holds a reference.
    let info = unsafe { ForeignBufferInfo::query(&hub, mem.raw()) }.unwrap();
    assert_eq!(info.devices.len(), 2, "{info}");
    {
        let foreign = context(&hub, &a);
        let devices = foreign.devices();
        assert_eq!(devices.len(), 2);
        assert_ne!(devices[0].id(), devices[1].id());
        let sides: Vec<_> = devices.iter().map(|device| Side::open(device).unwrap()).collect();
        // Memory of a context belongs to all its devices: no copy and no plan is needed.
        let buffer = wrap(&hub, &mem).copies(CopyPolicy::Forbid).build().unwrap();
        for n in 1..9 {
            sides[n as usize % 2].step(&buffer, Step::nth(n)).unwrap();
            step_model(&mut model, Step::nth(n));
        }
        let owners = queue(&hub, &second);
        assert_eq!(owners.device().id(), devices[1].id(), "a queue is of its own device");
        buffer.hand_to(&owners).unwrap();
        a.step(&second, &mem, N, Step::nth(20), &[]);
        step_model(&mut model, Step::nth(20));
        buffer.written_until(&owners.fence()).unwrap();
        sides[0].step(&buffer, Step::nth(21)).unwrap();
        step_model(&mut model, Step::nth(21));
        assert_eq!(hub.ledger().implied_bytes(), 0);
        assert_same(&buffer.to_vec().unwrap(), &model, "both devices");
        // One device writes a part while the other writes another part.
        let halves = [0, 4096].map(|at| a.sub_buffer(&mem, 1, at, 4096));
        let parts = halves.each_ref().map(|half| wrapped(&hub, half));
        sides[0].step(&parts[0], Step::nth(30)).unwrap();
        sides[1].step(&parts[1], Step::nth(31)).unwrap();
        step_model(&mut model[..1024], Step::nth(30));
        step_model(&mut model[1024..2048], Step::nth(31));
        assert_same(&buffer.to_vec().unwrap(), &model, "a part each");
        // The same chip in the hub's own context is a different device.
        assert!(devices.iter().all(|device| device.id() != twin(&hub, &a).id()));
    }
    assert_same(&a.read(&a.queue, &mem, N), &model, "class A");
    drop(hub);
    assert_restored(&before, || a.reference_counts(&[&mem], &[]), "two devices");
    onebuf_conformance::note("two devices took turns");
}
