"""The engine's end of the worker socket, with the worker's real end in the same thread."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_cache_size import KvCacheSize
from engine_core.plan_builder import PlanBuilder
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import StepPlan, StepResult, pack_i32
from engine_core.worker_messages import PROTOCOL, Prepare, Prepared, PreparerHello, Refused, Register, encode
from services.engine import worker_link
from services.engine.worker_link import WorkerGone, WorkerLink
from services.errors import Fatal
from services.worker import engine_link
from services.worker.engine_link import EngineLink, EngineRefused
from tests.e2e.harness import wait_for
from tests.engine.parts import LIMITS, FakePreparer
from tests.fakes import FakeWorker, make_core_request, make_facts

FACTS = make_facts()


class Ends:
    """The engine's link, and the links of the workers that a test opens."""

    def __init__(self, folder: Path) -> None:
        self._endpoint = f"ipc://{folder}/worker.sock"
        self.link = WorkerLink(self._endpoint, LIMITS)
        self._workers: list[EngineLink] = []
        self._preparers: list[FakePreparer] = []
        self.kv_cache: KvCacheSize | None = None  # of the first worker

    def worker(self) -> EngineLink:
        """A new worker; the engine has its hello."""
        worker = EngineLink(self._endpoint)
        self._workers.append(worker)
        worker.hello()
        return worker

    def registered(self) -> tuple[EngineLink, Register]:
        worker = self.worker()
        self.poll()
        limits = worker.limits()
        assert msgspec.structs.replace(limits, kv_cache=None) == LIMITS
        assert limits.kv_cache == self.kv_cache
        worker.register(FACTS)
        registration = self.poll()
        assert registration is not None
        self.link.accept(registration.facts)
        self.kv_cache = FACTS.kv_cache_size
        return worker, registration

    def preparer(self, worker: EngineLink, hello: PreparerHello | None = None) -> FakePreparer:
        """The worker's preparer, which has said hello."""
        preparer = FakePreparer(worker, hello)
        self._preparers.append(preparer)
        assert self.poll_result() is None
        return preparer

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
        for end in (*self._preparers, *self._workers):
            end.close()
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


def test_later_workers_are_told_the_size_of_the_first_kv_cache(ends: Ends) -> None:
    for num_blocks in (32, 64):
        worker = ends.worker()
        ends.poll()
        limits = worker.limits()
        assert limits.kv_cache == (None if num_blocks == 32 else make_facts(num_blocks=32).kv_cache_size)
        ends.link.accept(make_facts(num_blocks=num_blocks))
        ends.leave(worker)
        ends.link.drop_worker()
    last = ends.worker()
    ends.poll()
    assert last.limits().kv_cache == make_facts(num_blocks=32).kv_cache_size


def test_the_next_workers_hello_tells_that_the_last_one_is_gone(ends: Ends) -> None:
    first, _ = ends.registered()
    ends.leave(first)
    second = ends.worker()
    with pytest.raises(WorkerGone, match="another one has connected"):
        ends.poll()
    assert second.limits() == msgspec.structs.replace(LIMITS, kv_cache=FACTS.kv_cache_size)
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


def test_a_preparer_is_asked_and_answers(ends: Ends) -> None:
    worker, registration = ends.registered()
    assert ends.link.preparer is None, "it has not said hello"
    preparer = ends.preparer(worker)
    assert ends.link.preparer is not None and ends.link.preparer.busy_seconds() == 0
    ends.link.prepare(make_core_request(7, [1, 2], resumed=[4, 5], grammar="9"))
    assert preparer.asked() == Prepare(registration.epoch, 7, "9", pack_i32([4, 5]))
    assert ends.link.preparer.busy_seconds() > 0
    answers = [Prepared(registration.epoch, 7, "no"), Prepared(registration.epoch, 8, is_complete=True)]
    for answer in answers:
        preparer.send(answer)
        assert ends.poll_result() is None
    assert list(ends.link.preparer.take()) == answers and list(ends.link.preparer.take()) == []
    assert ends.link.preparer.busy_seconds() == 0


@pytest.mark.parametrize("change", [{"epoch": 1}, {"protocol": PROTOCOL - 1}])
def test_a_preparer_of_no_present_worker_is_refused(ends: Ends, change: dict[str, int]) -> None:
    """As that of the worker before this one, whose thread is slow."""
    worker, registration = ends.registered()
    hello = msgspec.structs.replace(PreparerHello(PROTOCOL, registration.epoch), **change)
    stranger = ends.preparer(worker, hello)
    assert stranger.next() == Refused("this engine has dropped this worker") and ends.link.preparer is None
    stranger.send(Prepared(registration.epoch, 7))
    assert ends.poll_result() is None, "what it says does not count"
    stranger.send_bytes(b"?")
    assert ends.poll_result() is None, "nor does it end the worker"
    ends.link.send(first_plan(registration.epoch))


def test_a_worker_has_one_preparer(ends: Ends) -> None:
    worker, registration = ends.registered()
    first = ends.preparer(worker)
    other = ends.worker()
    assert ends.poll_result() is None
    second = ends.preparer(other, PreparerHello(PROTOCOL, registration.epoch))
    assert second.next() == Refused("this engine has dropped this worker")
    ends.link.prepare(make_core_request(7, [1, 2], grammar="9"))
    assert first.asked().handle == 7


@pytest.mark.parametrize("content", [b"?", encode(PreparerHello(PROTOCOL, 1)), encode(Prepared(1, 7))])
def test_a_preparer_that_breaks_the_protocol_counts_as_its_worker(ends: Ends, content: bytes) -> None:
    worker, _ = ends.registered()
    preparer = ends.preparer(worker)
    preparer.send_bytes(content)
    with pytest.raises(WorkerGone, match="the worker breaks the protocol"):
        ends.poll_result()
    with pytest.raises(EngineRefused, match="the engine refused this worker"):
        worker.next_plan()
    assert ends.link.preparer is None


def test_a_preparer_that_is_gone_takes_its_worker_along(ends: Ends) -> None:
    worker, _ = ends.registered()
    preparer = ends.preparer(worker)
    ends._preparers.remove(preparer)
    preparer.close()
    request = make_core_request(7, [1, 2], grammar="9")

    def is_gone() -> bool:
        try:
            ends.link.prepare(request)
        except WorkerGone:
            return True
        return False

    wait_for(is_gone, "the engine notices")
    assert ends.link.preparer is None


def test_the_next_worker_begins_without_a_preparer(ends: Ends) -> None:
    worker, _ = ends.registered()
    ends.preparer(worker)
    ends.link.drop_worker()
    second, _ = ends.registered()
    assert ends.link.preparer is None
    ends.preparer(second)
    assert ends.link.preparer is not None
