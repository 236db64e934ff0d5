"""Kills processes at random under live answers, round after round; every answer must be the undisturbed one.

The seed decides who dies and how far the answers are by then. What a kill hits is told, and has to be something.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import httpx

from services.rpc.generated import engine_pb2
from tests.e2e.api import Json, salts
from tests.e2e.harness import ALL_READY, Server, alive, argv_of, children_of, wait_for
from tests.recovery.workload import LONG, STOPPED, Answer, differences, patient_post, requests

ROLES = ("worker", "engine", "tokenizer")
ONE, AGAIN, TWO, PREFILL = "one", "one, and the next as well", "two at once", "in a long prefill"
KILLS = {ONE: 1, AGAIN: 2, TWO: 2, PREFILL: 1}
STARTED_AGAIN = "was killed by SIGKILL; it is restarted"
ROUND_SECONDS = 90.0
LOOK_SECONDS = 0.005
AGAIN_SECONDS = 0.5  # a successor lives so long at most
LAST_PROGRESS = 0.6  # of the tokens of a round: a kill comes no later, so that it finds live answers
MAX_MISSES = 6  # of a run: kills that would have hit nothing, for the answers were over too soon


@dataclass(frozen=True)
class Event:
    kind: str
    roles: tuple[str, ...]


class Missed(Exception):
    """The answers of a round were over before its next kill: how fast they come depends on the machine."""


def schedule(chance: random.Random, num_kills: int) -> list[list[Event]]:
    """Rounds of one to three events with `num_kills` in all; every kind and every role comes again and again."""
    rounds: list[list[Event]] = []
    kinds: list[str] = []
    roles: list[str] = []
    left = num_kills
    while left:
        rounds.append([])
        for _ in range(chance.randint(1, 3)):
            kinds = kinds or chance.sample(list(KILLS), len(KILLS))
            kind = kinds.pop() if KILLS[kinds[-1]] <= left else ONE
            roles = roles or chance.sample(ROLES, len(ROLES))
            first = roles.pop()
            second = chance.choice([role for role in ROLES if role != first])
            rounds[-1].append(Event(kind, (first, second) if kind == TWO else (first,)))
            left -= KILLS[kind]
            if not left:
                break
    return rounds


def rest_of(event: Event, num_kills: int) -> list[Event]:
    """What is left of an event after so many of its kills."""
    left = KILLS[event.kind] - num_kills
    if num_kills == 0:
        return [event]
    return [Event(ONE, (role,)) for role in (event.roles * 2)[-left:]] if left else []


@dataclass
class Fire:
    """One server, and what its answers must be. `kills` tells what each kill hit.

    `small` says that its KV cache is too small for all: requests are preempted, and what was cached may be evicted.
    """

    server: Server
    chance: random.Random
    small: bool = False
    stops: list[str] = field(default_factory=list)
    expected: dict[str, Json] = field(default_factory=dict)
    kills: list[str] = field(default_factory=list)

    def run(self, num_kills: int) -> None:
        """Raises AssertionError with every difference, or when too many kills would hit no live stream."""
        wait_for(lambda: ALL_READY in self.server.log, "the launcher knows that all are ready")
        asyncio.run(self._rounds(schedule(self.chance, num_kills)))
        assert len(self.kills) == num_kills
        wait_for(lambda: self.server.log.count(STARTED_AGAIN) == num_kills, "the launcher has seen them all")
        wait_for(self._idle, "nothing is left", 30)
        assert "Traceback" not in self.server.log, self.server.log

    async def _rounds(self, rounds: list[list[Event]]) -> None:
        async with httpx.AsyncClient(base_url=self.server.url, timeout=ROUND_SECONDS, trust_env=False) as client:
            await self._learn(client)
            num_misses = 0
            for number, events in enumerate(rounds):  # which grow as it goes
                told = len(self.kills)
                one_round = Round(self.server, client, self.chance, self)
                answers = await one_round.run(events)
                found = [f"{one.name}{difference}" for one in answers for difference in self._differences(one)]
                assert not found, "\n".join([f"round {number}", *self.kills[told:], *found])
                rounds += [[event] for event in one_round.missed]
                num_misses += len(one_round.missed)
                assert num_misses <= MAX_MISSES, f"{num_misses} kills would have hit no live stream"

    async def _learn(self, client: httpx.AsyncClient) -> None:
        """The undisturbed answers, with stop strings that come late in two of them."""
        for answer in await Round(self.server, client, self.chance, self).run([]):
            if answer.name in STOPPED:
                text = answer.fold()["choices"][0]["text"]
                places = range(len(text) * 6 // 10, len(text) - 4)
                self.stops.append(next(text[at : at + 4] for at in places if text.find(text[at : at + 4]) == at))
        answers = await Round(self.server, client, self.chance, self).run([])
        self.expected = {answer.name: answer.fold() for answer in answers}
        assert [self.expected[name]["choices"][0]["stop_reason"] for name in STOPPED] == self.stops
        if self.small:
            stats = await asyncio.to_thread(self.server.stats)
            assert stats.num_preemptions > 0, "the KV cache is not small"
        else:
            assert self.expected["warm"]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

    def _differences(self, answer: Answer) -> list[str]:
        actual, expected = answer.fold(), self.expected[answer.name]
        if self.small or not answer.promised:
            actual, expected = [
                {**fold, "usage": {**fold["usage"], "prompt_tokens_details": None}} for fold in (actual, expected)
            ]
        return list(differences(actual, expected))

    def _idle(self) -> bool:
        stats = stats_of(self.server)
        return (
            stats is not None
            and not stats.num_running + stats.num_waiting
            and stats.num_free_blocks == stats.num_blocks
        )


def stats_of(server: Server) -> engine_pb2.EngineStats | None:
    """None while there is no engine."""
    try:
        return server.stats()
    except grpc.RpcError:
        return None


class Round:
    """All answers at once, and the events that happen meanwhile."""

    def __init__(self, server: Server, client: httpx.AsyncClient, chance: random.Random, fire: Fire) -> None:
        self._server = server
        self._client = client
        self._chance = chance
        self._fire = fire
        self._killed: set[int] = set()
        self._answers: list[Answer] = []
        self.missed: list[Event] = []  # what is left to be done in other rounds

    async def run(self, events: list[Event]) -> list[Answer]:
        asked = requests(self._fire.stops)
        path, body = asked["warm"]
        once = {**body, "stream": False, "stream_options": None, "max_tokens": 1}
        async with asyncio.timeout(ROUND_SECONDS), asyncio.TaskGroup() as self._group:
            await patient_post(self._client, path, once)  # its prefix is in the cache from now on
            for name, request in asked.items():
                self._ask(name, *request)
            if not events:
                self._ask("long", *LONG)
            places = sorted(self._chance.uniform(0.0, LAST_PROGRESS) for _ in events)
            for place, event in zip(places, events, strict=True):
                told = len(self._fire.kills)
                try:
                    await self._until(lambda place=place: self._progress() > place)  # type: ignore[misc]
                    if event is events[0]:
                        for answer in self._answers:
                            answer.promised = answer.live
                    await self._happen(event)
                except Missed:
                    self.missed += rest_of(event, len(self._fire.kills) - told)
        return self._answers

    def _ask(self, name: str, path: str, body: Json) -> Answer:
        answer = Answer(name, path, {"cache_salt": next(salts), **body})
        self._answers.append(answer)
        self._group.create_task(answer.ask(self._client))
        return answer

    async def _happen(self, event: Event) -> None:
        if event.kind == PREFILL:
            before = await self._num_chunked()
            long = self._ask("long", *LONG)
            while await self._num_chunked() <= before:
                if long.num_tokens:
                    raise Missed
            if long.num_tokens:
                raise Missed
        for victim in [await self._victim(role) for role in event.roles]:
            self._kill(victim, event)
        if event.kind == AGAIN:
            successor = await self._victim(event.roles[0])
            moment = time.monotonic() + self._chance.uniform(0.0, AGAIN_SECONDS)
            await self._until(lambda: time.monotonic() > moment)
            self._kill(successor, event)

    async def _num_chunked(self) -> int:
        """Rows so far that were a part of a prompt; waits until there is an engine."""
        while True:
            stats = await asyncio.to_thread(stats_of, self._server)
            if stats is not None:
                return stats.num_chunked_rows

    async def _victim(self, role: str) -> int:
        found: list[int] = []

        def there() -> bool:
            children = set(children_of(self._server.process.pid)) - self._killed
            found[:] = sorted(pid for pid in children if alive(pid) and argv_of(pid)[3:4] == [role])
            return bool(found)

        await self._until(there)
        return self._chance.choice(found)

    def _kill(self, pid: int, event: Event) -> None:
        live = {answer.name: answer.num_tokens for answer in self._answers if answer.live}
        if not live:
            raise Missed
        self._fire.kills.append(f"{argv_of(pid)[3]} ({event.kind}): {live}")
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def _progress(self) -> float:
        """Of all tokens that streams will bring in this round."""
        streamed = [answer for answer in self._answers if answer.body.get("stream")]
        total = sum(self._fire.expected[answer.name]["usage"]["completion_tokens"] for answer in streamed)
        return sum(answer.num_tokens for answer in streamed) / total

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Raises Missed when no stream is live any more, or none will ever be."""
        while not condition():
            if all(answer.over for answer in self._answers):
                raise Missed
            await asyncio.sleep(LOOK_SECONDS)
