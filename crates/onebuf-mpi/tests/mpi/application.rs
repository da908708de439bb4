//! Who initialises MPI, who finalises it, and which library it is.

use crate::{
    launch,
    ranks::{SOON, everywhere, hub, join, value},
};
use onebuf::Error;
use onebuf_mpi::{Join, World};
use onebuf_sys::mpi::{Mpi, find};
use std::{env, process::Command, ptr, thread};

/// The application's own MPI, initialised by the calling thread.
struct Application(Mpi);

impl Application {
    fn new(level: impl Fn(&Mpi) -> i32) -> Self {
        let mpi = find::load(None, None).unwrap().unwrap();
        // SAFETY: MPI is not initialised yet.
        let got = unsafe { mpi.init_thread(ptr::null_mut(), ptr::null_mut(), level(&mpi)) };
        assert!(got.unwrap() >= level(&mpi));
        Self(mpi)
    }

    fn is_finalized(&self) -> bool {
        // SAFETY: allowed at any time.
        unsafe { self.0.finalized() }.unwrap() != 0
    }

    fn finalize(&self) {
        // SAFETY: this thread has initialised MPI, and nothing is under way.
        unsafe { self.0.finalize() }.unwrap();
    }
}

/// Every element goes around.
fn exchange(world: &World) {
    const N: usize = 10_000;
    let hub = hub();
    let (next, previous) = neighbours(world);
    let own: Vec<u32> = (0..N).map(|at| value(world.rank(), 0, at)).collect();
    let from = hub.buffer_from(&own).build().unwrap();
    let into = hub.buffer::<u32>(N).build().unwrap();
    let mut came = world.receive(&into, previous, 1).unwrap();
    world.send(&from, next, 1).unwrap().wait(SOON).unwrap();
    came.wait(SOON).unwrap();
    drop(came);
    let got = into.map().unwrap();
    assert!((0..N).all(|at| got[at] == value(previous, 0, at)));
}

fn neighbours(world: &World) -> (usize, usize) {
    let (rank, size) = (world.rank(), world.size());
    ((rank + 1) % size, (rank + size - 1) % size)
}

fn refused<R>(outcome: onebuf::Result<R>, says: &str) {
    let refused = outcome.err().unwrap();
    assert!(matches!(&refused, Error::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains(says), "{refused}");
}

#[test]
fn an_application_that_has_initialised_mpi_keeps_it() {
    everywhere(&[2], "application::rank_funneled");
    everywhere(&[2], "application::rank_multiple");
    everywhere(&[1], "application::rank_single");
}

#[test]
#[ignore = "a rank"]
fn rank_funneled() {
    let application = Application::new(|mpi| mpi.constants().thread_funneled);
    // Some libraries give more than was asked for.
    // SAFETY: MPI is initialised.
    let level = unsafe { application.0.query_thread() }.unwrap();
    if level != application.0.constants().thread_multiple {
        refused(Join::new().start(), "MPI_THREAD_MULTIPLE");
        thread::scope(|scope| {
            let elsewhere = scope.spawn(|| Join::new().scoped(|_| ()));
            refused(elsewhere.join().unwrap(), "the thread that has initialised MPI");
        });
    }
    for _ in 0..2 {
        let rank = Join::new().timeout(SOON).scoped(|world| {
            exchange(world);
            world.rank()
        });
        assert!(rank.unwrap() < 2);
        assert!(!application.is_finalized(), "it is the application's");
    }
    application.finalize();
    refused(Join::new().start(), "MPI after its end");
}

#[test]
#[ignore = "a rank"]
fn rank_multiple() {
    let application = Application::new(|mpi| mpi.constants().thread_multiple);
    for _ in 0..2 {
        let world = join();
        assert_eq!(world.library(), application.0.version());
        exchange(&world);
    }
    assert!(!application.is_finalized(), "it is the application's");
    // Two worlds at a time.
    let (one, two) = (join(), join());
    exchange(&two);
    exchange(&one);
    drop((one, two));
    application.finalize();
}

#[test]
#[ignore = "a rank"]
fn rank_single() {
    let application = Application::new(|mpi| mpi.constants().thread_single);
    // SAFETY: MPI is initialised.
    let level = unsafe { application.0.query_thread() }.unwrap();
    if level == application.0.constants().thread_single {
        refused(Join::new().start(), "MPI_THREAD_FUNNELED");
        refused(Join::new().scoped(|_| ()), "MPI_THREAD_FUNNELED");
    }
    application.finalize();
}

#[test]
fn mpi_is_finalised_by_the_one_who_has_initialised_it() {
    everywhere(&[2], "application::rank_ours");
}

#[test]
#[ignore = "a rank"]
fn rank_ours() {
    let world = join();
    assert!(!world.library().is_empty());
    exchange(&world);
    drop(world);
    refused(Join::new().start(), "MPI after its end");
}

#[test]
fn options_that_differ_are_refused_on_every_rank() {
    everywhere(&[3], "application::rank_options");
}

#[test]
#[ignore = "a rank"]
fn rank_options() {
    let rank = find_rank();
    let join = Join::new().timeout(SOON).agree("samples", 4096);
    let refused = join.agree("taps", if rank == 1 { 5 } else { 4 }).start().unwrap_err();
    assert!(matches!(&refused, Error::InvalidArgument(_)), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("taps: 4 (ranks 0, 2), 5 (rank 1)"), "{said}");
    assert!(!said.contains("samples"), "{said}");
}

/// The rank as the launcher tells it, before MPI is initialised.
fn find_rank() -> usize {
    let name =
        ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(|name| env::var(name).ok());
    name.unwrap().parse().unwrap()
}

#[test]
fn without_a_launcher_there_is_one_rank_and_no_mpi() {
    let world = Join::new().start().unwrap();
    assert_eq!((world.rank(), world.size(), world.library()), (0, 1, ""));
    exchange(&world);
    drop(world);
    assert!(find::loaded().unwrap().is_none(), "nothing was loaded");
}

#[test]
fn two_libraries_in_one_process_are_refused_with_their_names() {
    if launch::all().len() < 2 {
        return; // has said so
    }
    let mut alone = Command::new(env::current_exe().unwrap());
    alone.args(["--exact", "application::process_with_two", "--ignored", "--test-threads=1"]);
    let ended = alone.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}

#[test]
#[ignore = "a process of its own"]
fn process_with_two() {
    let first = find::load(Some("libmpi.so.40"), None).unwrap().unwrap();
    let refused = Join::new().library("libmpich.so.12").start().unwrap_err();
    assert!(matches!(&refused, Error::Unavailable { .. }), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("2 MPI libraries") && said.contains("libmpich.so"), "{said}");
    assert!(said.contains(first.library().unwrap().to_str().unwrap()), "{said}");
}
