//! Calls that all ranks make.

use crate::ranks::{SOON, everywhere, hub, join, value};
use onebuf::{Error, Result};
use onebuf_mpi::{InFlight, Span};
use std::time::Duration;

#[test]
fn all_ranks_exchange_every_element() {
    everywhere(&[1, 2, 3, 4], "collectives::rank_exchange");
}

fn wait(call: Result<InFlight<'_, u32>>) {
    call.unwrap().wait(SOON).unwrap();
}

#[test]
#[ignore = "a rank"]
fn rank_exchange() {
    let (hub, world) = (hub(), join());
    let (rank, size) = (world.rank(), world.size());
    for (round, len) in [1, 1000, 70_000].into_iter().enumerate() {
        let of = |rank: usize, many: usize| -> Vec<u32> {
            (0..many).map(|at| value(rank, round, at)).collect()
        };
        world.barrier(SOON).unwrap();
        // Broadcast from every rank.
        for root in 0..size {
            let all = hub.buffer_from(of(rank, len)).build().unwrap();
            wait(world.broadcast(&all, root));
            assert_eq!(all.to_vec().unwrap(), of(root, len), "from {root}");
        }
        // All-to-all: rank r's part for rank p are the elements from p * len on.
        let from = hub.buffer_from(of(rank, len * size)).build().unwrap();
        let into = hub.buffer::<u32>(len * size).build().unwrap();
        wait(world.all_to_all(&from, &into));
        let expected: Vec<u32> = (0..size)
            .flat_map(|peer| of(peer, len * size)[rank * len..(rank + 1) * len].to_vec())
            .collect();
        assert_eq!(into.to_vec().unwrap(), expected);
        // The same with uneven parts: rank r sends (r + 2 p) % 3 * len elements to rank p, some of them none.
        let count = |from: usize, to: usize| (from + 2 * to) % 3 * len;
        let sends: Vec<usize> = (0..size).map(|peer| count(rank, peer)).collect();
        let receives: Vec<usize> = (0..size).map(|peer| count(peer, rank)).collect();
        let (out, come) = (sends.iter().sum::<usize>(), receives.iter().sum::<usize>());
        let from = hub.buffer_from(of(rank, out.max(1))).build().unwrap();
        let into = hub.buffer::<u32>(come.max(1)).build().unwrap();
        if out > 0 && come > 0 && (0..size).all(|peer| (0..size).any(|to| count(peer, to) > 0)) {
            wait(world.all_to_all_v(&from, &sends, &into, &receives));
            let part = |peer: usize| {
                let start: usize = (0..rank).map(|before| count(peer, before)).sum();
                let all: usize = (0..size).map(|to| count(peer, to)).sum();
                of(peer, all)[start..start + count(peer, rank)].to_vec()
            };
            let expected: Vec<u32> = (0..size).flat_map(part).collect();
            assert_eq!(into.to_vec().unwrap(), expected);
        }
        // Gather, equal and uneven, at the last rank.
        let root = size - 1;
        let own = hub.buffer_from(of(rank, len)).build().unwrap();
        let all = hub.buffer::<u32>(len * size).build().unwrap();
        wait(world.gather(&own, root, (rank == root).then(|| Span::from(&all))));
        let counts: Vec<usize> = (0..size).map(|peer| (peer + 1) * len).collect();
        let longer = hub.buffer_from(of(rank, counts[rank])).build().unwrap();
        let uneven = hub.buffer::<u32>(counts.iter().sum()).build().unwrap();
        wait(world.gather_v(
            &longer,
            root,
            (rank == root).then(|| (Span::from(&uneven), &counts[..])),
        ));
        if rank == root {
            let expected: Vec<u32> = (0..size).flat_map(|peer| of(peer, len)).collect();
            assert_eq!(all.to_vec().unwrap(), expected);
            let expected: Vec<u32> = (0..size).flat_map(|peer| of(peer, counts[peer])).collect();
            assert_eq!(uneven.to_vec().unwrap(), expected);
        }
        // Bytes of any number.
        let text = format!("rank {rank}: {}", "x".repeat(rank * len)).into_bytes();
        let collected = world.collect(text, 0, SOON).unwrap();
        assert_eq!(collected.is_some(), rank == 0);
        for (peer, bytes) in collected.into_iter().flatten().enumerate() {
            assert_eq!(bytes, format!("rank {peer}: {}", "x".repeat(peer * len)).into_bytes());
        }
    }
}

#[test]
fn ranks_that_disagree_are_named() {
    everywhere(&[3], "collectives::rank_disagree");
}

#[test]
#[ignore = "a rank"]
fn rank_disagree() {
    let (hub, world) = (hub(), join());
    let rank = world.rank();
    // Another length at rank 2: every rank is told.
    let buffer = hub.buffer::<u32>(if rank == 2 { 11 } else { 10 }).build().unwrap();
    let refused = world.broadcast(&buffer, 0).unwrap().wait(SOON).unwrap_err().to_string();
    assert!(refused.contains("44 bytes") && refused.contains("40 bytes"), "{refused}");
    assert!(refused.contains(if rank == 2 { "ranks 0, 1" } else { "rank 2" }), "{refused}");
    // Another root.
    let root = usize::from(rank == 1);
    let refused = world.broadcast(&buffer, root).unwrap().wait(SOON).unwrap_err().to_string();
    assert!(refused.contains("from rank 1"), "{refused}");
    // A gather to which rank 1 sends more than was agreed.
    let own = hub.buffer::<u32>(if rank == 1 { 6 } else { 5 }).build().unwrap();
    let all = hub.buffer::<u32>(15).build().unwrap();
    let gathered = world.gather(&own, 0, (rank == 0).then(|| Span::from(&all)));
    let ended = gathered.unwrap().wait(SOON);
    match rank {
        0 => {
            let refused = ended.unwrap_err().to_string();
            assert!(
                refused.contains("rank 1 sent 24 bytes") && refused.contains("20 were expected"),
                "{refused}"
            );
        }
        _ => ended.unwrap(),
    }
    // Arguments that are wrong on one rank alone.
    let counts = world.gather_v(&own, rank, Some((Span::from(&all), &[1, 2][..]))).err().unwrap();
    assert!(
        counts.to_string().contains("2 counts whose sum is 3, for 3 ranks and 15 elements"),
        "{counts}"
    );
    let passed = world.gather(&own, (rank + 1) % 3, Some(Span::from(&all))).err().unwrap();
    assert!(matches!(passed, Error::InvalidArgument(_)), "{passed}");
    world.barrier(SOON).unwrap();
    // A rank that does not come.
    if rank != 1 {
        let late = world.barrier(Duration::from_millis(200)).unwrap_err();
        assert!(matches!(&late, Error::Timeout { what, .. } if what.contains("barrier")), "{late}");
    } else {
        std::thread::sleep(Duration::from_millis(400));
        world.barrier(SOON).unwrap();
    }
}
