"""How long faults make streams pause. Pure.

The pause of a stream by a fault is its largest gap between two events around the fault, less the median of its gaps. A
gap with two faults in it belongs to neither.
"""

import math
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

PERCENTILES = (50, 90, 99, 100)


def pauses(times: Sequence[float], faults: Sequence[float]) -> list[tuple[int, float]]:
    """Returns (index of a fault, seconds) for each fault that happened between two of a stream's events.

    `times` of the events and of `faults` are in order. Pauses are at least 0.
    """
    if len(times) < 3:
        return []
    gaps = [after - before for before, after in pairwise(times)]
    usual = statistics.median(gaps)
    found = []
    for index, fault in enumerate(faults):
        if not times[0] < fault < times[-1]:
            continue
        until = faults[index + 1] if index + 1 < len(faults) else math.inf
        # The gap with the fault in it must not begin before the previous one; later gaps end before the next one.
        first, last = bisect_right(times, fault) - 1, min(bisect_right(times, until) - 1, len(gaps))
        if first == last or (index and faults[index - 1] >= times[first]):
            continue
        largest = max(gaps[first:last])
        if last == len(gaps) or until - times[last] <= largest:  # else it still pauses when the next fault comes
            found.append((index, max(0.0, largest - usual)))
    return found


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
