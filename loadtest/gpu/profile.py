"""What ran on the device during some steps, by torch.profiler: a table of kernels, and the gaps between them.

The wait share (ahead.py) counts the gaps between the kernels of a step as kernel time. Here they are seen: the union of
the kernels' intervals against the time from the first one's begin to the last one's end. With the profiler the host
launches kernels more slowly, so gaps of steps without a graph are at most as long without it.
"""

import gzip
import json
import re
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from loadtest.gpu import output

KINDS = {"cuda": ("kernel", "gpu_memcpy", "gpu_memset"), "cpu": ("cpu_op",)}  # categories of the trace's events
TABLE, TRACES = "profiles.txt", "traces.zip"
MAX_TRACES_BYTES = 12 * 2**20  # of TRACES
TOP = 12  # kernels in a row's data


class Event(NamedTuple):
    """A kernel or copy on the device; times in µs."""

    name: str
    begin: float
    end: float


class Kernel(NamedTuple):
    """All events of one name: their number, their total time in µs, and its share of that of all events."""

    name: str
    calls: int
    us: float
    share: float


@dataclass(frozen=True)
class Profile:
    kernels: Sequence[Kernel]  # by total time, descending
    busy_share: float  # of the time from the first event to the last one's end

    @property
    def data(self) -> dict[str, Any]:
        """JSON values: the busy share and the TOP kernels."""
        return {"busy_share": self.busy_share, "kernels": [kernel._asdict() for kernel in self.kernels[:TOP]]}

    @property
    def gaps(self) -> str:
        """Returns the busy share as text."""
        if not self.kernels:
            return "the profiler saw no kernels"
        return f"kernels busy {self.busy_share:.1%} of the time"

    def __str__(self) -> str:
        """Returns a table: share, total µs, calls and name of every kernel."""
        lines = [f"{kernel.share:7.1%} {kernel.us:12.1f} us {kernel.calls:7} {kernel.name}" for kernel in self.kernels]
        return "\n".join([self.gaps, *lines])


def busy_share(events: Iterable[Event]) -> float:
    """Returns the length of the union of the events' intervals over the time from the first begin to the last end, 0 to
    1; 0 without events."""
    ordered = sorted((event.begin, event.end) for event in events)
    if not ordered:
        return 0.0
    busy, reached = 0.0, ordered[0][0]
    for begin, end in ordered:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    span = reached - ordered[0][0]
    return busy / span if span else 0.0


def kernels_of(events: Iterable[Event]) -> list[Kernel]:
    """Returns one Kernel for each name, by total time, descending."""
    durations: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        durations[event.name].append(event.end - event.begin)
    total = sum(map(sum, durations.values())) or 1.0
    found = [Kernel(name, len(each), sum(each), sum(each) / total) for name, each in durations.items()]
    return sorted(found, key=lambda kernel: -kernel.us)


def events_of(trace: dict[str, Any], kinds: Sequence[str]) -> list[Event]:
    """Returns the events with a category of `kinds` in a Chrome trace (torch.profiler's export_chrome_trace)."""
    return [
        Event(event["name"], event["ts"], event["ts"] + event["dur"])
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in kinds
    ]


def profiled(name: str, device: torch.device, run: Callable[[], object]) -> Profile:
    """Runs `run` under the profiler, waits for the device, and returns what ran there; on a CPU torch's operations.

    Appends the table to the file TABLE and the trace to TRACES (output.py), both under `name`. A trace for which TRACES
    has no room is left out.
    """
    activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        text = path.read_text()
    events = events_of(json.loads(text), KINDS[device.type])
    found = Profile(kernels_of(events), busy_share(events))
    kept = keep_trace(name, text)
    with output.file(TABLE).open("a") as file:
        file.write(f"{name}{'' if kept else ' (the trace is left out)'}\n{found}\n\n")
    return found


def keep_trace(name: str, text: str, most: int = MAX_TRACES_BYTES) -> bool:
    """Appends a trace to TRACES, unless the file would have more than `most` bytes. Returns whether it did."""
    path, packed = output.file(TRACES), gzip.compress(text.encode())
    if len(packed) + (path.stat().st_size if path.exists() else 0) > most:
        return False
    with zipfile.ZipFile(path, "a") as archive:
        member = re.sub(r"[^\w.]+", "-", f"{len(archive.namelist()) + 1} {name}")
        archive.writestr(f"{member}.json.gz", packed)
    return True
