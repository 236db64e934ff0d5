"""The engine's end of the worker socket, with the worker's real end in the same thread."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import StepPlan, StepResult
from engine_core.worker_messages import PROTOCOL, Register
from services.engine import worker_link
from services.engine.worker_link import WorkerGone, WorkerLink
from services.errors import Fatal
from services.worker import engine_link
from services.worker.engine_link import EngineLink, EngineRefused
from tests.e2e.harness import wait_for
from tests.engine.parts import LIMITS
from tests.fakes import FakeWorker, make_core_request, make_facts

FACTS = make_facts()


class Ends:
    """The engine's link, and the links of the workers that a test opens."""

    def __init__(self, folder: Path) -> None:
        self._endpoint = f"ipc://{folder}/worker.sock"
        self.link = WorkerLink(self._endpoint, LIMITS)
        self._workers: list[EngineLink] = []

    def worker(self) -> EngineLink:
        """A new worker; the engine has its hello."""
        worker = EngineLink(self._endpoint)
        self._workers.append(worker)
        worker.hello()
        return worker

    def registered(self) -> tuple[EngineLink, Register]:
        worker = self.worker()
        self.poll()
        assert worker.limits() == LIMITS
        worker.register(FACTS)
        registration = self.poll()
        assert registration is not None
        return worker, registration

    def poll(self) -> Register | None:
        """Waits for one message of a worker, and takes it."""
        assert self.link._socket.poll(10_000), "no message came"
        return self.link.poll_registration()

    def poll_result(self) -> StepResult | None:
        assert self.link._socket.poll(10_000), "no message came"
        return self.link.poll_result()

    def leave(self, worker: EngineLink) -> None:
        """Closes a worker; returns once the engine's socket has noticed."""
        self._workers.remove(worker)
        worker.close()
        wait_for(lambda: not self.link._reaches_worker(), "the worker's end")

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self.link.close()


@pytest.fixture
def ends(socket_dir: Path) -> Iterator[Ends]:
    ends = Ends(socket_dir)
    yield ends
    ends.close()


def first_plan(epoch: int) -> StepPlan:
    kv = KVCacheManager(FACTS.num_blocks, FACTS.block_size, FACTS.kv_groups, prefix_caching=True)
    scheduler = Scheduler(kv, PlanBuilder(epoch, 1), SchedulerConfig(8, 64))
    scheduler.add(make_core_request(1, [1, 2, 3]))
    plan = scheduler.schedule()
    assert plan is not None
    return plan


def test_a_worker_says_hello_gets_the_limits_and_registers(ends: Ends) -> None:
    _, registration = ends.registered()
    assert registration.facts == FACTS


def test_a_plan_reaches_the_worker_and_its_result_comes_back(ends: Ends) -> None:
    worker, registration = ends.registered()
    plan = first_plan(registration.epoch)
    ends.link.send(plan)
    assert worker.next_plan() == plan
    result = FakeWorker(FACTS).execute(plan)
    worker.done(result)
    assert ends.poll_result() == result


def test_a_result_of_another_epoch_is_dropped(ends: Ends) -> None:
    worker, registration = ends.registered()
    result = FakeWorker(FACTS).execute(first_plan(registration.epoch))
    worker.done(msgspec.structs.replace(result, epoch=registration.epoch - 1))
    worker.done(result)
    assert ends.poll_result() is None
    assert ends.poll_result() == result


def test_wake_ends_a_wait(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "PROBE_MS", 20_000)
    began = time.monotonic()
    waker = threading.Thread(target=ends.link.wake)
    waker.start()
    assert ends.link.poll_registration() is None
    waker.join()
    assert time.monotonic() - began < 15


def test_wakes_do_not_pile_up(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands come faster than a step ends; one wait takes all their wakes, and no wake ever blocks."""
    for _ in range(3000):
        ends.link.wake()
    assert ends.link.poll_registration() is None
    monkeypatch.setattr(worker_link, "PROBE_MS", 0)
    assert ends.link.poll_registration() is None
    assert not ends.link._poller.poll(0), "nothing is left to read"


def test_a_second_worker_is_refused_while_the_first_is_connected(ends: Ends) -> None:
    worker, registration = ends.registered()
    second = ends.worker()
    ends.poll()
    with pytest.raises(EngineRefused, match="the engine refused this worker: this engine already has a worker"):
        second.limits()
    plan = first_plan(registration.epoch)
    ends.link.send(plan)
    assert worker.next_plan() == plan


def test_a_waiting_engine_notices_that_its_worker_is_gone(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "PROBE_MS", 10)
    worker, _ = ends.registered()
    assert ends.link.poll_result() is None, "a worker that only says nothing is kept"
    ends.leave(worker)
    with pytest.raises(WorkerGone, match="the worker is no longer connected"):
        ends.link.poll_result()
    ends.registered()


def test_sending_to_a_worker_that_is_gone_raises(ends: Ends) -> None:
    worker, registration = ends.registered()
    ends.leave(worker)
    with pytest.raises(WorkerGone, match="the worker is no longer connected"):
        ends.link.send(first_plan(registration.epoch))
    ends.registered()


def test_the_next_workers_hello_tells_that_the_last_one_is_gone(ends: Ends) -> None:
    first, _ = ends.registered()
    ends.leave(first)
    second = ends.worker()
    with pytest.raises(WorkerGone, match="another one has connected"):
        ends.poll()
    assert second.limits() == LIMITS
    second.register(FACTS)
    assert ends.poll() is not None


def test_messages_of_a_dropped_worker_are_refused_for_good(ends: Ends) -> None:
    worker, registration = ends.registered()
    ends.link.drop_worker()
    worker.done(FakeWorker(FACTS).execute(first_plan(registration.epoch)))
    assert ends.poll_result() is None
    with pytest.raises(Fatal, match="this engine has dropped this worker"):
        worker.next_plan()
    ends.registered()


def test_a_refused_worker_gets_the_reason_and_may_come_again(ends: Ends) -> None:
    worker, _ = ends.registered()
    with pytest.raises(WorkerGone, match=r"the worker breaks the protocol \(a bad table\)"):
        ends.link.refuse("a bad table")
    with pytest.raises(EngineRefused, match="the engine refused this worker: a bad table"):
        worker.next_plan()
    ends.registered()


def test_a_worker_of_another_protocol_is_refused_with_both_values(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_link, "PROTOCOL", 99)
    worker = ends.worker()
    ends.poll()
    with pytest.raises(Fatal, match=f"the engine has protocol {PROTOCOL}, the worker 99"):
        worker.limits()
