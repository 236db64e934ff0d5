"""Counts what became of answers, and remembers the first failures."""

from dataclasses import dataclass, field

from tests.structured.cases import Case

MAX_FAILURES = 20


@dataclass
class Tally:
    """`bounded`: answers of bounded cases; `bounded_ended`: those of them that came to their end by themselves."""

    refused: list[str] = field(default_factory=list)  # forms, not answers, each with its reason
    answers: int = 0
    ended: int = 0
    bounded: int = 0
    bounded_ended: int = 0
    limits: int = 0  # answers that a limit ended
    failures: list[str] = field(default_factory=list)

    def add(self, case: Case, text: bytes, is_complete: bool, is_accepted: bool) -> None:
        """Judges an answer. `is_accepted`: a fresh matcher accepts its tokens."""
        self.answers += 1
        self.ended += is_complete
        self.bounded += case.bounded
        self.bounded_ended += case.bounded and is_complete
        whole = text.decode(errors="replace")
        if not is_accepted:
            self.fail(f"{case.name}: a fresh matcher refuses {whole[:200]!r}")
        if is_complete and not case.judge(whole):
            self.fail(f"{case.name}: ended, but does not follow its form: {whole[:300]!r}")
        # A cut answer may end within a character.
        cut = text.decode(errors="ignore")
        if not is_complete and case.prefix is not None and not case.prefix(cut):
            self.fail(f"{case.name}: no answer begins with {cut[:300]!r}")

    def fail(self, failure: str) -> None:
        self.failures.append(failure)

    @property
    def bounded_share(self) -> float:
        """The share of answers of bounded cases that came to their end, from 0 to 1."""
        return self.bounded_ended / max(1, self.bounded)

    def report(self, title: str) -> str:
        """Returns the counts as a line, and the first failures a line each."""
        line = (
            f"{title}: {self.answers} answers, {len(self.refused)} forms refused, {self.ended} ended by themselves "
            f"({self.bounded_share:.1%} of {self.bounded} with bounded forms), {self.limits} at a limit, "
            f"{len(self.failures)} failures"
        )
        return "\n".join([line, *(f"  {failure}" for failure in self.failures[:MAX_FAILURES])])
