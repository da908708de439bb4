//! Peers are killed during and between their turns. The owner's buffer stays usable, and its contents are those of whole turns.

use crate::{
    Chaos,
    child::{Process, SOON},
};
use onebuf::{Error, MemoryKind, peer::Offer};
use std::{fs, os::unix::fs::PermissionsExt, thread};

/// Words of the shared buffer: whole pages, and a part of one.
const N: usize = (1 << 16) + 100;

pub fn are_killed(chaos: &mut Chaos<'_>) {
    let hub = &chaos.machine.hub;
    let shared = hub.buffer::<u32>(N).memory_kind(MemoryKind::HostPages).allocate_on(&hub.host());
    let shared = shared.build().unwrap();
    let rights = fs::Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().permissions(rights).tempdir().unwrap();
    let socket = folder.path().join("buffer.sock");
    let mut offer = Offer::open(&shared, socket.to_str().unwrap()).unwrap();
    for _ in 0..1 + chaos.random.below(2) {
        let peer = Process::start("peer", &socket);
        let mut visit = offer.accept(SOON).unwrap();
        for turn in 0..1 + chaos.random.below(4) as u32 {
            shared.fill(turn).unwrap();
            visit.hand_over().unwrap();
            visit.wait(SOON).unwrap();
            assert_eq!(shared.to_vec().unwrap(), vec![turn + 1; N], "a whole turn");
            chaos.figures.visits += 1;
            chaos.figures.hand_overs += 2;
        }
        visit.hand_over().unwrap();
        thread::sleep(chaos.pause(3));
        peer.kill();
        match visit.wait(SOON) {
            // It may have been faster than the signal.
            Ok(()) | Err(Error::PeerLost { .. }) => drop(visit),
            Err(other) => panic!("{other}"),
        }
        chaos.figures.killed_peers += 1;
        shared.fill(77).unwrap();
        assert_eq!(shared.to_vec().unwrap(), vec![77; N], "after a killed peer");
    }
}
