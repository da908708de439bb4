//! The transport over MPI.
//!
//! # Safety
//! All calls are made by the communication thread, between initialisation and finalisation. The contract of
//! [`Transport`] guarantees the memory of transfers. Handles come from this library, and each is freed once.

#![allow(unsafe_code)]

use super::{
    Address, Key, Lane, Outcome, Prepared, Transfer, Transport, Way, datatypes::Datatypes,
};
use crate::{
    deadline::Deadline,
    error::{described, refused},
    layout::Layout,
};
use onebuf_hal::{Error, Result};
use onebuf_sys::{
    MpiRefused,
    mpi::{Comm, Duplicate, Mpi, Request, Requests, Statuses},
};
use std::{collections::BTreeSet, fs, rc::Rc, thread, time::Duration};

/// How the names of MPICH 5's shared memory begin.
const SHARED_MEMORY: &str = "/dev/shm/mpich_shm_";

/// A request that is under way.
#[derive(Clone, Copy)]
struct Active {
    key: Key,
    persistent: bool,
    receives: bool,
    call: &'static str,
}

/// A library, and who finalises it.
pub(crate) struct Library {
    pub mpi: Mpi,
    /// This transport has initialised MPI.
    pub ours: bool,
}

pub(crate) struct MpiTransport {
    library: Rc<Library>,
    /// Duplicates of the application's communicator, one for each lane.
    comms: [Comm; 2],
    rank: usize,
    size: usize,
    requests: Requests,
    /// In the order of `requests`.
    active: Vec<Active>,
    prepared: Vec<Option<(Request, Way)>>,
    datatypes: Datatypes,
    most_count: usize,
    /// Room for the results of a poll.
    done: Vec<i32>,
    statuses: Statuses,
}

impl MpiTransport {
    /// Makes communicators of its own from the application's. All ranks of `comm` call it at the same time.
    ///
    /// # Errors
    /// MPI's, and [`Error::Timeout`] if a rank does not come.
    pub fn open(
        library: Rc<Library>,
        comm: Comm,
        most_count: usize,
        until: Deadline,
    ) -> Result<Self> {
        let mpi = &library.mpi;
        let first = duplicate(mpi, comm, until)?;
        let second = duplicate(mpi, comm, until)?;
        // SAFETY: a live communicator.
        let (rank, size) = unsafe { (mpi.comm_rank(first), mpi.comm_size(first)) };
        let [rank, size] = [rank, size].map(|got| got.map_err(|why| refused(mpi, why)));
        let (rank, size) = (as_rank(rank?)?, as_rank(size?)?);
        let (requests, statuses) = (mpi.requests(), mpi.statuses());
        Ok(Self {
            comms: [first, second],
            rank,
            size,
            requests,
            active: Vec::new(),
            prepared: Vec::new(),
            datatypes: Datatypes::new(most_count),
            most_count,
            done: Vec::new(),
            statuses,
            library,
        })
    }

    fn comm(&self, lane: Lane) -> Comm {
        match lane {
            Lane::Head => self.comms[0],
            Lane::Data => self.comms[1],
        }
    }

    /// Waits for a request that is under way.
    fn note(&mut self, request: Request, active: Active) {
        self.requests.push(request);
        self.active.push(active);
    }

    /// Begins a call of all ranks.
    fn note_collective(
        &mut self,
        request: Result<Request, MpiRefused>,
        key: Key,
        call: &'static str,
    ) -> Result<()> {
        let request = request.map_err(|why| refused(&self.library.mpi, why))?;
        self.note(request, Active { key, persistent: false, receives: false, call });
        Ok(())
    }

    /// How the request with this status has ended.
    fn outcome(&self, active: Active, index: usize) -> Outcome {
        let mpi = &self.library.mpi;
        let status = self.statuses.error(index);
        if status.0 != 0 {
            // SAFETY: the communication thread.
            let (class, _) = unsafe { mpi.describe(status) };
            return match class == mpi.constants().classes.truncate {
                true => Outcome::Truncated,
                false => Outcome::Failed(described(mpi, active.call, status)),
            };
        }
        if !active.receives {
            return Outcome::Done(0);
        }
        // SAFETY: the status of a receive that is complete.
        let ended = unsafe {
            mpi.was_cancelled(&self.statuses, index)
                .and_then(|cancelled| Ok((cancelled, mpi.received(&self.statuses, index)?)))
        };
        match ended {
            Ok((true, _)) => Outcome::Cancelled,
            Ok((false, bytes)) => Outcome::Done(bytes),
            Err(why) => Outcome::Failed(refused(mpi, why)),
        }
    }
}

/// Duplicates a communicator that returns errors.
fn duplicate(mpi: &Mpi, comm: Comm, until: Deadline) -> Result<Comm> {
    let mut made = Box::<Duplicate>::default();
    // SAFETY: a live communicator; the place of the new one stays until the request is complete, or forever.
    let request = unsafe { mpi.comm_idup(comm, &mut made) }.map_err(|why| refused(mpi, why))?;
    if let Err(error) = complete(mpi, request, until) {
        std::mem::forget(made);
        return Err(error);
    }
    let made = mpi.duplicated(&made);
    // SAFETY: a live communicator.
    unsafe { mpi.comm_set_errhandler(made, mpi.constants().errors_return) }
        .map_err(|why| refused(mpi, why))?;
    Ok(made)
}

/// Waits for one request.
fn complete(mpi: &Mpi, request: Request, until: Deadline) -> Result<()> {
    let (mut requests, mut statuses, mut done) = (mpi.requests(), mpi.statuses(), Vec::new());
    requests.push(request);
    loop {
        // SAFETY: a live request.
        unsafe { mpi.testsome(&mut requests, &mut done, &mut statuses) }
            .map_err(|why| refused(mpi, why))?;
        if !done.is_empty() {
            mpi.note_freed();
            let status = statuses.error(0);
            return if status.0 == 0 {
                Ok(())
            } else {
                Err(described(mpi, "MPI_Comm_idup", status))
            };
        }
        if until.is_over() {
            return Err(until.error("not all ranks have joined"));
        }
        thread::sleep(Duration::from_micros(100));
    }
}

/// Unlinks the shared memory of MPICH 5, which only a finalised MPI would do. Processes that have mapped it keep it until they
/// end; other libraries unlink theirs at the start, or leave that to their launcher.
fn unlink_shared_memory() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files: BTreeSet<&str> =
        maps.lines().filter_map(|line| line.find(SHARED_MEMORY).map(|at| &line[at..])).collect();
    for file in files.into_iter().filter(|file| !file.contains(' ')) {
        // Another rank may have been faster.
        let _ = fs::remove_file(file);
    }
}

/// A rank or size as MPI returns it.
fn as_rank(number: i32) -> Result<usize> {
    usize::try_from(number).map_err(|_| Error::invalid(format!("MPI returned the rank {number}")))
}

/// A rank for MPI's calls.
fn rank_of(peer: usize, size: usize) -> Result<i32> {
    match i32::try_from(peer) {
        Ok(rank) if peer < size => Ok(rank),
        _ => Err(Error::invalid(format!("rank {peer} in a world of {size}"))),
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    unsafe fn begin(&mut self, transfer: &Transfer, key: Key) -> Result<()> {
        let Transfer { way, at, layout, peer, lane, tag } = *transfer;
        let (peer, comm) = (rank_of(peer, self.size)?, self.comm(lane));
        let mpi = &self.library.mpi;
        let (count, of) = self.datatypes.of(mpi, layout)?;
        // SAFETY: the caller guarantees the memory.
        let (begun, call) = unsafe {
            match way {
                Way::Send => (
                    mpi.isend(at.get().cast_const().cast(), count, of, peer, tag, comm),
                    "MPI_Isend",
                ),
                Way::Receive => {
                    (mpi.irecv(at.get().cast(), count, of, peer, tag, comm), "MPI_Irecv")
                }
            }
        };
        let request = begun.map_err(|why| refused(mpi, why))?;
        self.note(request, Active { key, persistent: false, receives: way == Way::Receive, call });
        Ok(())
    }

    unsafe fn prepare(&mut self, transfer: &Transfer) -> Result<Prepared> {
        let Transfer { way, at, layout, peer, lane, tag } = *transfer;
        let (peer, comm) = (rank_of(peer, self.size)?, self.comm(lane));
        let mpi = &self.library.mpi;
        let (count, of) = self.datatypes.of(mpi, layout)?;
        // SAFETY: the caller guarantees the memory while the request is started.
        let made = unsafe {
            match way {
                Way::Send => {
                    mpi.send_init(at.get().cast_const().cast(), count, of, peer, tag, comm)
                }
                Way::Receive => mpi.recv_init(at.get().cast(), count, of, peer, tag, comm),
            }
        };
        let request = made.map_err(|why| refused(mpi, why))?;
        let free = self.prepared.iter().position(Option::is_none);
        let at = free.unwrap_or(self.prepared.len());
        if free.is_none() {
            self.prepared.push(None);
        }
        self.prepared[at] = Some((request, way));
        Ok(Prepared(at))
    }

    unsafe fn start(&mut self, prepared: Prepared, key: Key) -> Result<()> {
        let known = self.prepared.get(prepared.0).copied().flatten();
        let (request, way) = known.ok_or_else(|| Error::invalid("a request that was released"))?;
        // SAFETY: a prepared request that is not under way, whose memory the caller guarantees.
        unsafe { self.library.mpi.start(request) }
            .map_err(|why| refused(&self.library.mpi, why))?;
        self.note(
            request,
            Active { key, persistent: true, receives: way == Way::Receive, call: "MPI_Start" },
        );
        Ok(())
    }

    fn release(&mut self, prepared: Prepared) {
        let Some((request, _)) = self.prepared.get_mut(prepared.0).and_then(Option::take) else {
            return;
        };
        // SAFETY: prepared here, not under way, and freed once.
        if let Err(why) = unsafe { self.library.mpi.request_free(request) } {
            tracing::debug!(%why, "a persistent request could not be freed");
        }
    }

    fn cancel(&mut self, key: Key) {
        let Some(at) = self.active.iter().position(|active| active.key == key && active.receives)
        else {
            return;
        };
        // SAFETY: a live request.
        if let Err(why) = unsafe { self.library.mpi.cancel(self.requests.get(at)) } {
            tracing::debug!(%why, "a receive could not be cancelled");
        }
    }

    unsafe fn broadcast(&mut self, at: Address, bytes: usize, root: usize, key: Key) -> Result<()> {
        let (root, comm) = (rank_of(root, self.size)?, self.comm(Lane::Data));
        let (count, of) = self.datatypes.of(&self.library.mpi, Layout::contiguous(bytes))?;
        // SAFETY: the caller guarantees the memory.
        let begun = unsafe { self.library.mpi.ibcast(at.get().cast(), count, of, root, comm) };
        self.note_collective(begun, key, "MPI_Ibcast")
    }

    unsafe fn all_gather(
        &mut self,
        from: Address,
        into: Address,
        each: usize,
        key: Key,
    ) -> Result<()> {
        let (comm, mpi) = (self.comm(Lane::Head), &self.library.mpi);
        let (count, of) = self.datatypes.of(mpi, Layout::contiguous(each))?;
        let (from, into) = (from.get().cast_const().cast(), into.get().cast());
        // SAFETY: the caller guarantees the memory.
        let begun = unsafe { mpi.iallgather(from, count, of, into, count, of, comm) };
        self.note_collective(begun, key, "MPI_Iallgather")
    }

    fn barrier(&mut self, key: Key) -> Result<()> {
        // SAFETY: a live communicator.
        let begun = unsafe { self.library.mpi.ibarrier(self.comm(Lane::Head)) };
        self.note_collective(begun, key, "MPI_Ibarrier")
    }

    fn poll(&mut self, ended: &mut Vec<(Key, Outcome)>) -> Result<()> {
        if self.active.is_empty() {
            return Ok(());
        }
        let mpi = &self.library.mpi;
        // SAFETY: live requests.
        let polled =
            unsafe { mpi.testsome(&mut self.requests, &mut self.done, &mut self.statuses) };
        polled.map_err(|why| refused(mpi, why))?;
        let indices: Vec<usize> =
            self.done.iter().filter_map(|&at| usize::try_from(at).ok()).collect();
        for (index, &at) in indices.iter().enumerate() {
            let active = self.active[at];
            ended.push((active.key, self.outcome(active, index)));
            if !active.persistent {
                self.library.mpi.note_freed();
            }
        }
        // From the last on, so that the indices of the others stay true.
        let mut indices = indices;
        indices.sort_unstable_by(|a, b| b.cmp(a));
        for at in indices {
            self.requests.swap_remove(at);
            self.active.swap_remove(at);
        }
        Ok(())
    }

    fn raw(&self) -> Option<(&Mpi, Comm)> {
        Some((&self.library.mpi, self.comm(Lane::Data)))
    }

    fn close(&mut self, orderly: bool, _until: Deadline) -> Result<()> {
        let library = self.library.clone();
        let mpi = &library.mpi;
        if !orderly || !self.active.is_empty() {
            // Freeing a communicator, or MPI itself, may wait for ranks that are gone, and for messages that never end.
            if library.ours {
                unlink_shared_memory();
            }
            return Ok(());
        }
        for at in 0..self.prepared.len() {
            self.release(Prepared(at));
        }
        self.datatypes.free(mpi);
        for comm in self.comms {
            // MPICH 5 refuses a communicator in which a message was never received, as after a call that has failed.
            // SAFETY: duplicated here, and freed once.
            if let Err(why) = unsafe { mpi.comm_free(comm) } {
                tracing::debug!(error = %refused(mpi, why), "a communicator could not be freed");
            }
        }
        if !library.ours {
            return Ok(());
        }
        // SAFETY: the thread that has initialised MPI; nothing is under way.
        unsafe { mpi.finalize() }.map_err(|why| {
            // MPI cannot describe the code any more.
            Error::Driver { api: "mpi", call: why.call, code: why.status.0, name: "unknown".into() }
        })
    }

    fn shrink(&mut self, until: Deadline) -> Result<Option<Box<dyn Transport>>> {
        let library = self.library.clone();
        let mpi = &library.mpi;
        if !(mpi.has_comm_revoke() && mpi.has_comm_shrink()) {
            return Ok(None);
        }
        for comm in self.comms {
            // SAFETY: a live communicator. Revoking it ends what others wait for.
            unsafe { mpi.comm_revoke(comm) }.map_err(|why| refused(mpi, why))?;
        }
        // SAFETY: a live communicator; all ranks that are left call it.
        let left = unsafe { mpi.comm_shrink(self.comms[0]) }.map_err(|why| refused(mpi, why))?;
        // SAFETY: a live communicator.
        unsafe { mpi.comm_set_errhandler(left, mpi.constants().errors_return) }
            .map_err(|why| refused(mpi, why))?;
        let remaining = Self::open(library.clone(), left, self.most_count, until)?;
        Ok(Some(Box::new(remaining)))
    }
}
