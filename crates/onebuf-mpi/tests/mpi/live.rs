//! All ranks in the live view of rank 0: those that work, that are stopped, that have ended, and that are gone.

use crate::{
    failures::{FOLDER, UNNOTICED, leave},
    launch::wait_for,
    ranks::{SOON, everywhere, hub, join, on_each},
};
use onebuf::{
    Hub,
    live::{Published, RankSeen, RankState, Viewer},
    prelude::*,
};
use onebuf_mpi::{LiveRanks, World};
use std::{env, fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

const RANKS: usize = 3;

/// Publishes a hub in a private folder.
fn published(hub: &Hub) -> (tempfile::TempDir, Published) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let published = hub.publish(folder.path().join("x.sock").to_str().unwrap()).unwrap();
    (folder, published)
}

fn attach(published: &Published) -> Viewer {
    Viewer::attach(published.path().to_str().unwrap(), SOON).unwrap()
}

/// The first view of the ranks that satisfies the condition.
#[track_caller]
fn until(viewer: &mut Viewer, fits: impl Fn(&[RankSeen]) -> bool) -> Vec<RankSeen> {
    let mut last = Vec::new();
    for _ in 0..60 {
        last = viewer.next(SOON).unwrap().ranks;
        if fits(&last) {
            return last;
        }
    }
    panic!("it never was so: {last:?}");
}

fn states(ranks: &[RankSeen]) -> Vec<RankState> {
    ranks.iter().map(|rank| rank.state).collect()
}

/// Rank 0 sees what all tell; rank 1 has no live view of its own.
#[test]
#[ignore = "a rank of the test below"]
fn telling() {
    let (hub, world) = (hub(), join());
    let (rank, size) = (world.rank(), world.size());
    let (_folder, published) = published(&hub);
    let shown = LiveRanks::open(&world, (rank != 1).then_some(&published)).unwrap();
    assert!(matches!(LiveRanks::open(&world, None), Err(onebuf::Error::Busy { .. })));
    let build = |_| hub.buffer::<u8>(100).build().unwrap();
    let _buffers: Vec<_> = (0..rank + 1).map(build).collect();
    if rank == 0 {
        let mut viewer = attach(&published);
        let has_all = |rank: &RankSeen| match rank.rank {
            1 => rank.told_us_ago.is_some() && rank.told.buffers == 0,
            number => rank.told.buffers == number + 1,
        };
        let ranks = until(&mut viewer, |ranks| ranks.iter().all(has_all));
        assert_eq!(states(&ranks), vec![RankState::Running; size]);
        for (peer, seen) in world.peers().iter().zip(&ranks) {
            let told = (seen.rank as usize, seen.host.as_str(), seen.pid);
            assert_eq!(told, (peer.rank, peer.host.as_str(), peer.pid));
        }
    }
    world.barrier(SOON).unwrap();
    if rank == 2 {
        drop(shown);
        world.barrier(SOON).unwrap();
        return;
    }
    if rank == 0 && size > 2 {
        let ranks = until(&mut attach(&published), |ranks| ranks[2].state == RankState::Ended);
        assert_eq!(states(&ranks[..2]), [RankState::Running; 2]);
        assert_eq!(ranks[2].told.buffers, 3, "what it told last");
    }
    world.barrier(SOON).unwrap();
    drop(shown);
    // Again, in the same world.
    drop(LiveRanks::open(&world, None));
}

#[test]
fn rank_0_shows_what_all_ranks_tell() {
    everywhere(&[1, 3], "live::telling");
}

/// Rank 2 is stopped for a while, then rank 1 dies.
#[test]
#[ignore = "a rank of the test below"]
fn ailing() {
    let (hub, world) = (hub(), join());
    // Launchers ask ranks to end before they force them.
    // SAFETY: ignoring a signal calls nothing.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    let (_folder, published) = published(&hub);
    let shown = LiveRanks::open(&world, Some(&published)).unwrap();
    world.barrier(SOON).unwrap();
    match world.rank() {
        0 => watch(&world, &published),
        1 => {
            let folder = PathBuf::from(env::var_os(FOLDER).unwrap());
            wait_for(&folder.join("seen0"), 4 * SOON).expect("rank 0 has seen a stop");
            // SAFETY: this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        rank => {
            let folder = PathBuf::from(env::var_os(FOLDER).unwrap());
            wait_for(&folder.join("said0"), 4 * SOON).expect("rank 0 has seen a death");
            leave("said", rank, "");
        }
    }
    drop(shown);
}

fn watch(world: &World, published: &Published) {
    let mut viewer = attach(published);
    until(&mut viewer, |ranks| states(ranks) == [RankState::Running; RANKS]);
    let stopped = world.peers()[2].pid as i32;
    let signal = |signal| {
        // SAFETY: the process is a rank of this test.
        assert_eq!(unsafe { libc::kill(stopped, signal) }, 0);
    };
    signal(libc::SIGSTOP);
    let ranks = until(&mut viewer, |ranks| ranks[2].state == RankState::Stopped);
    assert_eq!(states(&ranks[..2]), [RankState::Running; 2]);
    signal(libc::SIGCONT);
    until(&mut viewer, |ranks| states(ranks) == [RankState::Running; RANKS]);
    leave("seen", 0, "");
    let ranks = until(&mut viewer, |ranks| ranks[1].state == RankState::Gone);
    assert_eq!(ranks[2].state, RankState::Running);
    assert!(ranks[1].told_us_ago.is_some());
    leave("said", 0, "");
}

#[test]
fn ranks_that_are_stopped_or_gone_are_shown_as_such() {
    on_each(|mpi| {
        let folder = tempfile::tempdir().unwrap();
        let environment = [(FOLDER, folder.path().to_str().unwrap())];
        let job = mpi.start_under(&UNNOTICED, RANKS, "live::ailing", &environment);
        let ended = job.wait(Duration::from_secs(110));
        assert!(folder.path().join("said2").exists(), "{}: {}", mpi.name, ended.said);
    });
}
