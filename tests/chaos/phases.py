"""Waits until some request is in the phase that a fault is aimed at: seen in the engine's counters, or in what the
clients have received."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from services.rpc.generated import engine_pb2, engine_pb2_grpc
from tests.chaos.attempt import Attempt
from tests.chaos.cases import Json
from tests.chaos.load import Load
from tests.chaos.schedule import DECODE, HELD_BACK, IN_CALL, PREFILL, QUEUED, RENDERING, RESTART, TERMINAL

STATS_SECONDS = 1.0
POLL_SECONDS = 0.01
RENDERING_SECONDS = 0.05  # a request sent no longer ago, without an answer so far, is being rendered
LAST_TOKENS = 2
MIN_LIVE = 20
BACKOFF = [(f"grpc.{name}_reconnect_backoff_ms", most) for name, most in (("initial", 50), ("min", 50), ("max", 200))]
PARTS = ("text", "content", "reasoning", "tool_calls")


@dataclass
class EngineCounters:
    """Reads the engine's counters over one channel, also after restarts of the engine."""

    stub: Any

    async def read(self) -> engine_pb2.EngineStats | None:
        """Returns the counters, None while the engine does not answer within STATS_SECONDS."""
        try:
            found: engine_pb2.EngineStats = await self.stub.GetStats(
                engine_pb2.GetStatsRequest(), timeout=STATS_SECONDS
            )
        except grpc.RpcError:
            return None
        return found


@asynccontextmanager
async def engine_counters(socket: str) -> Any:
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=BACKOFF) as channel:
        yield EngineCounters(engine_pb2_grpc.EngineServiceStub(channel))


@dataclass
class Aim:
    """Decides whether requests are in a phase."""

    load: Load
    engine: EngineCounters

    async def wait(self, phase: str, seconds: float) -> bool:
        """Returns whether a request came into the phase within `seconds`."""
        deadline = time.monotonic() + seconds
        before: engine_pb2.EngineStats | None = None
        while time.monotonic() < deadline:
            if phase in (QUEUED, PREFILL):
                stats = await self.engine.read()
                if stats is not None and _in_engine(phase, stats, before):
                    return True
                before = stats
            elif self._seen(phase):
                return True
            await asyncio.sleep(POLL_SECONDS)
        return False

    def _seen(self, phase: str) -> bool:
        streaming = [attempt for attempt in self.load.in_flight if attempt.streaming]
        if phase == DECODE:
            return len(streaming) >= MIN_LIVE
        if phase == RESTART:
            return True
        if phase == RENDERING:
            recently = time.monotonic() - RENDERING_SECONDS
            return any(not one.times and one.started > recently for one in self.load.in_flight)
        if phase == TERMINAL:
            expected = self.load.num_tokens
            return any(one.num_tokens >= expected[one.case.name] - LAST_TOKENS for one in streaming)
        return any(_TESTS[phase](attempt) for attempt in streaming)


def _in_engine(phase: str, stats: engine_pb2.EngineStats, before: engine_pb2.EngineStats | None) -> bool:
    if phase == QUEUED:
        return bool(stats.num_waiting)
    return before is not None and stats.num_chunked_rows > before.num_chunked_rows


def _last_choices(attempt: Attempt) -> Iterator[Json]:
    return (choice for choice in attempt.events[-1]["choices"] if choice["finish_reason"] is None)


def _holds_back(attempt: Attempt) -> bool:
    """Returns whether the last event has a token and no text: a stop string, a marker or a character may have begun."""
    return any(
        choice.get("token_ids") and not any(choice.get("delta", choice).get(part) for part in PARTS)
        for choice in _last_choices(attempt)
    )


def _in_call(attempt: Attempt) -> bool:
    return any(choice.get("delta", {}).get("tool_calls") for choice in _last_choices(attempt))


_TESTS: dict[str, Callable[[Attempt], bool]] = {HELD_BACK: _holds_back, IN_CALL: _in_call}
