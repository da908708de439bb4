#!/usr/bin/env python3
"""Draws the figures of docs/performance.md from results of `onebuf bench --json` in docs/figures.

`plots.py` prints which rows each figure has; `--write` draws them; `--check` fails if a figure is older than its results. To measure a machine:
`onebuf doctor`, then `onebuf bench --json > results.json`, then `plots.py --add NAME "MACHINE" results.json`, which keeps the rows that figures show.
Only Python's standard library is used.
"""

import datetime
import json
import math
import re
import sys
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
DATA = DOCS / "figures"
COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#a6761d", "#1f78b4", "#666666")
# The rows of `onebuf bench` that figures show. Everything else in a file of results is left out.
SHOWN = re.compile(r"(handoff_|graft_handoff_|staged_ratio|upload_[a-z]+:|download_[a-z]+:|growth_)")
SIZE = re.compile(r"_(\d+)(B|KiB|MiB|GiB)(?:_us)?$")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
TIMES = {"ns": 1e-3, "us": 1.0, "ms": 1e3}


def machines():
    """Every machine's results, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}


def size_of(name):
    """The bytes in a row's name, and the name without them."""
    found = SIZE.search(name)
    return (int(found.group(1)) * UNITS[found.group(2)], name[: found.start()]) if found else (None, name)


def size_name(size):
    unit = next(unit for unit in ("GiB", "MiB", "KiB", "B") if size >= UNITS[unit])
    return f"{size // UNITS[unit]} {unit}"


class Chart:
    """An SVG whose axes are logarithmic, or linear from zero."""

    def __init__(self, xs, ys, labels, log_y=True, width=800, height=400):
        self.left, self.top, self.across, self.down = 80, 20, width - 330, height - 75
        self.x_ends, self.y_ends, self.log_y = xs, ys, log_y
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="{self.left + self.across / 2:.0f}" y="{height - 8}" text-anchor="middle">{escape(labels[0])}</text>',
            f'<text transform="translate(16 {self.top + self.down / 2:.0f}) rotate(-90)" text-anchor="middle">{escape(labels[1])}</text>',
        ]
        self.names = []

    def x(self, value):
        low, high = self.x_ends
        return self.left + self.across * math.log(value / low) / math.log(high / low)

    def y(self, value):
        low, high = self.y_ends
        part = math.log(value / low) / math.log(high / low) if self.log_y else (value - low) / (high - low)
        return self.top + self.down * (1 - part)

    def grid(self, x_ticks, y_ticks):
        for value, text in x_ticks:
            self.parts.append(f'<path d="M{self.x(value):.1f} {self.top}v{self.down}" stroke="#ddd"/>')
            self.parts.append(f'<text x="{self.x(value):.1f}" y="{self.top + self.down + 18}" text-anchor="middle">{text}</text>')
        for value, text in y_ticks:
            self.parts.append(f'<path d="M{self.left} {self.y(value):.1f}h{self.across}" stroke="#ddd"/>')
            self.parts.append(f'<text x="{self.left - 8}" y="{self.y(value) + 4:.1f}" text-anchor="end">{text}</text>')

    def curve(self, points, colour, name, dashed=False):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        at = [(self.x(x), self.y(y)) for x, y in sorted(points)]
        self.parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in at)}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in at]
        self.names.append((at[-1][1], colour, name))

    def svg(self):
        previous = -math.inf
        for at, colour, name in sorted(self.names):
            at = previous = max(at, previous + 15)
            self.parts.append(f'<text x="{self.left + self.across + 8}" y="{at + 4:.1f}" fill="{colour}">{escape(name)}</text>')
        return "\n".join([*self.parts, "</svg>", ""])


def micros(row):
    return row["value"] * TIMES[row["unit"]] if row["value"] and row["unit"] in TIMES else None


def handovers():
    """What one hand-over costs, there and back or halved as the row says: bars, and what they replace."""
    bars = []
    for colour, (key, data) in zip(COLOURS, machines().items()):
        for row in data["results"]:
            took = micros(row)
            if took and row["name"].startswith(("handoff_", "graft_handoff_")):
                name = re.sub(r"_(us|ratio)$", "", row["name"]).replace("handoff_", "", 1).replace("_", " ")
                before = row["baseline"] and row["baseline"] * TIMES[row["unit"]]
                bars.append((took, before, f"{name} ({key})", colour))
    bars.sort()
    width, left, high = 800, 330, 10 ** math.ceil(math.log10(max(max(took, before or 0) for took, before, _, _ in bars)))
    x = lambda us: left + (width - left - 70) * math.log10(max(us, 1)) / math.log10(high)  # noqa: E731
    tall = 24 * len(bars) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{tall}" fill="white"/>',
    ]
    for power in range(int(math.log10(high)) + 1):
        parts.append(f'<path d="M{x(10**power):.1f} 8v{tall - 50}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(10**power):.1f}" y="{tall - 26}" text-anchor="middle">{10**power:,}</text>')
    for at, (took, before, name, colour) in enumerate(bars):
        y = 12 + 24 * at
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{x(took) - left:.1f}" height="15" fill="{colour}"/>')
        if before:
            parts.append(f'<path d="M{x(before):.1f} {y - 2}v19" stroke="#000" stroke-width="2"/>')
    parts.append(f'<text x="{(left + width) / 2:.0f}" y="{tall - 6}" text-anchor="middle">microseconds; the black line is the baseline of the row</text>')
    return "\n".join([*parts, "</svg>", ""])


def transfers():
    """Uploads of ordinary slices over raw copies of pinned memory, by size."""
    chart = Chart((4, 1 << 30), (0, 1.4), ("bytes", "upload of an ordinary slice / raw copy of pinned memory"), log_y=False)
    chart.grid([(1 << n, size_name(1 << n)) for n in (2, 10, 16, 20, 24, 30)], [(n / 5, f"{n / 5:.1f}") for n in range(8)])
    lines = {}
    for key, data in machines().items():
        for row in data["results"]:
            size, name = size_of(row["name"])
            if size and name.startswith("upload_") and row["ratio"]:
                # Below 1 MiB a row is a time, of which less is better.
                speed = row["ratio"] if row["unit"] == "GB/s" else 1 / row["ratio"]
                lines.setdefault(f"{name.removeprefix('upload_')} ({key})", []).append((size, min(speed, 1.4)))
    for colour, (name, points) in zip(COLOURS, lines.items()):
        chart.curve(points, colour, name)
    return chart.svg()


def frames():
    """Frames per second of two stages of two APIs, by the size of a frame; dashed with a staged copy between them."""
    chart = Chart((1 << 16, 1 << 30), (1, 10_000), ("bytes of a frame", "frames per second"))
    chart.grid([(1 << n, size_name(1 << n)) for n in range(16, 31, 2)], [(10**n, f"{10**n:,}") for n in range(5)])
    lines = {}
    for key, data in machines().items():
        for row in data["results"]:
            size, name = size_of(row["name"])
            took = micros(row)
            if size and took and name.startswith("growth_") and not name.startswith("growth_limit_"):
                label = f"{name.removeprefix('growth_').replace('_', ' and ', 1)} ({key})"
                lines.setdefault(label, []).append((size, 1e6 / took))
                lines.setdefault(f"{label}, staged", []).append((size, 1e6 * row["ratio"] / took))
    for at, (name, points) in enumerate(lines.items()):
        chart.curve(points, COLOURS[at // 2], name, dashed=name.endswith("staged"))
    return chart.svg()


FIGURES = {"handovers.svg": handovers, "transfers.svg": transfers, "frames.svg": frames}


def add(name, machine, file):
    """Keeps the rows of a run that figures show."""
    told = json.loads(Path(file).read_text())
    rows = [row for row in told["results"] if SHOWN.match(row["name"])]
    head = {"schema": told["schema"], "machine": machine, "date": datetime.date.today().isoformat(), "command": "onebuf bench --json"}
    (DATA / f"{name}.json").write_text(json.dumps({**head, "results": rows, "skipped": []}, indent=0) + "\n")


def main(args):
    if len(args) == 4 and args[0] == "--add":
        add(*args[1:])
        args = ["--write"]
    if args == ["--write"]:
        for name, draw in FIGURES.items():
            (DATA / name).write_text(draw())
        return 0
    if args == ["--check"]:
        old = [name for name, draw in FIGURES.items() if not (DATA / name).exists() or (DATA / name).read_text() != draw()]
        print("\n".join(f"{name} is older than its results: run plots.py --write" for name in old) or f"{len(FIGURES)} figures show their results")
        return 1 if old else 0
    if args:
        print(__doc__)
        return 2
    for key, data in machines().items():
        print(f"{key}: {data['machine']}, {data['date']}: {len(data['results'])} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
