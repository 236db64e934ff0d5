"""An engine's state without a running busy loop: the commands stay in the loop's queue, where a test reads them."""

import random
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from engine_core.scheduler_config import SchedulerConfig
from engine_core.worker_messages import PROTOCOL, BatchLimits
from services.engine.busy_loop import BusyLoop, BusyLoopConfig
from services.engine.metrics import EngineMetrics
from services.engine.queue_limits import QueueLimits
from services.engine.state import EngineState
from services.engine.worker_link import WorkerLink
from services.rpc.callee import Attempts
from services.rpc.start_lock import StartLock
from services.telemetry.logs import RateLimitedLog
from services.telemetry.spans import Tracing
from tests.fakes import make_facts

LIMITS = BatchLimits(PROTOCOL, 8, 64)


def make_loop(folder: Path) -> BusyLoop:
    """Returns a busy loop that is not started. Its worker link listens in `folder`; the test closes it."""
    link = WorkerLink(f"ipc://{folder}/worker.sock", LIMITS)
    return BusyLoop(link, BusyLoopConfig(SchedulerConfig(8, 64), True, 2, 1.0))


def commands(loop: BusyLoop) -> list[Any]:
    """Removes all commands from the loop's queue and returns them: requests to add, handles to abort."""
    taken = list(loop._commands)
    loop._commands.clear()
    return taken


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
        attempts=Attempts(),
        start_lock=StartLock(),
        tracing=tracing,
        dropped_attempts=log,
        facts=facts,
        metrics=EngineMetrics(registry, True, facts),
    )
