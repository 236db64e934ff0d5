"""Quiet points: no request is in flight, so the server must hold what an unused one holds."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.load import Load
from tests.chaos.phases import EngineCounters
from tests.chaos.snapshots import Snapshot, probed, snapshots
from tests.e2e.harness import Server

END_SECONDS = 10.0  # for all requests to end, beyond the time that each of them has
IDLE_SECONDS = 20.0  # for the engine to have none left then
LAST_SECONDS = 15.0  # for what processes hold of a last restart
MORE_FILES, MORE_THREADS, MORE_OBJECTS = 6, 8, 10  # than at the first quiet point: timing and lazy pools
# Objects of which a used server keeps some, up to a limit: attached to cached blocks, or in the batch's slots.
KEPT = ("engine_core.block.UnpublishedBlocks", "services.worker.", "services.grammar.")


@dataclass
class QuietPoints:
    """Compares what the processes hold with the first quiet point, by role. `leaks` and `hangs` are lines for the
    report."""

    server: Server
    load: Load
    engine: EngineCounters
    folder: Path  # of the probe's files
    first: dict[str, Snapshot] = field(default_factory=dict)  # by role
    leaks: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    count: int = 0

    async def visit(self) -> None:
        """Waits until all requests have ended, and looks. Leaves the load's gate closed."""
        self.load.close()
        if not await _until(lambda: not self.load.in_flight, self.load.seconds + END_SECONDS):
            self.hangs += [f"no end: {attempt.case.name}" for attempt in self.load.in_flight][:5]
        self.leaks += await self._left_in_engine()
        self.count += 1
        try:
            self.leaks += await self._held()
        except AssertionError as error:
            self.hangs.append(f"quiet point: {error}")

    async def _left_in_engine(self) -> list[str]:
        deadline = time.monotonic() + IDLE_SECONDS
        while True:
            stats = await self.engine.read()
            left: list[object] = ["no answer"]
            if stats is not None:
                left = [stats.num_running, stats.num_waiting, stats.num_blocks - stats.num_free_blocks]
                if not any(left):
                    return []
            if time.monotonic() > deadline:
                return [f"engine at a quiet point: running, waiting, blocks used: {left}"]
            await asyncio.sleep(0.05)

    async def _held(self) -> list[str]:
        """Returns what the processes hold too much of, still after LAST_SECONDS: a process may have just restarted."""
        deadline = time.monotonic() + LAST_SECONDS
        while lines := self._more(await asyncio.to_thread(self._look)):
            if time.monotonic() > deadline:
                return lines
            await asyncio.sleep(1.0)
        return []

    def _look(self) -> list[Snapshot]:
        """Returns what all processes hold; of the launcher, which answers no probe, without objects."""
        return [*probed(self.server, self.folder), *(one for one in snapshots(self.server) if one.role == "launcher")]

    def _more(self, found: Sequence[Snapshot]) -> list[str]:
        lines = []
        for now in found:
            first = self.first.setdefault(now.role, now)
            place = f"quiet point {self.count}, {now.name} {now.pid}"
            if now.files > first.files + MORE_FILES:
                lines.append(f"{place}: {now.files} open files, {first.files} at first")
            if now.threads > first.threads + MORE_THREADS:
                lines.append(f"{place}: {now.threads} threads, {first.threads} at first")
            for kind, count in now.objects.items():
                if not kind.startswith(KEPT) and count > first.objects.get(kind, 0) + MORE_OBJECTS:
                    lines.append(f"{place}: {count} of {kind}, {first.objects.get(kind, 0)} at first")
        return lines


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Returns whether the condition became true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True
