//! Wrong arguments return the same errors as in every backend.

use onebuf_hal::{Backend, Device, Domain, Search, Source, testing::misuse};
use onebuf_toy::ToyBackend;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// Returns a number that no other device of this test has.
fn next_domain() -> Domain {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 32);
    Domain(NEXT.fetch_add(1, Ordering::Relaxed))
}

fn device() -> Arc<dyn Device> {
    let (libraries, notes) = (BTreeMap::new(), Mutex::default());
    let (probe, managed, earlier) = (None, false, Vec::new());
    let search = Search { libraries: &libraries, probe, managed, next_domain, earlier, notes };
    ToyBackend.discover(&search).unwrap().devices.remove(0)
}

#[test]
fn wrong_arguments_are_refused_as_by_every_backend() {
    let [toy, twin] = [device(), device()];
    misuse::beside_a_fake(&*toy, Some(&*twin), Source::default(), "touch");
}
