"""`python -m loadtest.studies.replacements`: two hundred mixed requests under drains, rolling restarts and reloads.

- *drain*: SIGTERM to the server when all 200 requests are in progress: each must get its answer, byte for byte.
- *rolling*: SIGTERM to tokenizer, engine and worker in turn, under `--clients` that send again and again.
- *reload*: `tandem reload`, again ten seconds after its end, under the same load.

The last two go on until so many requests have ended, between phases of the same load without them. They print by how
much requests took longer than the same ones without: than the median of the phase before or after, whichever is longer,
because other guests of a machine change its speed within a minute; and than the slowest of both, because the same load
without replacements has a spread too: of some seconds with 200 clients, where a request waits longer for others than
for a replacement. `without` compares those phases with each other.
"""

import argparse
import asyncio
import functools
import os
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.attempt import ANSWERED, Attempt
from tests.chaos.cases import NUM_CASES, make_cases
from tests.chaos.load import Load
from tests.e2e.harness import ALL_READY, SPARES, TANDEM, Server, pid_of, wait_for

ROLES = ("tokenizer", "engine", "worker")
OPTIONS = (SPARES, "--scheduling-policy=priority")  # the cases have priorities
REQUEST_SECONDS = 300.0  # after which a request counts as lost
POLL_SECONDS = 0.05
REST_SECONDS = 10.0  # from one replacement of all roles to the next: a request sees about one
END_SECONDS = 120.0


@dataclass
class Phase:
    """What a load saw: the outcomes, and seconds of the answered requests by case."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    num_done: int = 0  # replacements

    def see(self, attempt: Attempt) -> None:
        if attempt.outcome == ANSWERED:
            self.seconds[attempt.case.name].append(attempt.ended_at - attempt.started)

    def longer_than(self, usual: Callable[[list[float]], float], *quiet: "Phase") -> list[float]:
        """Returns, in order, how much longer each answer took than `usual` of its case's times in the other phase where
        that is longest."""
        longest: dict[str, float] = defaultdict(float)
        for name, times in ((name, times) for one in quiet for name, times in one.seconds.items()):
            longest[name] = max(longest[name], usual(times))
        return sorted(one - longest[name] for name, times in self.seconds.items() if name in longest for one in times)


async def drain(server: Server, load: Load) -> Counter[str]:
    """Asks all at once, ends the server once all are in progress, and returns the outcomes."""
    asking = asyncio.create_task(load.ask_all(load.cases))
    while (in_progress := (await asyncio.to_thread(server.get, "/load")).json()["server_load"]) < len(load.cases):
        assert not asking.done(), f"some had ended before all were in progress: {in_progress}"
        await asyncio.sleep(POLL_SECONDS)
    server.process.terminate()
    for attempt in await asking:
        load.count(attempt)
    assert await asyncio.to_thread(server.process.wait, END_SECONDS) == 0, "the server's exit status"
    return load.counts


async def phase(load: Load, num_requests: int, replace: Callable[[], Awaitable[None]] | None) -> Phase:
    """Runs the load until so many requests have ended, with `replace` again and again meanwhile; the last one ends.

    All clients begin at once: replacements begin REST_SECONDS later.
    """
    found = Phase()
    load.counts = found.outcomes
    load.on_end = found.see
    load.start()
    while found.outcomes.total() < num_requests:
        if replace is None:
            await asyncio.sleep(POLL_SECONDS)
        else:
            await asyncio.sleep(REST_SECONDS)
            await replace()
            found.num_done += 1
    load.close()
    await _until(lambda: not load.in_flight)
    await load.stop()
    return found


async def roll(server: Server) -> None:
    """Ends each role in order, the next one once a token could be made again."""
    for role in ROLES:
        old = pid_of(server, role)
        os.kill(old, signal.SIGTERM)
        await _until(functools.partial(_has_ended, old))
        await _until(lambda: server.get("/ready").status_code == 200)


async def reload(server: Server) -> None:
    command = [*TANDEM, "reload", f"--runtime-dir={server.runtime_dir}"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0, "a reload has failed"


def _has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_SECONDS
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, "a role did not come back"
        await asyncio.sleep(POLL_SECONDS)


async def run_drain(seed: int) -> bool:
    with Server(*OPTIONS) as server:
        wait_for(lambda: ALL_READY in server.log, "all are ready")
        load = Load(server.url, make_cases(seed), REQUEST_SECONDS)
        await load.learn()
        began = time.monotonic()
        outcomes = await drain(server, load)
    print(f"drain: {dict(outcomes)}, the server has ended after {time.monotonic() - began:.1f} s", flush=True)
    return _told(load)


async def run_replacements(seed: int, num_clients: int, num_requests: int) -> bool:
    with Server(*OPTIONS) as server:
        wait_for(lambda: ALL_READY in server.log, "all are ready")
        load = Load(server.url, make_cases(seed, num_clients), REQUEST_SECONDS)
        await load.learn()
        before = await phase(load, num_requests, None)
        for name, replace in (("rolling", roll), ("reload", reload)):
            replaced = await phase(load, num_requests, functools.partial(replace, server))
            after = await phase(load, num_requests, None)
            _show("without", after, before)
            _show(name, replaced, before, after)
            before = after
    return _told(load)


def _show(name: str, found: Phase, *quiet: Phase) -> None:
    more, than_slowest = (found.longer_than(usual, *quiet) for usual in (statistics.median, max))
    print(
        f"{name}: {found.num_done} times, {dict(found.outcomes)}; longer by median {statistics.median(more):.2f}, "
        f"p99 {more[int(0.99 * len(more))]:.2f}, most {more[-1]:.2f} s; than slowest: most {than_slowest[-1]:.2f} s",
        flush=True,
    )


def _told(load: Load) -> bool:
    for failure in load.failures[:5]:
        print(f"  {failure.outcome}: {failure.case}: {failure.reason[:300]}", flush=True)
    return not load.failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=NUM_CASES, help="of rolling and reload")
    parser.add_argument("--requests", type=int, default=1000, help="of each phase with replacements")
    args = parser.parse_args()
    drained = asyncio.run(run_drain(args.seed))
    replaced = asyncio.run(run_replacements(args.seed, args.clients, args.requests))
    return 0 if drained and replaced else 1


if __name__ == "__main__":
    sys.exit(main())
