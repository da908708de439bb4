"""Buffers between the ranks of an MPI job, with mpi4py: `mpirun -n 4 python 11-ranks.py`. Alone it is a job of one rank.

Each rank has some channels. It transforms them, and a corner turn gives it all channels of some frequencies. Rank 0 compares every
number with a single process's.
"""

# Needs: mpi4py

import numpy as np
from mpi4py import MPI

import onebuf as ob

CHANNELS, LENGTH = 13, 640
comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size
next_rank, previous = (rank + 1) % ranks, (rank - 1) % ranks
hub = ob.discover()
cl = next((device for device in hub.devices if device.api == "opencl"), hub.host)
twice = cl.kernel("kernel void twice(global float2 *x) { x[get_global_id(0)] *= 2; }") if cl.api == "opencl" else None


def share(total, of):
    """The part of a total that a rank has."""
    return slice(total * of // ranks, total * (of + 1) // ranks)


def signal(channels):
    """The samples of some channels, the same on every rank."""
    time, channel = np.arange(LENGTH)[None, :], np.arange(CHANNELS)[channels, None]
    return np.exp(2j * np.pi * time * (channel + 1) / LENGTH) + 0.1 * np.cos(time * channel)


# 1. mpi4py takes a buffer itself: the memory in place, after the work on it, and lent for as long as the message is on its way.
own = hub.array(signal(share(CHANNELS, rank)), np.complex64, share=[cl], name="own channels")
if twice and own.size:
    twice(own)
sizes = np.array([CHANNELS * of // ranks for of in range(ranks + 1)])
theirs = hub.empty((sizes[previous + 1] - sizes[previous], LENGTH), np.complex64, name="the previous rank's")
request = comm.Irecv(theirs, source=previous)
comm.Send(own, dest=next_rank)
request.Wait()
del request  # the last user: now kernels may have the buffer again
assert np.allclose(theirs.read(), 2 * signal(share(CHANNELS, previous)), atol=1e-5)

# 2. And a map of it. Each rank's part of the frequencies, one after another, is what the all-to-all sends.
spectra = hub.empty(own.shape, np.complex64, name="spectra")
ob.fft(own, spectra)
mine = [share(LENGTH, of) for of in range(ranks)]
counts = [part.stop - part.start for part in mine]
blocks = hub.empty(own.size, np.complex64, name="blocks")
turned = hub.empty((CHANNELS, counts[rank]), np.complex64, name="turned")
with spectra.map("r") as s, blocks.map() as packed:
    packed[:] = np.concatenate([s[:, part].ravel() for part in mine])
with blocks.map("r") as packed, turned.map() as arrived:
    sends = [len(own) * count for count in counts]
    receives = [int(many) * counts[rank] for many in np.diff(sizes)]
    comm.Alltoallv([np.asarray(packed), sends, MPI.C_FLOAT_COMPLEX], [np.asarray(arrived), receives, MPI.C_FLOAT_COMPLEX])
    del packed, arrived

# 3. The same by onebuf: in the background, with a timeout that names the late rank, and lengths that are checked. It uses mpi4py's MPI.
again = hub.empty(turned.shape, np.complex64, name="turned again")
with ob.World(comm, timeout=60, agree={"channels": CHANNELS, "length": LENGTH}) as world:
    world.all_to_all(blocks, again, sends, receives).wait()
    whole = hub.empty(CHANNELS * LENGTH, np.complex64, name="all of it") if rank == 0 else None
    world.gather(again, 0, whole, [CHANNELS * count for count in counts] if rank == 0 else None).wait()
    assert world.size == ranks and "MPI" in world.library
assert (again.read() == turned.read()).all()
assert hub.ledger.implied_bytes == 0

if whole is not None:
    parts = np.split(whole.read(), np.cumsum([CHANNELS * count for count in counts])[:-1])
    result = np.hstack([part.reshape(CHANNELS, -1) for part in parts])
    reference = np.fft.fft(2 * signal(slice(0, CHANNELS)), axis=1)
    error = abs(result - reference).max() / abs(reference).max()
    print(f"{ranks} ranks, {CHANNELS} x {LENGTH} numbers, largest relative error {error:.1e}, implied copies 0")
    assert error < 1e-5
