"""The accelerator's wait share: its arithmetic, and its line in the report of `tandem bench serve`."""

from pathlib import Path

import pytest

from loadtest.serving.wait_share import Counted, parse_counters, wait_share
from tests.e2e.harness import Server
from tests.loadtest.serving.bench_process import bench, bench_result
from tests.loadtest.serving.other_server import OtherServer

SMALL = ("--num-prompts=4", "--random-input-len=16", "--random-output-len=8")
METRICS = """\
# TYPE tandem:worker_runnable_seconds counter
tandem:worker_runnable_seconds_total{process="worker",rank="0"} 3.0
tandem:worker_runnable_seconds_total{process="worker",rank="1"} 5.0
# TYPE tandem:worker_kernel_seconds counter
tandem:worker_kernel_seconds_total{process="worker",rank="0"} 2.5
tandem:worker_kernel_seconds_total{process="worker",rank="1"} 4.5
"""


def test_the_share_is_the_time_without_a_kernel() -> None:
    assert wait_share(Counted(10.0, 8.0), Counted(14.0, 11.0)) == 0.25
    assert wait_share(Counted(0.0, 0.0), Counted(2.0, 2.0)) == 0.0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, Counted(1.0, 0.5)),
        (Counted(1.0, 0.5), None),
        (Counted(1.0, 0.0), Counted(2.0, 0.0)),  # the kernels are not timed
        (Counted(1.0, 0.5), Counted(1.0, 0.5)),  # nothing ran
        (Counted(9.0, 8.0), Counted(1.0, 0.5)),  # the worker restarted
    ],
)
def test_without_usable_counters_there_is_no_wait_share(before: Counted | None, after: Counted | None) -> None:
    assert wait_share(before, after) is None


def test_counters_are_summed_over_their_labels() -> None:
    assert parse_counters(METRICS) == Counted(8.0, 7.0)
    assert parse_counters("# TYPE other counter\nother_total 1.0\n") is None
    assert parse_counters("\n".join(METRICS.splitlines()[:3]) + "\n") is None


def test_a_tandem_server_has_a_wait_share(server: Server, tmp_path: Path) -> None:
    done = bench(f"--base-url={server.url}", *SMALL)
    found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Accelerator wait share (%):")]
    assert 0 < float(line.split()[-1]) < 100
    assert 0 < found["accelerator_wait_share"] < 1


def test_other_servers_have_no_wait_share(tmp_path: Path) -> None:
    with OtherServer() as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL)
    assert "accelerator_wait_share" not in found
