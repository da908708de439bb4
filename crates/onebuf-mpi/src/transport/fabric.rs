//! Many ranks in one process, for tests: their transports copy in memory. Messages match as MPI's do, and what has ended is reported
//! late and in any order.
//!
//! # Safety
//! Copies between memories that the contract of [`Transport`] guarantees until both transfers have been reported, which happens after
//! the copy.

#![allow(unsafe_code)]

use super::{Address, Key, Outcome, Prepared, Transfer, Transport, Way, alone::deliver};
use crate::deadline::Deadline;
use onebuf_hal::{
    Error, Result,
    locks::{Mutex, lock},
};
use onebuf_sys::mpi::{Comm, Mpi};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// After at most so many polls a transfer that has ended is reported.
const MOST_POLLS: u64 = 8;

/// A transfer that waits for its partner, and the rank that has begun it.
type Waiting = (usize, Key, Transfer);

/// A call of all ranks, as one of them makes it.
#[derive(Clone, Copy)]
enum Collective {
    Barrier,
    Broadcast { at: Address, bytes: usize, root: usize },
    Gather { from: Address, into: Address, each: usize },
}

/// What all ranks share.
struct Switch {
    /// Transfers without a partner, oldest first, by sender, receiver, lane and tag.
    waiting: BTreeMap<(usize, usize, bool, i32), VecDeque<Waiting>>,
    /// The calls that not all ranks have made, oldest first: by rank.
    calls: VecDeque<Vec<Option<(Key, Collective)>>>,
    /// How many calls each rank has made.
    made: Vec<usize>,
    /// Calls that all ranks have made.
    complete: usize,
    /// By rank: what has ended and is not reported, and after how many polls it is.
    ended: Vec<Vec<(u64, Key, Outcome)>>,
    random: u64,
}

/// One rank's way to the others.
pub(crate) struct Fabric {
    switch: Arc<Mutex<Switch>>,
    rank: usize,
    prepared: Vec<Option<Transfer>>,
}

/// The transports of so many ranks. What they report late depends on the seed.
pub(crate) fn fabric(ranks: usize, seed: u64) -> Vec<Fabric> {
    let switch = Arc::new(Mutex::new(Switch {
        waiting: BTreeMap::new(),
        calls: VecDeque::new(),
        made: vec![0; ranks],
        complete: 0,
        ended: vec![Vec::new(); ranks],
        random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
    }));
    let all = 0..ranks;
    all.map(|rank| Fabric { switch: switch.clone(), rank, prepared: Vec::new() }).collect()
}

impl Switch {
    fn end(&mut self, rank: usize, key: Key, outcome: Outcome) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.ended[rank].push((self.random % MOST_POLLS, key, outcome));
    }

    fn post(&mut self, rank: usize, transfer: Transfer, key: Key) -> Result<()> {
        if transfer.peer >= self.made.len() {
            return Err(Error::invalid(format!("rank {} does not exist", transfer.peer)));
        }
        let (from, to) = match transfer.way {
            Way::Send => (rank, transfer.peer),
            Way::Receive => (transfer.peer, rank),
        };
        let lane = transfer.lane == super::Lane::Head;
        let queue = self.waiting.entry((from, to, lane, transfer.tag)).or_default();
        // All that wait in one queue go the same way.
        if queue.front().is_none_or(|(.., other)| other.way == transfer.way) {
            queue.push_back((rank, key, transfer));
            return Ok(());
        }
        let Some((other_rank, other_key, other)) = queue.pop_front() else { return Ok(()) };
        let (sent, received) = match transfer.way {
            Way::Send => (transfer, other),
            Way::Receive => (other, transfer),
        };
        // SAFETY: neither has been reported.
        let [went, came] = unsafe { deliver(&sent, &received) };
        let [own, others] = match transfer.way {
            Way::Send => [went, came],
            Way::Receive => [came, went],
        };
        self.end(rank, key, own);
        self.end(other_rank, other_key, others);
        Ok(())
    }

    fn call(&mut self, rank: usize, key: Key, call: Collective) {
        let (size, at) = (self.made.len(), self.made[rank] - self.complete);
        self.made[rank] += 1;
        if at == self.calls.len() {
            self.calls.push_back(vec![None; size]);
        }
        self.calls[at][rank] = Some((key, call));
        while self.calls.front().is_some_and(|all| all.iter().all(Option::is_some)) {
            self.complete += 1;
            let all: Vec<(Key, Collective)> =
                self.calls.pop_front().into_iter().flatten().flatten().collect();
            for (rank, (key, call)) in all.iter().enumerate() {
                // SAFETY: the call has not been reported to any rank.
                unsafe { perform(&all, call) };
                self.end(rank, *key, Outcome::Done(0));
            }
        }
    }
}

/// Copies what one rank gets from a call.
///
/// # Safety
/// The memory of all ranks is valid.
unsafe fn perform(all: &[(Key, Collective)], call: &Collective) {
    match *call {
        Collective::Barrier => {}
        Collective::Broadcast { at, bytes, root } => {
            if let Some((_, Collective::Broadcast { at: source, .. })) = all.get(root) {
                // SAFETY: the caller's guarantee.
                unsafe { std::ptr::copy(source.get(), at.get(), bytes) };
            }
        }
        Collective::Gather { into, each, .. } => {
            for (rank, (_, other)) in all.iter().enumerate() {
                if let Collective::Gather { from, .. } = other {
                    // SAFETY: the caller's guarantee.
                    unsafe { std::ptr::copy(from.get(), into.plus(rank * each).get(), each) };
                }
            }
        }
    }
}

impl Transport for Fabric {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        lock(&self.switch).made.len()
    }

    unsafe fn begin(&mut self, transfer: &Transfer, key: Key) -> Result<()> {
        lock(&self.switch).post(self.rank, *transfer, key)
    }

    unsafe fn prepare(&mut self, transfer: &Transfer) -> Result<Prepared> {
        self.prepared.push(Some(*transfer));
        Ok(Prepared(self.prepared.len() - 1))
    }

    unsafe fn start(&mut self, prepared: Prepared, key: Key) -> Result<()> {
        let transfer = self.prepared.get(prepared.0).copied().flatten();
        let transfer = transfer.ok_or_else(|| Error::invalid("a request that was released"))?;
        lock(&self.switch).post(self.rank, transfer, key)
    }

    fn release(&mut self, prepared: Prepared) {
        if let Some(transfer) = self.prepared.get_mut(prepared.0) {
            *transfer = None;
        }
    }

    fn cancel(&mut self, key: Key) {
        let mut switch = lock(&self.switch);
        let mine = |(rank, other, transfer): &Waiting| {
            (*rank, *other, transfer.way) == (self.rank, key, Way::Receive)
        };
        let found = switch.waiting.values_mut().find_map(|queue| {
            let at = queue.iter().position(mine)?;
            queue.remove(at)
        });
        if found.is_some() {
            switch.end(self.rank, key, Outcome::Cancelled);
        }
    }

    unsafe fn broadcast(&mut self, at: Address, bytes: usize, root: usize, key: Key) -> Result<()> {
        lock(&self.switch).call(self.rank, key, Collective::Broadcast { at, bytes, root });
        Ok(())
    }

    unsafe fn all_gather(
        &mut self,
        from: Address,
        into: Address,
        each: usize,
        key: Key,
    ) -> Result<()> {
        lock(&self.switch).call(self.rank, key, Collective::Gather { from, into, each });
        Ok(())
    }

    fn barrier(&mut self, key: Key) -> Result<()> {
        lock(&self.switch).call(self.rank, key, Collective::Barrier);
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<(Key, Outcome)>) -> Result<()> {
        let mut switch = lock(&self.switch);
        let all = &mut switch.ended[self.rank];
        ended.extend(all.extract_if(.., |(polls, ..)| *polls == 0).map(|(_, key, how)| (key, how)));
        all.iter_mut().for_each(|(polls, ..)| *polls -= 1);
        Ok(())
    }

    fn raw(&self) -> Option<(&Mpi, Comm)> {
        None
    }

    fn close(&mut self, _orderly: bool, _until: Deadline) -> Result<()> {
        Ok(())
    }

    fn shrink(&mut self, _until: Deadline) -> Result<Option<Box<dyn Transport>>> {
        Ok(None)
    }
}
