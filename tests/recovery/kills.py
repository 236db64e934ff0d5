"""Kills random processes while answers stream, in rounds; every answer must equal the one of an undisturbed run.

The seed chooses the processes and the progress of the answers at each kill. A kill must hit live answers: streams that
have tokens and have not ended.
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
from tests.e2e.harness import ALL_READY, Server, alive, children_of, role_of, wait_for
from tests.recovery.workload import LONG, STOPPED, Answer, differences, patient_post, requests

ROLES = ("worker", "engine", "tokenizer")
ONE, AGAIN, TWO, PREFILL = "one", "one and its successor", "two at once", "in a long prefill"
KILLS = {ONE: 1, AGAIN: 2, TWO: 2, PREFILL: 1}
STARTED_AGAIN = "was killed by SIGKILL; it is restarted"
ROUND_SECONDS = 90.0
POLL_SECONDS = 0.005
AGAIN_SECONDS = 0.5  # longest life of a successor
LAST_PROGRESS = 0.6  # last kill of a round, as a fraction of its tokens: later ones could find no live answer
MAX_MISSES = 6  # kills of a run that may find no live answer


@dataclass(frozen=True)
class Event:
    kind: str
    roles: tuple[str, ...]


class Missed(Exception):
    """The answers of a round ended before its next kill, which depends on the speed of the machine."""


def schedule(rng: random.Random, num_kills: int) -> list[list[Event]]:
    """Returns rounds of one to three events with `num_kills` kills in all. Kinds and roles repeat in random order."""
    rounds: list[list[Event]] = []
    kinds: list[str] = []
    roles: list[str] = []
    left = num_kills
    while left:
        rounds.append([])
        for _ in range(rng.randint(1, 3)):
            kinds = kinds or rng.sample(list(KILLS), len(KILLS))
            kind = kinds.pop() if KILLS[kinds[-1]] <= left else ONE
            roles = roles or rng.sample(ROLES, len(ROLES))
            first = roles.pop()
            second = rng.choice([role for role in ROLES if role != first])
            rounds[-1].append(Event(kind, (first, second) if kind == TWO else (first,)))
            left -= KILLS[kind]
            if not left:
                break
    return rounds


def rest_of(event: Event, num_kills: int) -> list[Event]:
    """Returns the events that do the remaining kills of `event`, of which `num_kills` are done; [] if all are done."""
    left = KILLS[event.kind] - num_kills
    if num_kills == 0:
        return [event]
    return [Event(ONE, (role,)) for role in (event.roles * 2)[-left:]] if left else []


@dataclass
class RandomKills:
    """One server, and the expected answers to its requests, by name. `kills` has one line per kill.

    `small`: the server's KV cache does not hold all requests, so requests are preempted and cached blocks are evicted.
    """

    server: Server
    rng: random.Random
    small: bool = False
    stops: list[str] = field(default_factory=list)
    expected: dict[str, Json] = field(default_factory=dict)
    kills: list[str] = field(default_factory=list)

    def run(self, num_kills: int) -> None:
        """Kills until `num_kills` kills have hit live answers. Raises AssertionError with every difference, or when too
        many kills found no live answer."""
        wait_for(lambda: ALL_READY in self.server.log, "the launcher has seen all processes ready")
        asyncio.run(self._rounds(schedule(self.rng, num_kills)))
        assert len(self.kills) == num_kills
        wait_for(lambda: self.server.log.count(STARTED_AGAIN) == num_kills, "the launcher has seen all deaths")
        wait_for(self._idle, "the engine is idle", 30)
        assert "Traceback" not in self.server.log, self.server.log

    async def _rounds(self, rounds: list[list[Event]]) -> None:
        async with httpx.AsyncClient(base_url=self.server.url, timeout=ROUND_SECONDS, trust_env=False) as client:
            await self._undisturbed(client)
            num_misses = 0
            for number, events in enumerate(rounds):  # grows in the loop
                num_before = len(self.kills)
                one_round = Round(self.server, client, self.rng, self)
                answers = await one_round.run(events)
                found = [f"{one.name}{difference}" for one in answers for difference in self._differences(one)]
                assert not found, "\n".join([f"round {number}", *self.kills[num_before:], *found])
                rounds += [[event] for event in one_round.missed]
                num_misses += len(one_round.missed)
                assert num_misses <= MAX_MISSES, f"{num_misses} kills found no live stream"

    async def _undisturbed(self, client: httpx.AsyncClient) -> None:
        """Runs two undisturbed rounds: one to choose stop strings late in two answers, one for the expected answers."""
        for answer in await Round(self.server, client, self.rng, self).run([]):
            if answer.name in STOPPED:
                text = answer.fold()["choices"][0]["text"]
                places = range(len(text) * 6 // 10, len(text) - 4)
                self.stops.append(next(text[at : at + 4] for at in places if text.find(text[at : at + 4]) == at))
        answers = await Round(self.server, client, self.rng, self).run([])
        self.expected = {answer.name: answer.fold() for answer in answers}
        assert [self.expected[name]["choices"][0]["stop_reason"] for name in STOPPED] == self.stops
        if self.small:
            stats = await asyncio.to_thread(self.server.stats)
            assert stats.num_preemptions > 0, "the KV cache holds all requests"
        else:
            assert self.expected["warm"]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

    def _differences(self, answer: Answer) -> list[str]:
        actual, expected = answer.fold(), self.expected[answer.name]
        if self.small or not answer.cached_tokens_known:
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
    """Returns the engine's stats, None while it does not run."""
    try:
        return server.stats()
    except grpc.RpcError:
        return None


class Round:
    """One round: all requests at once, and kills while they run."""

    def __init__(self, server: Server, client: httpx.AsyncClient, rng: random.Random, killer: RandomKills) -> None:
        self._server = server
        self._client = client
        self._rng = rng
        self._killer = killer
        self._killed: set[int] = set()
        self._answers: list[Answer] = []
        self.missed: list[Event] = []  # for later rounds

    async def run(self, events: list[Event]) -> list[Answer]:
        named_requests = requests(self._killer.stops)
        path, body = named_requests["warm"]
        once = {**body, "stream": False, "stream_options": None, "max_tokens": 1}
        async with asyncio.timeout(ROUND_SECONDS), asyncio.TaskGroup() as self._group:
            await patient_post(self._client, path, once)  # fills the prefix cache
            for name, request in named_requests.items():
                self._start(name, *request)
            if not events:
                self._start("long", *LONG)
            places = sorted(self._rng.uniform(0.0, LAST_PROGRESS) for _ in events)
            for place, event in zip(places, events, strict=True):
                num_before = len(self._killer.kills)
                try:
                    await self._until(lambda place=place: self._progress() > place)  # type: ignore[misc]
                    if event is events[0]:
                        for answer in self._answers:
                            answer.cached_tokens_known = answer.live
                    await self._execute(event)
                except Missed:
                    self.missed += rest_of(event, len(self._killer.kills) - num_before)
        return self._answers

    def _start(self, name: str, path: str, body: Json) -> Answer:
        answer = Answer(name, path, {"cache_salt": next(salts), **body})
        self._answers.append(answer)
        self._group.create_task(answer.run(self._client))
        return answer

    async def _execute(self, event: Event) -> None:
        if event.kind == PREFILL:
            before = await self._num_chunked()
            long = self._start("long", *LONG)
            while await self._num_chunked() <= before:
                if long.num_tokens:
                    raise Missed
            if long.num_tokens:
                raise Missed
        for victim in [await self._victim(role) for role in event.roles]:
            self._kill(victim, event)
        if event.kind == AGAIN:
            successor = await self._victim(event.roles[0])
            moment = time.monotonic() + self._rng.uniform(0.0, AGAIN_SECONDS)
            await self._until(lambda: time.monotonic() > moment)
            self._kill(successor, event)

    async def _num_chunked(self) -> int:
        """Returns the number of chunked rows so far. Waits until the engine runs."""
        while True:
            stats = await asyncio.to_thread(stats_of, self._server)
            if stats is not None:
                return stats.num_chunked_rows

    async def _victim(self, role: str) -> int:
        found: list[int] = []

        def running() -> bool:
            children = set(children_of(self._server.process.pid)) - self._killed
            found[:] = sorted(pid for pid in children if alive(pid) and role_of(pid) == role)
            return bool(found)

        await self._until(running)
        return self._rng.choice(found)

    def _kill(self, pid: int, event: Event) -> None:
        live = {answer.name: answer.num_tokens for answer in self._answers if answer.live}
        if not live:
            raise Missed
        self._killer.kills.append(f"{role_of(pid)} ({event.kind}): {live}")
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def _progress(self) -> float:
        """Returns the fraction of the round's streamed tokens that clients have received."""
        streamed = [answer for answer in self._answers if answer.body.get("stream")]
        total = sum(self._killer.expected[answer.name]["usage"]["completion_tokens"] for answer in streamed)
        return sum(answer.num_tokens for answer in streamed) / total

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition. Raises Missed when all answers of the round have ended."""
        while not condition():
            if all(answer.ended for answer in self._answers):
                raise Missed
            await asyncio.sleep(POLL_SECONDS)
