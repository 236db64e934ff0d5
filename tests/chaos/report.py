"""What a part has counted, as one JSON line; the sum of several parts; and both as text. Pure."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tests.chaos.attempt import ANSWERED, HUNG_UP, LOST, REFUSED
from tests.chaos.load import DIFFERENT
from tests.chaos.pauses import table

MOST_EXAMPLES = 3  # of a reason
OUTCOMES = (ANSWERED, HUNG_UP, REFUSED, LOST, DIFFERENT)


@dataclass
class Report:
    """Counts of one part or of several. `pauses`: by label, streams by hundredths of a second. `client_cpu`: the most
    cores that the clients of a part used."""

    parts: list[str] = field(default_factory=list)  # seed and variant of each
    minutes: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)  # "ROLE, KIND"
    together: int = 0  # faults that were one of two at once
    phases: Counter[str] = field(default_factory=Counter)
    live: Counter[int] = field(default_factory=Counter)  # requests in flight at a fault
    missed: int = 0  # faults that hit too few requests, or no process; repeated
    requests: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # of requests that were refused, lost or different
    examples: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    quiet_points: int = 0
    preemptions: int = 0
    found: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))  # stopped until it ended
    pauses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    client_cpu: float = 0.0
    growth: list[str] = field(default_factory=list)  # of each role's memory, files and threads

    @property
    def clean(self) -> bool:
        """Whether nothing went wrong."""
        failed = sum(self.requests[outcome] for outcome in (REFUSED, LOST, DIFFERENT))
        return not failed and not self.leaks and not self.hangs and not self.tracebacks

    def _kinds(self) -> str:
        kinds: Counter[str] = Counter()
        for label, count in self.faults.items():
            kinds[label.rpartition(", ")[2]] += count
        return ", ".join(f"{kind} {count / kinds.total():.1%}" for kind, count in kinds.most_common())

    def line(self) -> str:
        """Returns the report as one line of JSON."""
        return json.dumps({one.name: getattr(self, one.name) for one in fields(self)})

    def lines(self) -> list[str]:
        """Returns the report for readers."""
        counts = ", ".join(f"{self.requests[outcome]} {outcome}" for outcome in OUTCOMES)
        live = sorted(self.live.elements())
        return [
            f"{len(self.parts)} parts ({'; '.join(self.parts)}), {self.minutes:.1f} minutes",
            f"{self.faults.total()} faults ({self.together} of them two at once), {self.missed} missed and repeated",
            *(f"  {count:5} {label}" for label, count in sorted(self.faults.items())),
            f"kinds: {self._kinds()}",
            f"phases: {', '.join(f'{phase} {count}' for phase, count in sorted(self.phases.items()))}",
            f"live requests at a fault: least {live[0]}, median {live[len(live) // 2]}" if live else "no fault",
            f"requests: {counts}; {self.preemptions} preemptions; clients used up to {self.client_cpu:.2f} cores",
            *(f"  {count:5} {reason}" for reason, count in self.reasons.most_common(20)),
            *(f"  e.g. {example}" for example in self.examples),
            f"{self.quiet_points} quiet points, {len(self.leaks)} leaks, {len(self.hangs)} hangs, "
            f"{len(self.tracebacks)} tracebacks",
            *(f"  {line}" for line in (*self.leaks, *self.hangs, *self.tracebacks)),
            *table(self.pauses, "pause of a stream, s"),
            *table(self.found, "stopped until ended, s"),
            *self.growth,
        ]


def total(lines: Iterable[str]) -> Report:
    """Returns the sum of reports that were written by Report.line."""
    summed = Report()
    for line in lines:
        raw = json.loads(line)
        for one in fields(Report):
            setattr(summed, one.name, _add(one.name, getattr(summed, one.name), raw[one.name]))
    return summed


def _add(name: str, before: Any, raw: Any) -> Any:
    if name == "client_cpu":
        return max(before, raw)
    if name in ("found", "pauses"):
        for label, counts in raw.items():
            before[label].update(_by_number(counts))
        return before
    if isinstance(before, Counter):
        before.update(_by_number(raw) if name == "live" else raw)
        return before
    return before + raw


def _by_number(raw: Mapping[str, int]) -> Counter[int]:
    return Counter({int(number): count for number, count in raw.items()})


def kind_of(reason: str) -> str:
    """Returns a reason without what differs from request to request: values, numbers and ids."""
    return re.sub(r"[0-9a-f]{8,}|\d+", "N", reason.partition(": '")[0])[:160]
