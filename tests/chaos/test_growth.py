"""The slope of several series with levels of their own, and its standard error."""

import random
import re
from collections.abc import Callable

import pytest

from tests.chaos.growth import Growth, means, slope
from tests.chaos.snapshots import Snapshot


def test_series_on_lines_have_their_slope_and_no_error() -> None:
    found = slope([[(t, 5 + 2 * t) for t in range(4)], [(t, 90 + 2 * t) for t in range(7, 12)]])
    assert found == pytest.approx((2.0, 0.0), abs=1e-6)


def test_the_error_holds_the_true_slope_as_often_as_it_should() -> None:
    rng = random.Random(1)
    within = 0
    for _ in range(400):
        series = [[(t, level + 0.3 * t + rng.gauss(0, 2)) for t in range(20)] for level in (0, 50, -7)]
        found = slope(series)
        assert found is not None
        within += abs(found[0] - 0.3) < 2 * found[1]
    assert 0.92 < within / 400 < 0.98


def test_means_keep_the_error_true_where_samples_are_alike() -> None:
    """Noise that lasts a minute: samples of 5 s give an error that is far too small, means of five minutes do not."""
    rng = random.Random(1)
    within = {"samples": 0, "means": 0}
    for _ in range(200):
        noise, points = 0.0, []
        for n in range(960):
            noise = 0.92 * noise + rng.gauss(0, 1)
            points.append((5.0 * n, 0.001 * n + noise))
        for name, taken in (("samples", points), ("means", means(points))):
            found = slope([taken])
            assert found is not None
            within[name] += abs(found[0] - 0.0002) < 2 * found[1]
    assert within["samples"] < 100 and within["means"] > 170, within


def test_means_are_of_whole_five_minutes() -> None:
    found = means([(7.0 + 5.0 * n, float(n)) for n in range(150)])
    assert found == [(7.0 + 147.5, 29.5), (7.0 + 447.5, 89.5)]


def test_a_role_with_old_processes_has_their_slope_alone() -> None:
    growth = Growth(warm_seconds=0.0)
    for n in range(400):
        young = Snapshot(100 + n // 20, "one", "one", 4, 2, 102_400 + 1024 * (n % 20), 0)
        growth.see(5.0 * n, [Snapshot(1, "one", "one", 4, 2, 102_400, 0), young])
    (line,) = [line for line in growth.lines() if line.startswith("one")]
    assert line.startswith("one: own +0.00 ± 0.00 (") and "(1 of 21 series, means of 400 samples, 100 MiB" in line


def test_too_few_points_have_no_slope() -> None:
    assert slope([[(0.0, 1.0), (1.0, 2.0)]]) is None
    assert slope([]) is None


def test_a_line_tells_what_fills_up_from_what_leaks() -> None:
    """One process gains 1 MiB each 5 s for 50 s and then nothing, the other 1 MiB each 40 s all the time."""

    def samples(pid: int, role: str, mib: Callable[[int], float]) -> list[tuple[float, Snapshot]]:
        return [(5.0 * n, Snapshot(pid, role, role, 4, 2, round(1024 * mib(n)), 200_000)) for n in range(21)]

    growth = Growth(warm_seconds=5.0)
    growth.samples["filling", 1] = samples(1, "filling", lambda n: 100 + min(n, 10))
    growth.samples["leaking", 2] = samples(2, "leaking", lambda n: 100 + n / 8)
    filling, leaking = growth.lines()
    assert "(first halves +720.00 ± 0.00, second +0.00 ± 0.00)" in filling
    assert "own +90.00 ± 0.00 (first halves +90.00 ± 0.00, second +90.00 ± 0.00)" in leaking
    assert "resident +0.00 ± 0.00, files +0.00 ± 0.00, threads +0.00 ± 0.00 an hour (1 series, 20 samples," in leaking


def test_processes_that_replace_each_other_grow_alone_but_not_together() -> None:
    """Of two processes one is replaced each minute; each grows by 6 MiB a minute from the same level."""
    growth = Growth(warm_seconds=0.0)
    for n in range(481):
        ages = [(5.0 * n + 60.0 * which) % 120.0 for which in (0, 1)]
        pids = [int(5.0 * n + 60.0 * which) // 120 * 2 + which + 1 for which in (0, 1)]
        both = zip(pids, ages, strict=True)
        growth.see(5.0 * n, [Snapshot(pid, "one", "one", 4, 2, 102_400 + round(102.4 * age), 0) for pid, age in both])
    together, alone = growth.lines()
    found = re.match(r"all: own (\S+) ± (\S+) ", together)
    assert found is not None and abs(float(found[1])) <= float(found[2]) < 1.0
    assert "files +0.00 ± 0.00, threads +0.00 ± 0.00 an hour (1 of 1 series, means of 481 samples," in together
    assert alone.startswith("one: own +360.")
