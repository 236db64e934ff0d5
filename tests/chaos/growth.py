"""How memory, open files and threads of a server's processes change over time: samples, and the slope of each by least
squares with its standard error.

A restarted process begins a new series with a level of its own; the first seconds of a series are left out. All
series of a role share one slope; all processes together are one series. A process's own memory also has a slope for the
first and for the second half of each series: caches and heaps that fill up grow less in the second, a leak grows as
fast.

Samples close in time are alike, and an error that takes them as independent is too small. So the slopes of a role that
has processes of half an hour are those of these processes, through the means of five minutes.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.chaos.snapshots import Snapshot, snapshots
from tests.e2e.harness import Server

SAMPLE_SECONDS = 5.0
LEAST_SAMPLES = 4  # of a series
MEAN_SECONDS = 300.0
LEAST_MEANS = 6  # of a series
HOUR = 3600.0
Point = tuple[float, float]  # seconds, value


@dataclass
class Growth:
    """Samples by role and process. `warm_seconds`: the beginning of a series that is left out."""

    warm_seconds: float
    samples: dict[tuple[str, int], list[tuple[float, Snapshot]]] = field(default_factory=lambda: defaultdict(list))

    async def run(self, server: Server) -> None:
        """Takes samples until it is cancelled."""
        while True:
            found = await asyncio.to_thread(snapshots, server)
            self.see(time.monotonic(), found)
            await asyncio.sleep(SAMPLE_SECONDS)

    def see(self, moment: float, found: Sequence[Snapshot]) -> None:
        """Adds the snapshots of all processes that run at a moment."""
        for one in [*found, _sum(found)]:
            self.samples[one.role, one.pid].append((moment, one))

    def lines(self) -> list[str]:
        """Returns one line for each role, and one for all processes together, with the slopes in an hour."""
        by_role: dict[str, list[list[tuple[float, Snapshot]]]] = defaultdict(list)
        for (role, _), taken in self.samples.items():
            warm = [sample for sample in taken if sample[0] - taken[0][0] >= self.warm_seconds]
            if len(warm) >= LEAST_SAMPLES:
                by_role[role].append(warm)
        return [_line(role, series) for role, series in sorted(by_role.items())]


def _line(role: str, series: Sequence[Sequence[tuple[float, Snapshot]]]) -> str:
    old = [points for points in series if points[-1][0] - points[0][0] >= LEAST_MEANS * MEAN_SECONDS]
    figures = []
    for name, unit in (("own", 1024.0), ("resident", 1024.0), ("files", 1.0), ("threads", 1.0)):
        samples = [[(moment, getattr(one, name) / unit) for moment, one in points] for points in old or series]
        values = list(map(means, samples)) if old else samples
        text = f"{name} {_an_hour(values)}"
        if name == "own":
            text += f" (first halves {_an_hour(map(first_half, values))}, second {_an_hour(map(second_half, values))})"
        figures.append(text)
    count = sum(map(len, old or series))
    mean = sum(one.own for points in old or series for _, one in points) / count / 1024
    what = f"{len(old)} of {len(series)} series, means of" if old else f"{len(series)} series,"
    return f"{role}: {', '.join(figures)} an hour ({what} {count} samples, {mean:.0f} MiB on average)"


def _sum(found: Sequence[Snapshot]) -> Snapshot:
    """Returns what all hold together. Memory that several map counts for each."""
    names = ("files", "threads", "own", "resident")
    return Snapshot(0, "all", "all", *(sum(getattr(one, name) for one in found) for name in names))


def _an_hour(series: Iterable[Sequence[Point]]) -> str:
    found = slope(series)
    return f"{found[0] * HOUR:+.2f} ± {found[1] * HOUR:.2f}" if found else "unknown"


def first_half(points: Sequence[Point]) -> Sequence[Point]:
    return points[: len(points) // 2]


def second_half(points: Sequence[Point]) -> Sequence[Point]:
    return points[len(points) // 2 :]


def means(points: Sequence[Point]) -> list[Point]:
    """Returns the means of whole MEAN_SECONDS, from the first point on."""
    blocks: dict[int, list[Point]] = defaultdict(list)
    for moment, value in points:
        blocks[int((moment - points[0][0]) // MEAN_SECONDS)].append((moment, value))
    last = int((points[-1][0] - points[0][0] + SAMPLE_SECONDS) // MEAN_SECONDS)
    found = [blocks[number] for number in sorted(blocks) if number < last]
    return [(sum(t for t, _ in block) / len(block), sum(y for _, y in block) / len(block)) for block in found]


def slope(series: Iterable[Sequence[Point]]) -> tuple[float, float] | None:
    """Returns the common slope of all series, each with a level of its own, and its standard error; None if there are
    too few points."""
    sum_tt = sum_ty = sum_yy = 0.0
    freedom = -1
    for points in series:
        mean_t, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
        sum_tt += sum((t - mean_t) ** 2 for t, _ in points)
        sum_ty += sum((t - mean_t) * (y - mean_y) for t, y in points)
        sum_yy += sum((y - mean_y) ** 2 for _, y in points)
        freedom += len(points) - 1
    if freedom < 1 or not sum_tt:
        return None
    found = sum_ty / sum_tt
    return found, math.sqrt(max(0.0, sum_yy - found * sum_ty) / freedom / sum_tt)
