"""The slope of several series with levels of their own, and its standard error."""

import random

import pytest

from tests.chaos.growth import slope


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


def test_too_few_points_have_no_slope() -> None:
    assert slope([[(0.0, 1.0), (1.0, 2.0)]]) is None
    assert slope([]) is None
