"""Parts of an engine for tests: its state without a running busy loop, and a preparer that the test plays.

The busy loop's commands stay in its queue, where a test reads them.
"""

import random
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from engine_core.scheduler_config import SchedulerConfig
from engine_core.worker_messages import (
    PROTOCOL,
    BatchLimits,
    EngineMessage,
    Ping,
    Prepare,
    PreparerHello,
    WorkerMessage,
    decode_from_engine,
    encode,
)
from services.engine.busy_loop import BusyLoop, BusyLoopConfig
from services.engine.metrics import EngineMetrics
from services.engine.queue_limits import QueueLimits
from services.engine.state import EngineState
from services.engine.worker_link import WorkerLink
from services.rpc.callee import Attempts
from services.rpc.outage import Outage
from services.rpc.start_lock import StartLock
from services.telemetry.logs import RateLimitedLog
from services.telemetry.spans import Tracing
from services.worker.engine_link import EngineLink
from tests.fakes import ROOT_KEY, make_facts

LIMITS = BatchLimits(PROTOCOL, 8, 64)


class FakePreparer:
    """The second socket of a worker's link, for a test that answers itself."""

    def __init__(self, link: EngineLink, hello: PreparerHello | None = None) -> None:
        """Says `hello`; None: that of the link's worker."""
        self.epoch = link.epoch
        self._engine = link.second_socket()
        self.send(hello or PreparerHello(PROTOCOL, self.epoch))

    def send(self, message: WorkerMessage) -> None:
        self._engine.messages.send(encode(message))

    def send_bytes(self, content: bytes) -> None:
        self._engine.messages.send(content)

    def next(self) -> EngineMessage:
        """Waits for a message of the engine that is not a ping."""
        assert self._engine.messages.poll(10_000), "no message came"
        message = decode_from_engine(self._engine.messages.recv_multipart())
        return message if not isinstance(message, Ping) else self.next()

    def asked(self) -> Prepare:
        """Waits for what the engine asks next."""
        message = self.next()
        assert isinstance(message, Prepare)
        return message

    def close(self) -> None:
        self._engine.close()


def make_loop(folder: Path) -> BusyLoop:
    """Returns a busy loop that is not started. Its worker link listens in `folder`; the test closes it."""
    link = WorkerLink(f"ipc://{folder}/worker.sock", LIMITS)
    return BusyLoop(link, BusyLoopConfig(SchedulerConfig(8, 64), True, 2, 1.0))


def commands(loop: BusyLoop) -> list[Any]:
    """Removes all commands from the loop's queue and returns them: requests to add, handles to abort."""
    taken = list(loop._commands)
    loop._commands.clear()
    return taken


def connected_outage() -> Outage:
    """Returns the outage of an engine that has a worker."""
    outage = Outage(60.0, "no worker", lambda error: None)
    outage.end()
    return outage


def make_state(
    loop: BusyLoop,
    log: RateLimitedLog,
    tracing: Tracing,
    registry: CollectorRegistry,
    queue: QueueLimits | None = None,
    *,
    by_priority: bool = False,
) -> EngineState:
    """Returns the engine's state as it is once a worker has registered. `queue` None: at most 100 requests."""
    facts = make_facts()
    return EngineState(
        loop=loop,
        queue=queue or QueueLimits(100, 0),
        by_priority=by_priority,
        max_n=4,
        seeds=random.Random(1),
        root_key=ROOT_KEY,
        attempts=Attempts(),
        start_lock=StartLock(),
        outage=connected_outage(),
        tracing=tracing,
        dropped_attempts=log,
        facts=facts,
        metrics=EngineMetrics(registry, True, facts),
    )
