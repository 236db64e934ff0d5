"""The clients: each sends its request again and again, and compares every answer with the expected one.

Owns the requests in flight and the counts. A gate closes for quiet points: then no new request is sent.
"""

import asyncio
import gc
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.chaos.answers import answer_of, wrong
from tests.chaos.attempt import ANSWERED, HUNG_UP, Attempt
from tests.chaos.cases import Case, Json

AGAIN_SECONDS = 2.0  # from the early end of a request until its client sends it again: most requests are to run long
DIFFERENT = "different"
STOP_CHARACTERS = 4


@dataclass(frozen=True)
class Failure:
    """A request that was refused, lost or answered differently. Times: of time.monotonic()."""

    case: str
    outcome: str
    reason: str
    started: float
    ended: float


@dataclass
class Load:
    """`on_end` is called for each request that ended, also for one that failed."""

    url: str
    cases: Sequence[Case]
    seconds: float  # after which a request counts as lost
    on_end: Callable[[Attempt], object] = lambda attempt: None
    in_flight: set[Attempt] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    expected: dict[str, Json] = field(default_factory=dict)
    num_tokens: dict[str, int] = field(default_factory=dict)  # of the expected answers

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self._address = (parts.hostname or "", parts.port or 0)
        self._gate = asyncio.Event()
        self._salts = itertools.count()
        self._clients: list[asyncio.Task[None]] = []

    async def learn(self) -> None:
        """Chooses stop strings, then asks for all expected answers. Raises AssertionError if one is not answered, or
        if the same request has two answers."""
        stopping = [case for case in self.cases if case.stops]
        for case, attempt in zip(stopping, await self._all_once(stopping), strict=True):
            choice = answer_of(attempt)["choices"][0]
            case.body["stop"] = [_late(choice["text"] if "text" in choice else choice["message"]["content"] or "")]
        for attempt in await self._all_once(self.cases):
            self.expected[attempt.case.name] = answer_of(attempt)
            self.num_tokens[attempt.case.name] = attempt.num_tokens
        gc.freeze()  # the answers live to the end; a search for garbage among them stops all clients for 0.7 s

    async def check(self) -> float:
        """Asks for all answers once more. Returns the seconds. Raises AssertionError if one is not as expected."""
        began = time.monotonic()
        for attempt in await self._all_once(self.cases):
            assert not (found := wrong(attempt, self.expected[attempt.case.name])), (attempt.case.name, found)
        return time.monotonic() - began

    async def _all_once(self, cases: Sequence[Case]) -> list[Attempt]:
        attempts = await self.ask_all(cases)
        for attempt in attempts:
            assert attempt.outcome == ANSWERED, (attempt.case, attempt.outcome, attempt.reason)
        return attempts

    async def ask_all(self, cases: Sequence[Case]) -> list[Attempt]:
        """Sends each request once, all at the same time. Returns how each ended; none hangs up."""
        attempts = [self._attempt(case, may_hang_up=False) for case in cases]
        await asyncio.gather(*(attempt.run(*self._address, self.seconds) for attempt in attempts))
        return attempts

    def start(self) -> None:
        """Starts all clients."""
        self._gate.set()
        self._clients = [asyncio.create_task(self._client(case)) for case in self.cases]

    def open(self) -> None:
        self._gate.set()

    def close(self) -> None:
        """From now on no request is sent; those in flight go on."""
        self._gate.clear()

    async def stop(self) -> None:
        """Ends all clients; requests in flight are given up."""
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _client(self, case: Case) -> None:
        while True:
            await self._gate.wait()
            attempt = self._attempt(case)
            self.in_flight.add(attempt)
            try:
                await attempt.run(*self._address, self.seconds)
            finally:
                self.in_flight.discard(attempt)
            self.count(attempt)
            self.on_end(attempt)
            if attempt.outcome != ANSWERED:
                await asyncio.sleep(AGAIN_SECONDS)

    def _attempt(self, case: Case, may_hang_up: bool = True) -> Attempt:
        return Attempt(case, f"salt {next(self._salts)}" if case.fresh_salt else None, may_hang_up)

    def count(self, attempt: Attempt) -> None:
        """Counts a request that has ended by what became of it."""
        outcome, reasons = attempt.outcome, [attempt.reason]
        if outcome in (ANSWERED, HUNG_UP) and (found := wrong(attempt, self.expected[attempt.case.name])):
            outcome, reasons = DIFFERENT, found
        self.counts[outcome] += 1
        if outcome not in (ANSWERED, HUNG_UP):
            for reason in reasons:
                self.failures.append(Failure(attempt.case.name, outcome, reason, attempt.started, attempt.ended_at))


def _late(text: str) -> str:
    """Returns a string that ends an answer late: it occurs after three fifths of the text for the first time."""
    for at in range(len(text) * 3 // 5, len(text) - STOP_CHARACTERS):
        part = text[at : at + STOP_CHARACTERS]
        if text.find(part) == at:
            return part
    return "no such text"
