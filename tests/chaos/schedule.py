"""The faults of a part, from its seed: kinds, roles and phases are dealt as from decks of cards, so that a short part
has the shares of a long one."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

KILL, STOP, PAUSE, CUT = "kill", "stop", "stop and continue", "cut"
WORKER, ENGINE, TOKENIZER = "worker", "engine", "tokenizer"
QUEUED, RENDERING, PREFILL, DECODE = "queued", "rendering", "chunked prefill", "decode"
HELD_BACK, IN_CALL, TERMINAL, RESTART = "held-back text", "inside a call", "terminal not delivered", "restart"

KINDS = (KILL,) * 14 + (STOP,) * 3 + (PAUSE,) + (CUT,) * 2  # 70, 15, 5 and 10%
ROLES = (WORKER, ENGINE, TOKENIZER)
PHASES = (QUEUED, RENDERING, PREFILL, DECODE, DECODE, HELD_BACK, IN_CALL, TERMINAL, TERMINAL, RESTART)
TOGETHER = (1, 1, 1, 2)  # faults at once
PAUSE_SECONDS = (0.2, 2.5)
CardT = TypeVar("CardT")


@dataclass(frozen=True)
class Blow:
    """One fault: what happens to which role. `seconds`: from SIGSTOP to SIGCONT."""

    kind: str
    role: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Strike:
    """One or two faults at the same moment, in the phase that some request must be in."""

    blows: tuple[Blow, ...]
    phase: str


class Deck(Generic[CardT]):
    """Deals all cards in random order, then all again."""

    def __init__(self, rng: random.Random, cards: Sequence[CardT]) -> None:
        self._rng = rng
        self._cards = cards
        self._left: list[CardT] = []

    def deal(self) -> CardT:
        self._left = self._left or self._rng.sample(self._cards, len(self._cards))
        return self._left.pop()


def strikes(seed: int) -> Iterator[Strike]:
    """Yields strikes without end. Two faults at once have different roles, or hit both tokenizers."""
    rng = random.Random(f"strikes {seed}")
    kinds, roles, phases, together = (Deck(rng, KINDS), Deck(rng, ROLES), Deck(rng, PHASES), Deck(rng, TOGETHER))
    while True:
        chosen = [roles.deal()]
        if together.deal() == 2:
            chosen.append(rng.choice([role for role in ROLES if role != chosen[0] or role == TOKENIZER]))
        blows = tuple(Blow(kinds.deal(), role, rng.uniform(*PAUSE_SECONDS)) for role in chosen)
        yield Strike(blows, phases.deal())


def in_turn(planned: Iterator[Strike], roles: Sequence[str], per_role: int) -> Iterator[Strike]:
    """Yields single faults, `per_role` of them at one role, then at the next: the other roles' processes grow old."""
    for index, strike in enumerate(planned):
        role = roles[index // per_role % len(roles)]
        yield Strike((replace(strike.blows[0], role=role),), strike.phase)
