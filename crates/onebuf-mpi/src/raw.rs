//! What applications do without onebuf, for comparison: MPI's own calls on plain memory, made by the communication thread.
//! Hidden from the documentation; it may change in any release.
//!
//! # Safety
//! Each function owns its memory, and waits for every request before it returns. A function that fails forgets its memory.

#![allow(unsafe_code)]

use crate::{error::refused, world::World};
use onebuf_hal::{Error, Result};
use onebuf_sys::{
    MpiRefused,
    mpi::{Comm, Mpi, Request},
};
use std::time::{Duration, Instant};

/// A tag that nothing else uses.
const TAG: i32 = 32_000;

/// Sends `frames` frames from rank 0 to rank 1 by persistent requests, one for each of `slots` memories, and returns the time.
/// Other ranks wait.
///
/// # Errors
/// MPI's; [`Error::Unsupported`] without MPI. It has no time limit.
pub fn ring(world: &World, bytes: usize, slots: usize, frames: usize) -> Result<Duration> {
    let rank = world.rank();
    on_thread(world, move |mpi, comm| {
        let mut memory = vec![vec![1u8; bytes]; slots];
        let done = ring_on(mpi, comm, rank, &mut memory, frames);
        if done.is_err() {
            std::mem::forget(memory);
        }
        done
    })
}

fn ring_on(
    mpi: &Mpi,
    comm: Comm,
    rank: usize,
    memory: &mut [Vec<u8>],
    frames: usize,
) -> Result<Duration, MpiRefused> {
    let (byte, mut requests) = (mpi.constants().byte, Vec::new());
    for slot in memory.iter_mut().filter(|_| rank < 2) {
        let (at, count) = (slot.as_mut_ptr().cast::<std::ffi::c_void>(), slot.len() as i32);
        // SAFETY: the memory stays until the requests are freed.
        requests.push(unsafe {
            match rank {
                0 => mpi.send_init(at, count, byte, 1, TAG, comm)?,
                _ => mpi.recv_init(at, count, byte, 0, TAG, comm)?,
            }
        });
    }
    // SAFETY: a live communicator; prepared requests, each waited for before it is started again and before it is freed.
    unsafe {
        mpi.barrier(comm)?;
        let began = Instant::now();
        let slots = requests.len().max(1);
        for frame in 0..if requests.is_empty() { 0 } else { frames } {
            if frame >= slots {
                mpi.wait(requests[frame % slots])?;
            }
            mpi.start(requests[frame % slots])?;
        }
        requests.iter().take(frames).try_for_each(|request: &Request| mpi.wait(*request))?;
        mpi.barrier(comm)?;
        let took = began.elapsed();
        requests.into_iter().try_for_each(|request| mpi.request_free(request))?;
        Ok(took)
    }
}

/// Exchanges `bytes` bytes between every two ranks by `MPI_Alltoall`, `frames` times, and returns the time. It uses one pair of
/// `slots` pairs of memories after another, as a pipeline does.
///
/// # Errors
/// As for [`ring`].
pub fn alltoall(world: &World, bytes: usize, slots: usize, frames: usize) -> Result<Duration> {
    let all = bytes * world.size();
    on_thread(world, move |mpi, comm| {
        let mut memory = vec![(vec![1u8; all], vec![1u8; all]); slots];
        let (count, byte) = (bytes as i32, mpi.constants().byte);
        // SAFETY: each call has ended when it returns, and the vectors live longer.
        unsafe {
            mpi.barrier(comm)?;
            let began = Instant::now();
            for frame in 0..frames {
                let (from, into) = &mut memory[frame % slots];
                let (at, to) = (from.as_ptr().cast(), into.as_mut_ptr().cast());
                mpi.alltoall(at, count, byte, to, count, byte, comm)?;
            }
            mpi.barrier(comm)?;
            Ok(began.elapsed())
        }
    })
}

fn on_thread(
    world: &World,
    run: impl FnOnce(&Mpi, Comm) -> Result<Duration, MpiRefused> + Send + 'static,
) -> Result<Duration> {
    world.link().run(move |raw| match raw {
        None => Err(Error::unsupported("a comparison with MPI", "MPI")),
        Some((mpi, comm)) => run(mpi, comm).map_err(|why| refused(mpi, why)),
    })?
}
