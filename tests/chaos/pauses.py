"""How long faults make streams pause. Pure.

The pause of a stream by a fault is its largest gap between two events around the fault, less the median of its gaps.
Faults that come before a stream goes on have one pause in common.
"""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

PERCENTILES = (50, 90, 99, 100)


def pauses(times: Sequence[float], faults: Sequence[float]) -> list[tuple[int, int, float]]:
    """Returns (index of the first fault, number of faults, seconds) for each pause of a stream by the faults that
    happened between two of its events.

    `times` of the events and of `faults` are in order. Pauses are at least 0.
    """
    if len(times) < 3:
        return []
    gaps = [after - before for before, after in pairwise(times)]
    usual = statistics.median(gaps)
    begin, end = bisect_right(faults, times[0]), bisect_left(faults, times[-1])
    found: list[tuple[int, int, float]] = []
    first = begin
    for index in range(begin, end):
        until = faults[index + 1] if index + 1 < end else math.inf
        # The gaps that end before the next fault. It belongs to this pause if it comes before the stream goes on.
        around = gaps[_gap(times, faults[first]) : _gap(times, until)]
        if until < math.inf and (
            _gap(times, faults[index]) == _gap(times, until) or until - times[_gap(times, until)] > max(around)
        ):
            continue
        found.append((first, index + 1 - first, max(0.0, max(around) - usual)))
        first = index + 1
    return found


def _gap(times: Sequence[float], moment: float) -> int:
    """Returns the index of the gap between two events that a moment is in; the number of gaps if it is after all."""
    return min(bisect_right(times, moment), len(times)) - 1


def percentile(hundredths: Counter[int], share: float) -> float:
    """Returns the smallest pause, in seconds, that at least `share` percent of all do not exceed. `hundredths`: how
    many pauses there are of each length in hundredths of a second."""
    wanted = math.ceil(hundredths.total() * share / 100)
    ordered = sorted(hundredths)
    counts = accumulate(hundredths[length] for length in ordered)
    return next(length for length, count in zip(ordered, counts, strict=True) if count >= wanted) / 100


def table(by_label: Mapping[str, Counter[int]], heading: str) -> list[str]:
    """Returns the lines of a table: for each label the number of values and their percentiles, in seconds. `heading`
    stands above the labels."""
    width = max([len(heading), *map(len, by_label)])
    lines = [f"{heading:{width}}   number  median     p90     p99     max"]
    for label, hundredths in sorted(by_label.items()):
        figures = "".join(f"{percentile(hundredths, share):8.2f}" for share in PERCENTILES)
        lines.append(f"{label:{width}} {hundredths.total():8}{figures}")
    return lines
