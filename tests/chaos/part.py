"""One part: a server, two hundred clients, and faults from a seed until there are enough or the time is over."""

import asyncio
import random
import resource
import time
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.attempt import Attempt
from tests.chaos.cases import NUM_CASES, make_cases
from tests.chaos.growth import Growth
from tests.chaos.load import Load
from tests.chaos.pauses import pauses
from tests.chaos.phases import MIN_LIVE, Aim, EngineCounters, engine_counters
from tests.chaos.processes import Victim, choose, continue_later, strike, victims, wait_for_end
from tests.chaos.quiet import QuietPoints
from tests.chaos.report import MOST_EXAMPLES, Report, kind_of
from tests.chaos.schedule import DECODE, PAUSE, RESTART, ROLES, STOP, Blow, Strike, in_turn, strikes
from tests.e2e.harness import Server

BASE = ("--scheduling-policy=priority", "--long-prefill-token-threshold=256", "--max-num-seqs=192")
VARIANTS = {
    "two tokenizers": (*BASE, "--tokenizer-replicas=2"),
    "one tokenizer": BASE,
    "small KV cache": (*BASE, "--tokenizer-replicas=2", "--kv-cache-memory-bytes=24M", "--block-size=8"),
}
AIM_SECONDS = 5.0
PROCESS_SECONDS = 30.0  # for a process of each role to run
PROGRESS_SECONDS = 60.0  # for MIN_LIVE streams to go on after a fault
FOUND_SECONDS = 30.0  # for a stopped process to be found; then it is killed here
BREATH_SECONDS = (0.3, 1.5)  # from progress to the next fault, and as long as there was none, at most MOST_BREATH
MOST_BREATH = 5.0
RESTART_SECONDS = (0.0, 0.8)  # from a fault to the next one in phase RESTART
POLL_SECONDS = 0.01
SURVEY = 25  # faults between two quiet points
ONE_AFTER_ANOTHER = "several, one after the other"  # label of a pause in which further faults came


@dataclass
class Part:
    """`moments` of all faults so far: time.monotonic(). `show` prints a line as things happen."""

    server: Server
    load: Load
    engine: EngineCounters
    quiet: QuietPoints
    rng: random.Random
    report: Report
    pace: float = 0.0  # seconds from the aim of one strike to that of the next, at least
    show: Callable[[str], object] = print
    moments: list[float] = field(default_factory=list)
    _labels: list[str] = field(default_factory=list)  # of their pauses
    _missed: list[Strike] = field(default_factory=list)
    _followers: set[asyncio.Task[None]] = field(default_factory=set)  # of stopped processes
    _num_reported: int = 0
    _num_preemptions: int = 0  # that the present engine has counted

    def __post_init__(self) -> None:
        self.began = time.monotonic()

    async def run(self, schedule: Callable[[], Strike], num_faults: int, seconds: float) -> None:
        """Strikes until there were `num_faults` or the time is over; then visits the last quiet point."""
        deadline = time.monotonic() + seconds
        self.load.on_end = self.on_end
        self.load.start()
        next_survey = SURVEY
        while self.report.faults.total() < num_faults and time.monotonic() < deadline:
            began = time.monotonic()
            await self.strike_next(schedule)
            await asyncio.sleep(max(0.0, began + self.pace - time.monotonic()))
            if self.report.faults.total() >= next_survey:
                next_survey += SURVEY
                await self._survey()
                self.load.open()
        await self._survey()
        self._show_failures()
        await self.load.stop()

    async def _survey(self) -> None:
        before = len(self.quiet.leaks) + len(self.quiet.hangs)
        await self._settle()
        await self.quiet.visit()
        for line in [*self.quiet.leaks, *self.quiet.hangs][before:]:
            self.show(f"  {line}")

    async def strike_next(self, schedule: Callable[[], Strike]) -> None:
        """Aims and strikes. What cannot be done, because too few requests are live or a process has just ended, comes
        again, before the next one of the schedule."""
        planned = self._missed.pop(0) if self._missed else schedule()
        if planned.phase != RESTART:
            await self._settle()
            outage = time.monotonic() - self.moments[-1] if self.moments else 0.0
            await asyncio.sleep(self.rng.uniform(*BREATH_SECONDS) + min(outage, MOST_BREATH))
        else:
            await asyncio.sleep(self.rng.uniform(*RESTART_SECONDS))
        chosen = await self._choose(planned)
        phase = planned.phase
        if not await Aim(self.load, self.engine).wait(phase, AIM_SECONDS):
            phase = DECODE
        live = len(self.load.in_flight)
        if chosen is None or live < MIN_LIVE:
            self._miss(planned.blows, planned.phase)
            return
        moment = time.monotonic()
        done: list[tuple[Blow, Victim]] = []
        for blow, victim in zip(planned.blows, chosen, strict=True):
            try:
                strike(self.server, blow, victim)
            except OSError as error:
                self._miss((blow,), planned.phase)
                self.show(f"missed: {blow.kind} {victim.name}: {error}")
                continue
            done.append((blow, victim))
            self.report.faults[f"{blow.role}, {blow.kind}"] += 1
            if blow.kind == PAUSE:
                self._follow(continue_later(blow, victim))
            elif blow.kind == STOP:
                self._follow(self._await_end(victim))
        if done:
            self._note(done, phase, moment, live)

    def _miss(self, blows: tuple[Blow, ...], phase: str) -> None:
        self.report.missed += len(blows)
        self._missed.append(Strike(blows, phase))

    def _note(self, done: list[tuple[Blow, Victim]], phase: str, moment: float, live: int) -> None:
        self.report.phases[phase] += len(done)
        self.report.live[live] += len(done)
        self.report.together += len(done) if len(done) > 1 else 0
        self.moments.append(moment)
        (blow, _), *more = done
        self._labels.append("two at once" if more else f"{blow.role}, {blow.kind}")
        text = " and ".join(f"{one.kind} {victim.name}" for one, victim in done)
        streaming = sum(attempt.streaming for attempt in self.load.in_flight)
        counts = dict(self.load.counts)
        self.show(
            f"{time.strftime('%H:%M:%S')} {moment - self.began:7.1f} s: {text} ({phase}); {live} live, "
            f"{streaming} streaming; {counts}"
        )
        self._show_failures()

    def _show_failures(self) -> None:
        for failure in self.load.failures[self._num_reported :]:
            text = (
                f"{failure.outcome}: {failure.case}, {failure.started - self.began:.2f} to "
                f"{failure.ended - self.began:.2f} s: {failure.reason}"
            )
            kind = f"{failure.outcome}: {kind_of(failure.reason)}"
            self.report.reasons[kind] += 1
            if self.report.reasons[kind] <= MOST_EXAMPLES:
                self.report.examples.append(text)
                self.show(f"  {text[:400]}")
        self._num_reported = len(self.load.failures)

    async def _choose(self, planned: Strike) -> list[Victim] | None:
        deadline = time.monotonic() + PROCESS_SECONDS
        while (chosen := choose(self.server, planned.blows, self.rng)) is None:
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(POLL_SECONDS)
        return chosen

    async def _settle(self) -> None:
        """Waits until stopped processes have ended or go on, all roles run, and streams make progress."""
        await asyncio.gather(*self._followers)
        await self._count_preemptions()
        since = time.monotonic()
        deadline = since + PROGRESS_SECONDS
        while not ({one.role for one in victims(self.server)} >= set(ROLES) and self._num_going_on(since) >= MIN_LIVE):
            if time.monotonic() > deadline:
                stats = await self.engine.read()
                self.report.hangs.append(
                    f"{since - self.began:.1f} s: no {MIN_LIVE} streams go on within {PROGRESS_SECONDS:g} s; {stats}"
                )
                self.show(self.report.hangs[-1])
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _count_preemptions(self) -> None:
        """Adds what the engine has counted since the last call; those before its death are lost."""
        if (stats := await self.engine.read()) is not None:
            before = self._num_preemptions if stats.num_preemptions >= self._num_preemptions else 0
            self.report.preemptions += stats.num_preemptions - before
            self._num_preemptions = stats.num_preemptions

    def _num_going_on(self, since: float) -> int:
        return sum(bool(one.times) and one.times[-1] > since for one in self.load.in_flight)

    def _follow(self, action: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(action)
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)

    async def _await_end(self, victim: Victim) -> None:
        seconds = await wait_for_end(victim, FOUND_SECONDS)
        if seconds is None:
            self.report.hangs.append(f"the stopped {victim.name} was not found within {FOUND_SECONDS:g} s")
        else:
            self.report.found[victim.role][round(100 * seconds)] += 1

    def on_end(self, attempt: Attempt) -> None:
        first = bisect_right(self.moments, attempt.started)
        for index, count, seconds in pauses(attempt.times, self.moments[first:]):
            label = self._labels[first + index] if count == 1 else ONE_AFTER_ANOTHER
            self.report.pauses[label][round(100 * seconds)] += 1


@dataclass(frozen=True)
class Plan:
    """What a part does: `num_faults` from `seed` under `num_cases` requests, or fewer if `minutes` are over, with
    `pace` seconds between them. `per_role`: faults at one of `roles` before the next one's turn; 0: as they come."""

    seed: int
    num_faults: int
    minutes: float
    num_cases: int = NUM_CASES
    pace: float = 0.0
    per_role: int = 0
    roles: tuple[str, ...] = ROLES
    warm_seconds: float = 45.0  # of a process's life that its slopes leave out
    request_seconds: float = 300.0  # after which a request counts as lost


async def run_part(server: Server, folder: Path, plan: Plan) -> Report:
    """Runs one part on a running server whose processes answer the probe in `folder`. Returns its report."""
    report = Report()
    load = Load(server.url, make_cases(plan.seed, plan.num_cases), plan.request_seconds)
    await load.learn()
    async with engine_counters(f"{server.runtime_dir}/engine.sock") as engine:
        quiet = QuietPoints(server, load, engine, folder)
        await quiet.visit()
        print(f"all {plan.num_cases} requests without faults, again: {await load.check():.1f} s", flush=True)
        planned = strikes(plan.seed)
        if plan.per_role:
            planned = in_turn(planned, plan.roles, plan.per_role)
        rng = random.Random(f"part {plan.seed}")
        part = Part(server, load, engine, quiet, rng, report, plan.pace, lambda line: print(line, flush=True))
        cpu, began = _cpu_seconds(), time.monotonic()
        growth = Growth(plan.warm_seconds)
        sampling = asyncio.create_task(growth.run(server))
        await part.run(lambda: next(planned), plan.num_faults, plan.minutes * 60)
        sampling.cancel()
        report.growth = growth.lines()
        passed = time.monotonic() - began
        report.client_cpu = round((_cpu_seconds() - cpu) / passed, 3)
        report.minutes = passed / 60
    report.requests.update(load.counts)
    report.leaks += quiet.leaks
    report.hangs += quiet.hangs
    report.quiet_points = quiet.count
    return report


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
