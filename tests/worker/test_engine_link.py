"""The worker's socket against a real ZeroMQ ROUTER: what it sends, and what it makes of each message of an engine."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_core.kv_groups import FULL
from engine_core.step_plan import StepPlan, StepResult
from engine_core.worker_messages import (
    PROTOCOL,
    BatchLimits,
    ModelFacts,
    Ping,
    Refused,
    Register,
    SamplingDefaults,
    Step,
    StepDone,
    WorkerHello,
)
from services.errors import Fatal
from services.worker.engine_link import EngineGone, EngineLink, EngineRefused
from tests.worker.engine_by_hand import TIMEOUT_MS, EngineSocket

LIMITS = BatchLimits(PROTOCOL, max_num_seqs=4, max_num_batched_tokens=16)
FACTS = ModelFacts(("m",), 64, 50, (2,), 4, 8, (FULL,), 20, SamplingDefaults(), "", "id", "weights")


@pytest.fixture
def engine(socket_dir: Path) -> Iterator[EngineSocket]:
    socket = EngineSocket(f"ipc://{socket_dir}/engine")
    yield socket
    socket.close()


@pytest.fixture
def link(socket_dir: Path, engine: EngineSocket) -> Iterator[EngineLink]:
    connected = EngineLink(f"ipc://{socket_dir}/engine")
    yield connected
    connected.close()


def plan_of(epoch: int, step_id: int) -> StepPlan:
    return StepPlan(epoch, step_id, None, [], [], b"", b"", b"", b"", b"", [b""], [b""])


def polled(link: EngineLink) -> StepPlan:
    """The next plan by poll_plan alone; waits on the socket, not by time."""
    while (plan := link.poll_plan()) is None:
        assert link._poller.poll(TIMEOUT_MS), "no message came"
    return plan


def test_a_worker_says_hello_registers_and_returns_results(engine: EngineSocket, link: EngineLink) -> None:
    link.hello()
    hello = engine.receive()
    assert isinstance(hello, WorkerHello) and (hello.protocol, hello.rank) == (PROTOCOL, 0) and hello.epoch > 0
    engine.send(LIMITS)
    assert link.limits() == LIMITS
    link.register(FACTS)
    assert engine.receive() == Register(hello.epoch, FACTS)
    result = StepResult(hello.epoch, 7, *[b""] * 7)
    link.done(result)
    assert engine.receive() == StepDone(result)


@pytest.mark.parametrize("read", [EngineLink.next_plan, polled])
def test_only_plans_of_this_epoch_are_taken(
    engine: EngineSocket, link: EngineLink, read: Callable[[EngineLink], StepPlan]
) -> None:
    """Pings are skipped, too."""
    link.hello()
    epoch = engine.receive().epoch
    assert link.poll_plan() is None
    for message in (Ping(), Step(plan_of(epoch - 1, 1)), Ping(), Step(plan_of(epoch, 2)), Step(plan_of(epoch, 3))):
        engine.send(message)
    assert [read(link).step_id for _ in range(2)] == [2, 3]


def test_a_ping_does_not_keep_a_worker_that_polls_from_its_loop(engine: EngineSocket, link: EngineLink) -> None:
    link.hello()
    engine.receive()
    engine.send(Ping())
    began = time.monotonic()
    assert link.poll_plan(60_000) is None
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (Refused("another rank is here", for_now=True), EngineRefused, "refused this worker: another rank is here"),
        (Refused("other model"), Fatal, "refused this worker: other model"),
        (b"\xc1", EngineRefused, "malformed message from the engine: not a message of this protocol"),
        (Step(plan_of(1, 1)), EngineGone, "expected BatchLimits from the engine, received Step"),
    ],
    ids=["refused for now", "refused for good", "malformed", "a plan too early"],
)
def test_each_refusal_has_its_error(
    engine: EngineSocket, link: EngineLink, message: Any, error: type[Exception], text: str
) -> None:
    link.hello()
    engine.receive()
    engine.send(message)
    with pytest.raises(error, match=text):
        link.limits()


def test_an_engine_that_ends_is_noticed(engine: EngineSocket, link: EngineLink) -> None:
    link.hello()
    engine.receive()
    engine.send(LIMITS)
    link.limits()
    engine.close()
    with pytest.raises(EngineGone, match="lost the connection"):
        link.next_plan()


def test_limits_of_an_engine_that_has_ended_are_not_taken(engine: EngineSocket, link: EngineLink) -> None:
    """The worker has loaded its weights meanwhile."""
    link.hello()
    engine.receive()
    engine.send(LIMITS)
    assert link._socket.poll(TIMEOUT_MS)
    engine.close()
    assert link._engine.losses.poll(TIMEOUT_MS)
    with pytest.raises(EngineGone, match="lost the connection"):
        link.limits()


def test_a_worker_does_not_register_with_the_next_engine(engine: EngineSocket, link: EngineLink) -> None:
    """It has built its KV cache meanwhile."""
    link.hello()
    engine.receive()
    engine.send(LIMITS)
    link.limits()
    engine.close()
    assert link._engine.losses.poll(TIMEOUT_MS)
    with pytest.raises(EngineGone, match="lost the connection"):
        link.register(FACTS)
    assert not link.is_registered


def test_the_refusal_of_the_next_engine_does_not_end_the_worker(
    engine: EngineSocket, link: EngineLink, socket_dir: Path
) -> None:
    link.hello()
    epoch = engine.receive().epoch
    engine.send(LIMITS)
    link.limits()
    link.register(FACTS)
    engine.receive()
    engine.close()
    assert link._engine.losses.poll(TIMEOUT_MS)
    next_engine = EngineSocket(f"ipc://{socket_dir}/engine")
    link.done(StepResult(epoch, 7, *[b""] * 7))
    next_engine.receive()
    next_engine.send(Refused("this engine has dropped this worker"))
    assert link._socket.poll(TIMEOUT_MS)
    with pytest.raises(EngineGone, match="lost the connection"):
        link.next_plan()
    next_engine.close()


def test_an_engine_that_ends_without_an_answer_may_have_another_secret(engine: EngineSocket, link: EngineLink) -> None:
    link.hello()
    engine.receive()
    engine.close()
    with pytest.raises(EngineRefused, match="without an answer: check that both have the same cluster secret"):
        link.limits()


def test_an_address_without_protection_is_refused() -> None:
    with pytest.raises(Fatal, match="secret"):
        EngineLink("tcp://127.0.0.1:1")
