"""The machine's limits: the arithmetic, the probes, and other processes' CPU time."""

import math
import time

import pytest
import torch

from loadtest.kernels import limits
from loadtest.kernels.limits import Limits, Work, other_cpu_seconds, probe

LIMITS = Limits(memory_bytes=10e9, cache_bytes=100e9, operations=200e9)


@pytest.mark.parametrize(
    ("work", "seconds"),
    [(Work(cold_bytes=10**9), 0.1), (Work(warm_bytes=10**9), 0.01), (Work(operations=10**9), 0.005), (Work(), 0.0)],
)
def test_each_part_of_the_work_has_its_rate(work: Work, seconds: float) -> None:
    assert LIMITS.seconds(work) == pytest.approx(seconds)


def test_a_limit_is_no_lower_than_a_measured_rate() -> None:
    raised = LIMITS.raised(Work(cold_bytes=20_000, warm_bytes=10**9, operations=100), 1e-6)
    assert raised == Limits(20e9, 100e9, 200e9)
    assert LIMITS.raised(Work(cold_bytes=1, operations=1), 1.0) == LIMITS


def test_the_probe_measures_rates_and_sets_the_threads() -> None:
    before = torch.get_num_threads()
    try:
        found = probe(2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    # Any machine that runs this: more than 100 MB/s and 100 Mop/s, less than 100 TB/s and 10 Pop/s.
    assert 1e8 < found.memory_bytes < 1e14
    assert 1e8 < found.cache_bytes < 1e14
    assert 1e8 < found.operations < 1e16


def test_own_cpu_time_is_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "busy_seconds", lambda: 1000.0)
    others, own = other_cpu_seconds(), time.process_time()
    while time.process_time() - own < 0.2:
        pass
    assert others - other_cpu_seconds() >= 0.2
    monkeypatch.setattr(limits, "busy_seconds", lambda: math.nan)
    assert math.isnan(other_cpu_seconds())
