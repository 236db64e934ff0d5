"""The gaps between kernels, and the table and trace that the profiler leaves."""

import gzip
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from loadtest.gpu import output
from loadtest.gpu.profile import (
    TABLE,
    TRACES,
    Event,
    Kernel,
    Profile,
    busy_share,
    events_of,
    keep_trace,
    kernels_of,
    profiled,
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    output.set_folder(tmp_path)
    yield tmp_path
    output.set_folder(None)


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], 0.0),
        ([(5, 8)], 1.0),
        ([(0, 1), (2, 3)], 2 / 3),
        ([(2, 4), (0, 1)], 3 / 4),  # in any order
        ([(0, 6), (1, 2), (5, 8)], 1.0),  # on several streams
        ([(0, 4), (1, 2), (6, 8), (7, 10)], 8 / 10),
        ([(3, 3)], 0.0),
    ],
)
def test_the_busy_share_is_the_union_of_the_intervals(intervals: list[tuple[float, float]], expected: float) -> None:
    assert busy_share(Event("kernel", *interval) for interval in intervals) == pytest.approx(expected)


def test_kernels_are_added_up_by_name() -> None:
    events = [Event("a", 0, 1), Event("b", 1, 4), Event("a", 4, 6), Event("c", 6, 8)]
    assert kernels_of(events) == [Kernel("a", 2, 3, 3 / 8), Kernel("b", 1, 3, 3 / 8), Kernel("c", 1, 2, 1 / 4)]
    assert kernels_of([]) == []
    assert Profile(kernels_of(events), 0.875).gaps == "kernels busy 87.5% of the time"
    assert Profile([], 0.0).gaps == "the profiler saw no kernels"


def test_only_events_of_the_device_are_taken_from_a_trace() -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "norm", "ts": 10.5, "dur": 2.0},
        {"ph": "X", "cat": "gpu_memcpy", "name": "copy", "ts": 3.0, "dur": 1.0},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1.0, "dur": 1.0},
        {"ph": "M", "name": "process_name", "args": {}},
        {"ph": "i", "cat": "kernel", "name": "instant", "ts": 1.0},
    ]
    found = events_of({"traceEvents": events}, ("kernel", "gpu_memcpy"))
    assert found == [Event("norm", 10.5, 12.5), Event("copy", 3.0, 4.0)]


def test_a_profile_leaves_a_table_and_a_trace(folder: Path) -> None:
    x = torch.ones(8, 8)
    found = profiled("0.6B decode, 1 running", torch.device("cpu"), lambda: [x @ x for _ in range(3)])
    by_name = {kernel.name: kernel for kernel in found.kernels}
    assert by_name["aten::mm"].calls == 3 and 0 < found.busy_share <= 1
    assert found.data["busy_share"] == found.busy_share
    assert {"name", "calls", "us", "share"} == set(found.data["kernels"][0])
    table = (folder / TABLE).read_text()
    assert table.startswith(f"0.6B decode, 1 running\n{found.gaps}\n") and "aten::mm" in table
    with zipfile.ZipFile(folder / TRACES) as archive:
        (name,) = archive.namelist()
        trace = json.loads(gzip.decompress(archive.read(name)))
    assert name == "1-0.6B-decode-1-running.json.gz"
    assert {"aten::mm"} <= {event["name"] for event in trace["traceEvents"]}


def test_a_trace_that_has_no_room_is_left_out(folder: Path) -> None:
    assert keep_trace("first", "text", most=30)
    size = (folder / TRACES).stat().st_size
    assert not keep_trace("second", "text", most=30)
    assert (folder / TRACES).stat().st_size == size
