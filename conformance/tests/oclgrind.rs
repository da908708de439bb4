//! Kernels and hand-overs under Oclgrind, which interprets them and reports what breaks the rules of
//! OpenCL's memory: accesses out of bounds, races, uninitialised reads, use of mapped regions.
//!
//! It reports in its log, which has to stay empty, whatever this program's status; see `./dev`.

use onebuf::{Error, Hub, RouteKind, Rung};
use onebuf_conformance::{
    Machine, Step, assert_same, kinds, life, note, pairs, shared, step_model,
};
use std::time::Duration;

#[test]
fn rules_are_kept() {
    if std::env::var_os("ONEBUF_UNDER_OCLGRIND").is_none() {
        return note("skip: oclgrind: not running under it; `./dev test` does");
    }
    let machine = Machine::open(Hub::builder().verdicts(Default::default()));
    let device = machine.hub.device("Oclgrind").expect("Oclgrind's platform, and no other");
    assert_eq!(machine.hub.devices().len(), 2, "{:?}", machine.hub);
    life(&device).unwrap();
    for (from, to) in pairs(&machine.sides) {
        for kind in kinds(&machine.hub, from, to) {
            let Some(buffer) = shared(from, to, kind, Rung::SameQueue, 700) else { continue };
            let pending = buffer.write_async(.., vec![5; 700]);
            let mut model = pending.unwrap().wait(Duration::from_secs(20)).unwrap();
            for (n, side) in (0..).zip([from, to, to, from, to, from]) {
                side.step(&buffer, Step::nth(n)).unwrap();
                step_model(&mut model, Step::nth(n));
                // The host looks at what is there while the device may still read it.
                let (_view, map) = (buffer.read_on(&side.queue).unwrap(), buffer.map());
                match map {
                    Ok(map) => assert_same(&map, &model, &format!("{kind}")),
                    Err(Error::Unsupported { .. }) => assert_eq!(kind, RouteKind::Staged),
                    Err(error) => panic!("{kind}: {error}"),
                }
            }
        }
    }
}
