"""`tandem bench engine`: a line for each number of running requests, measured in steady decode."""

import pytest

from loadtest.engine.command import STEPS_IN_FLIGHT, WARM_UP_STEPS, Simulation, step_times
from tests.e2e.harness import run_tandem


def test_it_prints_a_line_for_each_number_of_running_requests() -> None:
    ended = run_tandem("bench", "engine", "--num-running", "2", "5", "--num-steps=20", "--prompt-len=8")
    assert ended.returncode == 0 and ended.stderr == ""
    head, *lines = ended.stdout.splitlines()
    assert head.split() == ["running", "median", "µs", "p99", "µs", "µs/request"]
    assert [int(line.split()[0]) for line in lines] == [2, 5]
    for line in lines:
        running, median, p99, each = map(float, line.split())
        assert 0 < median <= p99 and each == pytest.approx(median / running, abs=0.1)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("output_len", [0, 6])
def test_every_step_of_every_request_is_measured(output_len: int, prefix_caching: bool) -> None:
    assert WARM_UP_STEPS > STEPS_IN_FLIGHT
    times = step_times(3, 40, 5, output_len, prefix_caching)
    assert len(times) == 40 and min(times) > 0


def test_a_finished_request_is_replaced_by_one_with_a_new_prompt() -> None:
    simulation = Simulation(4, 100, 40, 5, True)
    for _ in range(100):
        simulation.step()
        assert len(simulation._scheduler.running) + len(simulation._arrived) == 4
    counters = simulation._scheduler.counters
    assert counters.prefix_cache_queries > 60 * 40 and counters.prefix_cache_hits == 0


def test_the_cost_of_prefix_caching_is_a_ratio_of_the_two_times() -> None:
    args = ["--num-running=3", "--num-steps=50", "--output-len=9", "--prefix-caching-cost"]
    ended = run_tandem("bench", "engine", *args)
    assert ended.returncode == 0 and ended.stderr == ""
    head, line = ended.stdout.splitlines()
    assert head.split() == ["running", "without", "µs", "with", "µs", "cost"]
    running, without, cached, cost = line.split()
    assert running == "3" and cost.endswith("%")
    assert float(cost[:-1]) == pytest.approx(100 * (float(cached) / float(without) - 1), abs=0.3)


@pytest.mark.parametrize(
    "args",
    [["--num-running", "0"], ["--num-steps=x"], ["--nonsense"], ["--no-prefix-caching", "--prefix-caching-cost"]],
)
def test_a_wrong_command_line_is_refused(args: list[str]) -> None:
    ended = run_tandem("bench", "engine", *args)
    assert ended.returncode == 2 and args[0].split("=")[0] in ended.stderr
