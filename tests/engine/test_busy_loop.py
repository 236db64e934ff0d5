"""The busy loop with real sockets and a worker that the test plays: one that hangs is dropped for good."""

import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine_core.events import Finished, SchedulerStats, StepEvents
from engine_core.kv_groups import FULL, SlidingWindow
from engine_core.preparations import DEADLY_GRAMMAR
from engine_core.request import Stop
from engine_core.scheduler_config import SchedulerConfig
from engine_core.worker_messages import PROTOCOL, BatchLimits
from services.engine import busy_loop
from services.engine.busy_loop import BusyLoop, BusyLoopConfig, Callbacks, StepTimes
from services.engine.worker_link import WorkerGone, WorkerLink
from services.errors import Fatal
from services.worker.engine_link import EngineLink, EngineRefused
from tests.e2e.harness import wait_for
from tests.engine.parts import FakePreparer
from tests.fakes import FakeWorker, make_core_request, make_facts, oracle

FACTS = make_facts()


class Engine:
    """A busy loop, and what it has passed to its callbacks."""

    def __init__(self, endpoint: str, **config: float) -> None:
        self.lost: list[str] = []
        self.failed: list[Exception] = []
        self.outputs: dict[int, list[int]] = {}
        self.finished: dict[int, Finished] = {}
        self.step_tokens: list[int] = []  # StepTimes.num_tokens of each step
        self.endpoint = endpoint
        link = WorkerLink(endpoint, BatchLimits(PROTOCOL, 8, 64))
        self.loop = BusyLoop(link, BusyLoopConfig(SchedulerConfig(8, 64), True, 2, **config))

    def start(self, **callbacks: Callable[[], None]) -> None:
        self.loop.start(
            Callbacks(lambda facts: None, self.lost.append, self._published, self.failed.append, **callbacks)
        )

    def _published(self, events: StepEvents, stats: SchedulerStats, times: StepTimes | None) -> None:
        if times is not None:
            self.step_tokens.append(times.num_tokens)
        for tokens in events.new_tokens:
            self.outputs.setdefault(tokens.handle, []).extend(tokens.token_ids)
        self.finished |= {one.handle: one for one in events.finished}

    def worker(self, *, is_intact: bool = False) -> EngineLink:
        link = EngineLink(self.endpoint)
        link.hello(is_intact=is_intact)
        link.limits()
        link.register(FACTS)
        return link


@pytest.fixture
def engine(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(busy_loop, "GRACE_SECONDS", 0.1)
    engine = Engine(f"ipc://{socket_dir}/worker.sock", step_timeout=0.1)
    engine.start()
    yield engine
    engine.loop.stop()


@pytest.fixture
def patient(socket_dir: Path) -> Iterator[Engine]:
    """An engine whose worker is the test: it may be slow."""
    engine = Engine(f"ipc://{socket_dir}/worker.sock", step_timeout=60.0)
    engine.start()
    yield engine
    engine.loop.stop()


def test_a_registration_that_cannot_be_served_is_refused(engine: Engine) -> None:
    """The engine goes on with the next worker."""
    first = EngineLink(engine.endpoint)
    first.hello()
    first.limits()
    first.register(make_facts(kv_groups=(SlidingWindow(4, 8), FULL)))
    with pytest.raises(EngineRefused, match="those that keep all blocks first"):
        first.next_plan()
    first.close()
    engine.loop.add(make_core_request(0, [1, 2, 3], 2))
    second = engine.worker()
    assert second.next_plan().new_requests
    second.close()
    assert not engine.failed


def test_the_loop_beats_between_two_commands(socket_dir: Path) -> None:
    """Each may take long: a long prompt, or a prefix cache that is emptied."""
    engine, beats, at = Engine(f"ipc://{socket_dir}/worker.sock", step_timeout=60.0), [0], [0]
    engine.start(beat=lambda: beats.__setitem__(0, beats[0] + 1))
    worker = engine.worker()
    for _ in range(50):
        engine.loop.reset_prefix_cache(lambda: at.append(beats[0]))
    wait_for(lambda: len(at) == 51, "all commands are applied")
    assert all(before < after for before, after in itertools.pairwise(at))
    engine.loop.stop()
    worker.close()


@pytest.mark.parametrize("is_intact", [True, False])
def test_a_worker_that_only_lost_its_connection_has_not_died(patient: Engine, is_intact: bool) -> None:
    """A request that runs at four deaths is taken for what kills; it may run at any number of lost connections."""
    patient.loop.add(make_core_request(0, [1, 2, 3], 2))
    for _ in range(4):
        worker = patient.worker(is_intact=is_intact)
        assert worker.next_plan().new_requests
        worker.close()
    last = patient.worker(is_intact=is_intact)
    if is_intact:
        assert last.next_plan().new_requests and not patient.finished
    else:
        wait_for(lambda: patient.finished, "the request ends")
        assert patient.finished[0].stop.message == "the worker died while it ran this request alone"
    last.close()


def test_a_worker_that_hangs_is_dropped_and_its_late_result_refused(engine: Engine) -> None:
    engine.loop.add(make_core_request(0, [1, 2, 3], 9))
    first = engine.worker()
    plan = first.next_plan()
    assert plan.deadline_ms == 500, "the first steps of a worker get five times --step-timeout"
    wait_for(lambda: engine.lost, "the engine drops the worker")
    assert re.fullmatch(
        r"the worker hangs: step 1 \(3 tokens\) has run for \d\.\d s, and its deadline is 0\.5 s", engine.lost[0]
    )

    first.done(FakeWorker(FACTS).execute(plan))
    with pytest.raises(Fatal, match="dropped this worker"):
        while True:
            first.next_plan()
    first.close()

    second, worker = engine.worker(), FakeWorker(FACTS)
    while len(engine.outputs.get(0, [])) < 9:
        second.done(worker.execute(second.next_plan()))
        if worker.step_tokens == [3] + [1] * 8:
            wait_for(lambda: len(engine.outputs[0]) == 9, "the last token")
    assert engine.outputs[0] == oracle([1, 2, 3], 9)
    assert len(engine.lost) == 1 and not engine.failed
    second.close()


def test_idle_time_before_a_step_does_not_count_for_its_deadline(engine: Engine) -> None:
    link, worker = engine.worker(), FakeWorker(FACTS)
    for handle in range(2):
        begun = time.monotonic()
        wait_for(lambda begun=begun: time.monotonic() > begun + 0.7, "idle for longer than a step may take")
        engine.loop.add(make_core_request(handle, [1, 2, 3], 1))
        plan = link.next_plan()
        begun = time.monotonic()
        while time.monotonic() < begun + 0.1:
            engine.loop.abort(99)  # wakes the loop, which looks at the clock
        link.done(worker.execute(plan))
        wait_for(lambda handle=handle: engine.outputs.get(handle) or engine.lost, "the token")
        assert not engine.lost and not engine.failed
    link.close()


def test_continues_is_false_for_the_first_plan_after_an_idle_time_only(engine: Engine) -> None:
    """So the worker's idle time is not measured as time that the accelerator waits for the engine."""
    link, worker = engine.worker(), FakeWorker(FACTS)
    for handle in range(2):
        engine.loop.add(make_core_request(handle, [1, 2, 3], 4))
        continues = []
        for _ in range(4):
            plan = link.next_plan()
            continues.append(plan.was_runnable)
            link.done(worker.execute(plan))
        assert continues == [False, True, True, True]
        wait_for(lambda handle=handle: len(engine.outputs.get(handle, [])) == 4, "the answer")
    link.close()


def test_a_step_counts_the_first_token_of_each_answer(engine: Engine) -> None:
    """vllm:iteration_tokens_total: prompt tokens and generated tokens; a resumed answer has its first token already."""
    engine.loop.add(make_core_request(0, [1, 2, 3], 4))
    engine.loop.add(make_core_request(1, [1, 2], 4, resumed=[7]))
    link, worker = engine.worker(), FakeWorker(FACTS)
    while len(engine.outputs.get(0, [])) < 4:
        link.done(worker.execute(link.next_plan()))
        wait_for(lambda: len(engine.step_tokens) == len(worker.step_tokens), "the result")
    assert engine.step_tokens == [3 + 1 + 3, 2, 2, 1]
    link.close()


def test_requests_with_a_grammar_wait_for_the_preparer(patient: Engine) -> None:
    """Its connection may come late; a request without a grammar runs meanwhile."""
    patient.loop.add(make_core_request(0, [1, 2, 3], 9, grammar="2"))
    patient.loop.add(make_core_request(1, [4, 5], 2))
    link, worker = patient.worker(), FakeWorker(FACTS)
    while 1 not in patient.finished:
        if (plan := link.poll_plan()) is not None:
            link.done(worker.execute(plan))
    assert 0 not in patient.outputs
    preparer = FakePreparer(link)
    preparer.send(worker.prepare(preparer.asked()))
    while 0 not in patient.finished:
        if (plan := link.poll_plan()) is not None:
            link.done(worker.execute(plan))
    assert patient.outputs == {0: oracle([1, 2, 3], 2), 1: oracle([4, 5], 2)}
    assert patient.finished[0].stop == Stop("stop")
    preparer.close()
    link.close()


def test_a_grammar_is_prepared_while_a_step_runs(patient: Engine) -> None:
    """It is asked for, and its error ends its request, before the result is back; the next plan has it."""
    link, worker = patient.worker(), FakeWorker(FACTS)
    preparer = FakePreparer(link)
    patient.loop.add(make_core_request(0, [1, 2, 3], 3))
    results = [worker.execute(link.next_plan()) for _ in range(2)]
    patient.loop.add(make_core_request(1, [4, 5], 1, grammar="9"))
    patient.loop.add(make_core_request(2, [4, 5], 1, grammar="no"))
    for _ in range(2):
        preparer.send(worker.prepare(preparer.asked()))
    wait_for(lambda: 2 in patient.finished, "the error")
    assert patient.finished[2].stop == Stop("error", message="not a number: no", param="grammar")
    assert not patient.outputs, "no result is back"
    link.done(results[0])
    assert [new.handle for new in link.next_plan().new_requests] == [1]
    preparer.close()
    link.close()


def test_a_grammars_error_reaches_its_request_though_the_worker_goes(
    patient: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes between two messages to its preparer."""
    link, worker = patient.worker(), FakeWorker(FACTS)
    preparer = FakePreparer(link)
    patient.loop.add(make_core_request(0, [1, 2, 3], 9, grammar="no"))
    asked = preparer.asked()

    def gone(request: object) -> None:
        raise WorkerGone("the worker is no longer connected")

    monkeypatch.setattr(patient.loop._link, "prepare", gone)
    monkeypatch.setattr(patient.loop, "abort", lambda handle: None)
    patient.loop._commands.append(make_core_request(1, [1, 2, 3], 9, grammar="2"))  # the next turn asks for it
    preparer.send(worker.prepare(asked))
    wait_for(lambda: 0 in patient.finished, "the error")
    preparer.close()
    link.close()


def test_a_preparer_that_hangs_costs_its_worker(engine: Engine) -> None:
    engine.loop.add(make_core_request(0, [1, 2, 3], 9, grammar="2"))
    for expected in (1, 2, 3):
        link = engine.worker()
        preparer = FakePreparer(link)
        assert preparer.asked().handle == 0
        wait_for(lambda expected=expected: len(engine.lost) == expected, "the engine drops the worker")
        assert re.fullmatch(r"the worker hangs \(it has prepared one grammar for \d\.\d s\)", engine.lost[-1])
        with pytest.raises(EngineRefused, match="one grammar"):
            link.next_plan()
        preparer.close()
        link.close()
    link = engine.worker()
    wait_for(lambda: 0 in engine.finished, "the request fails")
    assert engine.finished[0].stop == Stop("error", message=DEADLY_GRAMMAR)
    link.close()
