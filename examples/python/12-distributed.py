"""The demonstration on several ranks, by mpi4py on onebuf's buffers: `mpirun -n 4 python -m mpi4py 12-distributed.py` (with `-m mpi4py` an
exception ends all ranks). Alone it is a job of one rank.

    rank 0:  its channels ──delay, window, fft──► spectra ─┐  corner  ┌─► all channels, its frequencies ──beams──┐
    rank 1:  its channels ──delay, window, fft──► spectra ─┘   turn   └─► all channels, its frequencies ──beams──┴─► rank 0: detections

Rank 0 compares every number of every beam, and every detection, with those of a single process that uses NumPy alone.
"""

# Needs: mpi4py

import numpy as np
from mpi4py import MPI

import onebuf as ob

CHANNELS, LENGTH, BEAMS, FRAMES = 13, 640, 9, 5
GUARD, TRAINING, THRESHOLD = 3, 16, 20  # a peak's own bins, the bins beside them whose mean is the noise, and how far a peak exceeds it
comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size
hub = ob.discover()
cl = hub["opencl"]

# Two waves, which arrive from the directions of beams 2 and 6. Each channel's cable delays it by some samples and a fraction.
WAVES = [(2, 100, 1.0), (6, -50, 0.5)]  # beam, frequency, amplitude
directions = (2 * np.arange(BEAMS) + 1) / BEAMS - 1  # the sine of the angle
delays = 2.0 + 1.7 * np.sin(np.arange(CHANNELS))
window = np.hamming(LENGTH)
weights = np.exp(-1j * np.pi * np.outer(directions, np.arange(CHANNELS))) / CHANNELS


def share(total, of):
    """The part of a total that a rank has."""
    return slice(total * of // ranks, total * (of + 1) // ranks)


def samples(frame, channels):
    """What some channels receive in a frame, the same wherever it is computed: [channel][time]."""
    rows = []
    for channel in range(CHANNELS)[channels]:
        noise = np.random.default_rng([frame, channel]).standard_normal((2, LENGTH))
        time = np.arange(LENGTH) + frame * LENGTH - delays[channel]
        wave = (a * np.exp(1j * (np.pi * (2 * f * time / LENGTH + channel * directions[b]) + frame)) for b, f, a in WAVES)
        rows.append(sum(wave) + 0.1 * (noise[0] + 1j * noise[1]))
    return np.array(rows, np.complex64).reshape(-1, LENGTH)


def detect(beams):
    """The peaks that stand out of the noise around them, as (beam, frequency)."""
    power = abs(beams) ** 2
    at = lambda shift: np.roll(power, -shift, axis=1)  # noqa: E731
    beside = range(GUARD + 1, GUARD + TRAINING + 1)
    floor = sum(at(shift) + at(-shift) for shift in beside) / (2 * TRAINING)
    peaks = (power > at(1)) & (power > at(-1)) & (power > THRESHOLD * floor)
    return [(int(beam), int(frequency)) for beam, frequency in np.argwhere(peaks)]


def by_numpy(frame):
    """A single process's beams of a frame, in double precision."""
    padded = np.pad(samples(frame, slice(None)).astype(complex), ((0, 0), (1, 8)))
    delayed = np.empty((CHANNELS, LENGTH), complex)
    for channel, delay in enumerate(np.asarray(delays, np.float32)):
        whole, d = int(delay), float(delay - int(delay))
        # A polynomial through the four samples around.
        taps = [-d * (d - 1) * (d - 2) / 6, (d + 1) * (d - 1) * (d - 2) / 2, -(d + 1) * d * (d - 2) / 2, (d + 1) * d * (d - 1) / 6]
        delayed[channel] = sum(tap * padded[channel, whole + k :][:LENGTH] for k, tap in enumerate(taps))
    return weights @ np.fft.fft(delayed * window, axis=1)


# 1. The same delay as a kernel, which applies the window at once.
delay_and_window = cl.kernel("""
kernel void delay_and_window(global const float2 *in, global const float *delays, global const float *window, int length, global float2 *out) {
    int t = get_global_id(0), channel = get_global_id(1), whole = (int)delays[channel];
    float d = delays[channel] - whole;
    float taps[4] = { -d * (d - 1) * (d - 2) / 6, (d + 1) * (d - 1) * (d - 2) / 2, -(d + 1) * d * (d - 2) / 2, (d + 1) * d * (d - 1) / 6 };
    float2 sum = 0;
    for (int k = 0; k < 4; ++k) {
        int at = t + whole + k - 1;
        if (at >= 0 && at < length) sum += taps[k] * in[channel * length + at];
    }
    out[channel * length + t] = window[t] * sum;
}
""")

# 2. Each rank's memory. MPI reads and writes it in place: no block is packed, because datatypes say where each rank's part lies.
own, mine = ([range(total)[share(total, of)] for of in range(ranks)] for total in (CHANNELS, LENGTH))
channels, frequencies = len(own[rank]), len(mine[rank])
make = lambda shape, name, dtype=np.complex64: hub.empty(shape, dtype, share=[cl], name=name)  # noqa: E731
signal, delayed, spectra = (make((channels, LENGTH), name) for name in ("signal", "delayed", "spectra"))
turned, beams = make((CHANNELS, frequencies), "turned"), make((BEAMS, frequencies), "beams")
gathered = hub.empty(BEAMS * LENGTH, np.complex64, name="gathered") if rank == 0 else None
own_delays = hub.array(delays[share(CHANNELS, rank)], np.float32, share=[cl], name="delays")
hamming = hub.array(window, np.float32, share=[cl], name="window")
steering = hub.array(weights, np.complex64, share=[cl], name="weights")


def block(shape, rows, columns):
    """A part of a matrix, for MPI."""
    return MPI.C_FLOAT_COMPLEX.Create_subarray(shape, [len(rows), len(columns)], [rows.start, columns.start]).Commit()


sends = [block([channels, LENGTH], range(channels), mine[of]) for of in range(ranks)]
receives = [block([CHANNELS, frequencies], own[of], range(frequencies)) for of in range(ranks)]
once = ([1] * ranks, [0] * ranks)
counts = [BEAMS * len(part) for part in mine]

# 3. The frames.
worst, found = 0.0, []
for frame in range(FRAMES):
    signal.write(samples(frame, share(CHANNELS, rank)))
    delay_and_window[LENGTH, channels](signal, own_delays, hamming, LENGTH, delayed)
    ob.fft(delayed, spectra)
    comm.Alltoallw([spectra, once, sends], [turned, once, receives])
    ob.matmul(steering, turned, beams)
    comm.Gatherv(beams, [gathered, counts] if rank == 0 else None)
    if gathered is not None:
        parts = np.split(gathered.read(), np.cumsum(counts)[:-1])
        whole = np.hstack([part.reshape(BEAMS, -1) for part in parts])
        expected = by_numpy(frame)
        error = lambda of: abs(whole - of).max() / abs(of).max()  # noqa: E731
        worst, found = max(worst, error(expected)), detect(whole)
        assert found == detect(expected), f"frame {frame}: {found}, not {detect(expected)}"
        assert error(by_numpy(frame + 1)) > 0.01, "the control: another frame has other numbers"

if rank == 0:
    loudest = {frequency: max((abs(whole[b, f]), b) for b, f in found if f == frequency)[1] for _, frequency in found}
    print(f"{ranks} ranks, {FRAMES} frames of {BEAMS} x {LENGTH} numbers, largest relative error {worst:.1e}")
    print(f"{len(found)} detections; frequencies and their loudest beams: {loudest}")
    assert worst < 1e-5 and loudest == {frequency % LENGTH: beam for beam, frequency, _ in WAVES}
assert hub.ledger.implied_bytes == 0, hub.ledger
