"""`tandem bench engine`: a line for each number of running requests, measured in steady decode."""

import pytest

from services.bench.engine import STEPS_IN_FLIGHT, WARM_UP_STEPS, step_times
from tests.e2e.harness import run_tandem


def test_it_prints_a_line_for_each_number() -> None:
    ended = run_tandem("bench", "engine", "--num-running", "2", "5", "--num-steps=20", "--prompt-len=8")
    assert ended.returncode == 0 and ended.stderr == ""
    head, *lines = ended.stdout.splitlines()
    assert head.split() == ["running", "median", "µs", "p99", "µs", "µs/request"]
    assert [int(line.split()[0]) for line in lines] == [2, 5]
    for line in lines:
        running, median, p99, each = map(float, line.split())
        assert 0 < median <= p99 and each == pytest.approx(median / running, abs=0.1)


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_every_step_of_every_request_is_measured(prefix_caching: bool) -> None:
    assert WARM_UP_STEPS > STEPS_IN_FLIGHT
    times = step_times(3, 40, 5, prefix_caching)
    assert len(times) == 40 and min(times) > 0


@pytest.mark.parametrize("args", [["--num-running", "0"], ["--num-steps=x"], ["--nonsense"]])
def test_a_wrong_command_line_is_refused(args: list[str]) -> None:
    ended = run_tandem("bench", "engine", *args)
    assert ended.returncode == 2 and args[0].split("=")[0] in ended.stderr
