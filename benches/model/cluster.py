#!/usr/bin/env python3
"""How many frames per second the demonstration would process on 1 to 1,000 machines: a model, not a measurement.

Costs of one machine are fitted to figures that were measured on one NVIDIA H200 and are in docs/benchmarks.md and docs/demo.md. Networks have
their published line rates. `cluster.py` prints the fit and the table; `--write` puts table and plot into docs; `--check` fails if the
fit is bad or docs are older than the model. Only Python's standard library is used.
"""

import math
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"

# The frame: 2048 channels of 2048 complex samples, 16 beams.
CHANNELS, LENGTH, BEAMS, NUMBER = 2048, 2048, 16, 8
FRAME = CHANNELS * LENGTH * NUMBER
BEAM_BYTES = BEAMS * LENGTH * NUMBER

# Measured on one H200: what one frame costs its GPU, by the number of changes between OpenCL's and CUDA's context (us).
GPU = [(0, 62.0), (0, 58.0), (1 / 8, 84.0), (1, 229.0)]
# Transfers of so many bytes over its bus (us): 51, 53 and 54.0 GB/s.
BUS = [(2 << 20, (2 << 20) / 51e3), (4 << 20, (4 << 20) / 53e3), (32 << 20, (32 << 20) / 54e3)]
# Detecting and checking a frame on the host (us), and the frames per second of the demonstration, which that limits.
DETECT_US, DEMO = 2400.0, (413.0, 421.0)

# Published line rates (bytes per us), and what a message costs its sender or receiver (us): 1.3 is the latency of MPI over InfiniBand in
# QLogic's manual of OSU's benchmark, 10 an assumption for TCP.
NETWORKS = {
    "10 Gb/s Ethernet": (1.25e3, 10.0),
    "100 Gb/s Ethernet": (12.5e3, 10.0),
    "InfiniBand HDR, 200 Gb/s": (25e3, 1.3),
    "InfiniBand NDR, 400 Gb/s": (50e3, 1.3),
}
# The fraction of the line rate that an all-to-all reaches. An assumption: large jobs on networks with less than full bisection reach less.
EFFICIENCY = 0.8
# For each other machine: a record and a block of the corner turn, and of the gather of beams. One thread handles them all.
MESSAGES = 4

NODES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]


def line(points):
    """The line `y = a + b x` with the least sum of squared relative errors."""
    w = [1 / y**2 for _, y in points]
    sw = sum(w)
    mx = sum(wi * x for wi, (x, _) in zip(w, points)) / sw
    my = sum(wi * y for wi, (_, y) in zip(w, points)) / sw
    b = sum(wi * (x - mx) * (y - my) for wi, (x, y) in zip(w, points)) / sum(wi * (x - mx) ** 2 for wi, (x, _) in zip(w, points))
    return my - b * mx, b


KERNELS_US, CHANGE_US = line(GPU)
TRANSFER_US, US_PER_BYTE = line(BUS)


def fitted():
    """Every measured point beside what the model says: what, measured, model."""
    rows = [(f"GPU, {changes:g} changes of context per frame (us)", us, KERNELS_US + CHANGE_US * changes) for changes, us in GPU]
    rows += [(f"bus, {size >> 20} MiB (us)", us, TRANSFER_US + US_PER_BYTE * size) for size, us in BUS]
    return rows + [("demonstration (frames/s)", rate, 1e6 / DETECT_US) for rate in DEMO]


def crossing(nodes):
    """The bytes that rank 0 receives for a frame."""
    return (FRAME / nodes + BEAM_BYTES) * (nodes - 1) / nodes


def stages(nodes, network):
    """What one frame costs each part of a machine (us). Parts work at the same time, so the longest limits the rate."""
    rate, message = NETWORKS[network]
    part = FRAME / nodes
    costs = {
        # A corner turn lies between the two APIs: nothing is grafted, and the GPU changes its context once per frame.
        "GPU": KERNELS_US / nodes + CHANGE_US,
        # Samples and turned spectra go up, spectra and beams come down; the directions do not disturb each other.
        "bus": 2 * (TRANSFER_US + US_PER_BYTE * part),
        # Rank 0 has the most to do: its part of the corner turn, and the beams of all others.
        "network": crossing(nodes) / (rate * EFFICIENCY) + MESSAGES * (nodes - 1) * message,
    }
    return costs


def prediction(nodes, network):
    """Frames per second without detection, and the part that limits them."""
    costs = stages(nodes, network)
    limit = max(costs, key=costs.get)
    return 1e6 / costs[limit], limit


def rounded(rate):
    digits = 2 - math.floor(math.log10(rate)) - 1
    return f"{round(rate, digits):,.0f}" if digits <= 0 else f"{rate:.{digits}f}"


def table():
    rows = ["| machines | " + " | ".join(NETWORKS) + " |", "|---" * (len(NETWORKS) + 1) + "|"]
    for nodes in NODES:
        cells = ["{} ({})".format(rounded(rate), limit) for rate, limit in (prediction(nodes, network) for network in NETWORKS)]
        rows.append(f"| {nodes:,} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def plot():
    """An SVG with both axes logarithmic."""
    width, height, left, top, right, bottom = 760, 430, 70, 20, 215, 50
    low, high = 10, 10_000
    across, down = width - left - right, height - top - bottom
    x = lambda nodes: left + across * math.log10(nodes) / 3  # noqa: E731
    y = lambda rate: top + down * (1 - math.log(rate / low) / math.log(high / low))  # noqa: E731
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for nodes in (1, 10, 100, 1000):
        parts.append(f'<path d="M{x(nodes):.1f} {top}V{top + down}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(nodes):.1f}" y="{top + down + 18}" text-anchor="middle">{nodes:,}</text>')
    for rate in (10, 100, 1000, 10_000):
        parts.append(f'<path d="M{left} {y(rate):.1f}H{left + across}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate:,}</text>')
    parts.append(f'<text x="{left + across / 2:.0f}" y="{height - 8}" text-anchor="middle">machines</text>')
    parts.append(f'<text transform="translate(16 {top + down / 2:.0f}) rotate(-90)" text-anchor="middle">frames of 32 MiB per second</text>')
    every = sorted({round(10 ** (step / 40)) for step in range(121)})
    ends = []
    for colour, network in zip(("#888888", "#d95f02", "#1b9e77", "#7570b3"), NETWORKS):
        points = " ".join(f"{x(n):.1f},{y(max(low, min(high, prediction(n, network)[0]))):.1f}" for n in every)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        ends.append((y(max(low, prediction(1000, network)[0])), colour, network))
    limit = y(1e6 / DETECT_US)
    parts.append(f'<path d="M{left} {limit:.1f}H{left + across}" stroke="#000" stroke-dasharray="5 4"/>')
    ends.append((limit, "#000000", "detection on rank 0 alone"))
    previous = -math.inf
    for at, colour, label in sorted(ends):
        at = previous = max(at, previous + 15)
        parts.append(f'<text x="{left + across + 8}" y="{at + 4:.1f}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


BEGIN, END = "<!-- benches/model/cluster.py writes this table -->\n", "\n<!-- end of the table -->"


def pages():
    """The files in docs as they should be."""
    page = DOCS / "mpi-jobs.md"
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    return {page: f"{head}{BEGIN}{table()}{END}{tail}", DOCS / "mpi-model.svg": plot()}


def check():
    """What is wrong with the fit, the model or docs, one sentence each."""
    wrong = [f"{what}: {measured:.1f} was measured, {said:.1f} is the model's" for what, measured, said in fitted() if abs(said / measured - 1) > 0.06]
    for network in NETWORKS:
        if prediction(1, network)[0] != prediction(1, "10 Gb/s Ethernet")[0]:
            wrong.append(f"one machine depends on {network}")
        if any(prediction(nodes, network)[0] > 1e6 / max(KERNELS_US / nodes + CHANGE_US, crossing(nodes) / NETWORKS[network][0]) for nodes in NODES):
            wrong.append(f"{network}: faster than the GPU or the line")
    slow, fast = ([prediction(nodes, name)[0] for nodes in NODES[1:]] for name in (list(NETWORKS)[0], list(NETWORKS)[-1]))
    if any(a > b for a, b in zip(slow, fast)):
        wrong.append("a slower network is faster")
    return wrong + [f"{path.name} is not what the model says: run {Path(__file__).name} --write" for path, text in pages().items() if not path.exists() or path.read_text() != text]


def main(args):
    if args == ["--write"]:
        for path, text in pages().items():
            path.write_text(text)
        return 0
    if args == ["--check"]:
        wrong = check()
        print("\n".join(wrong) or f"{len(fitted())} measured points are met, and docs are the model's")
        return 1 if wrong else 0
    if args:
        print(__doc__)
        return 2
    for what, measured, said in fitted():
        print(f"{what:48} measured {measured:8.1f}  model {said:8.1f}  {100 * (said / measured - 1):+.1f} %")
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
