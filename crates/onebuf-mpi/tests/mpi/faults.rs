//! MPI calls that fail, one after another: each is an error of the call that needs it, never a hang.

use crate::{
    ranks::{SOON, hub, on_each, value},
    turns::turning,
};
use onebuf::{
    Buffer, Error, Hub, Probe, Result,
    pipeline::{Filled, Pipeline},
};
use onebuf_mpi::{CornerTurn, Join, sink, source};
use onebuf_sys::mpi::find;
use std::{collections::BTreeSet, ptr, sync::Arc, thread, time::Duration};

const SHORT: Duration = Duration::from_secs(1);
/// MPI_ERR_OTHER is 15 or 16, MPI_ERR_INTERN 16 or 17, by the interface.
const CODE: i32 = 16;

#[test]
fn every_call_may_fail() {
    on_each(|mpi| drop(mpi.run(1, "faults::rank_faults", &[])));
}

/// Messages, calls of all ranks, a stream and a corner turn, of one rank with itself.
fn work(hub: &Hub, probe: &Arc<Probe>, limit: Duration) -> Result<()> {
    const N: usize = 1000;
    let world = Join::new().timeout(limit).probe(probe.clone()).start()?;
    let own: Vec<u32> = (0..N).map(|at| value(0, 0, at)).collect();
    let (from, into) = (hub.buffer_from(&own).build()?, hub.buffer::<u32>(N).build()?);
    // A receive that is given up, and one that is not. The first has begun when the barrier is over: commands keep their order.
    let given_up = world.receive(&into, 0, 2)?;
    world.barrier(limit)?;
    drop(given_up);
    let mut came = world.receive(&into, 0, 1)?;
    let mut sent = world.send(&from, 0, 1)?;
    // Whichever fails: the other would wait for it.
    while !(came.is_done()? & sent.is_done()?) {
        thread::yield_now();
    }
    came.wait(limit)?;
    sent.wait(limit)?;
    drop((came, sent));
    assert_eq!(into.to_vec()?, own);
    world.barrier(limit)?;
    world.broadcast(&into, 0)?.wait(limit)?;
    let slot = |_| hub.buffer::<u32>(N).build();
    let end = |frame| Ok(if frame < 5 { Filled::Frame } else { Filled::End });
    let mut out = Pipeline::builder(2, slot)
        .source(|_, frame| end(frame))
        .sink_overlapped(sink::Mpi::new(&world, 0)?.drain(|slot: &Buffer<u32>| slot))
        .build()?;
    let mut back = Pipeline::builder(2, slot)
        .source_overlapped(source::Mpi::new(&world, 0)?.feed(|slot: &Buffer<u32>| slot))
        .sink(|_, _| Ok(()))
        .build()?;
    let [sent, came] = thread::scope(|scope| {
        let sent = scope.spawn(|| out.run());
        [back.run(), sent.join().unwrap()]
    });
    sent.and(came).map_err(Error::from)?;
    let turn = CornerTurn::new(&world, 3, 50);
    turning(hub, turn, [3, 50], 2, 5).build()?.run().map_err(Error::from)?;
    Ok(())
}

#[test]
#[ignore = "a rank"]
fn rank_faults() {
    let hub = hub();
    // The application's MPI: one that onebuf finalises could not be initialised again.
    let mpi = find::load(None, None).unwrap().unwrap();
    let level = mpi.constants().thread_multiple;
    // SAFETY: not initialised yet.
    unsafe { mpi.init_thread(ptr::null_mut(), ptr::null_mut(), level) }.unwrap();
    for comm in [mpi.constants().comm_world, mpi.constants().comm_self] {
        // SAFETY: MPI is initialised.
        unsafe { mpi.comm_set_errhandler(comm, mpi.constants().errors_return) }.unwrap();
    }
    let probe = Probe::new();
    work(&hub, &probe, SOON).unwrap();
    assert!(probe.live().is_empty(), "{:?}", probe.live());
    let (calls, names) = (probe.calls(), BTreeSet::from_iter(probe.trace()));
    assert!(names.len() >= 12, "{names:?}");
    for call in names {
        let probe = Probe::new();
        probe.fail_always(call, CODE);
        // A receive that cannot be given up stays.
        let stays = call == "MPI_Cancel";
        let outcome = work(&hub, &probe, if stays { SHORT } else { SOON });
        assert_eq!(probe.failed(), Some(call), "{outcome:?}");
        // What is only told of in logs: the work is done.
        let told =
            ["MPI_Request_free", "MPI_Comm_free", "MPI_Type_free", "MPI_Cancel", "MPI_Ibarrier"];
        // What a library says of devices changes nothing: without an answer there is none.
        let question = call.starts_with("MPIX_Query_");
        if question {
            let claim = Join::new().probe(probe).start().unwrap().gpu_claim();
            let asked = if call.contains("cuda") { claim.cuda } else { claim.hip };
            assert_eq!(asked, None, "{call}");
        }
        let good = outcome.is_err() || told.contains(&call);
        assert!(if question { outcome.is_ok() } else { good }, "{call}: {outcome:?}");
        let late = matches!(&outcome, Err(Error::Timeout { .. }));
        assert!(!late || stays, "{call}: {outcome:?}");
    }
    // One call alone: it may end one side of an exchange, and the other one waits for its limit.
    for n in (1..calls).step_by(23) {
        let probe = Probe::new();
        probe.fail_nth(n, CODE);
        let _either = work(&hub, &probe, SHORT);
    }
    // SAFETY: this thread has initialised MPI.
    unsafe { mpi.finalize() }.unwrap();
}
