"""The pause of a stream is its largest gap around a fault, less its usual gap."""

from collections import Counter

import pytest

from tests.chaos.pauses import pauses, percentile, table

EVERY_SECOND = [float(second) for second in range(10)]


@pytest.mark.parametrize(
    ("times", "faults", "expected"),
    [
        (EVERY_SECOND, [3.5], [(0, 1, 0.0)]),
        ([0, 1, 2, 3, 8, 9, 10, 11], [3.5], [(0, 1, 4.0)]),
        ([0, 1, 2, 3, 4, 9, 10, 11], [3.5], [(0, 1, 4.0)]),  # the answer's last tokens were on their way
        ([0, 1, 2, 3, 8, 9, 10, 11], [3.5, 7.0], [(0, 2, 4.0)]),
        ([0, 1, 2, 3, 8, 9, 10, 13, 14, 15, 16], [3.5, 10.5], [(0, 1, 4.0), (1, 1, 2.0)]),
        ([0, 1, 2, 3, 3.5, 9, 10, 11], [3.25, 5.0], [(0, 2, 4.5)]),  # a token was on its way
        ([0, 1, 2, 3, 8, 9, 14, 15, 20, 21], [3.5, 7.0, 9.5, 15.5, 18.0], [(0, 2, 4.0), (2, 1, 4.0), (3, 2, 4.0)]),
        ([0, 1, 2, 8, 9], [1.5, 3.5, 20.0], [(0, 2, 5.0)]),
        (EVERY_SECOND, [-1.0, 20.0], []),
        ([], [1.0], []),
    ],
)
def test_pauses(times: list[float], faults: list[float], expected: list[tuple[int, int, float]]) -> None:
    assert pauses(times, faults) == expected


def test_percentiles() -> None:
    hundredths = Counter(dict.fromkeys(range(1, 101), 2))
    assert [percentile(hundredths, share) for share in (50, 90, 99, 100)] == [0.5, 0.9, 0.99, 1.0]
    assert table({"worker, kill": hundredths}, "pause")[1].split()[-5:] == ["200", "0.50", "0.90", "0.99", "1.00"]
