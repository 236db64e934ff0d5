"""What the servicer, its sessions and the table of open choices share. Used by the event loop's thread alone."""

import random
from dataclasses import dataclass, field

from engine_core.worker_messages import ModelFacts
from services.engine.busy_loop import BusyLoop
from services.engine.metrics import EngineMetrics
from services.engine.queue_limits import QueueLimits
from services.rpc.callee import Attempts
from services.rpc.outage import Outage
from services.rpc.start_lock import StartLock
from services.telemetry.logs import RateLimitedLog
from services.telemetry.spans import Tracing


@dataclass
class EngineState:
    loop: BusyLoop
    queue: QueueLimits
    by_priority: bool  # --scheduling-policy priority
    max_n: int  # choices per request
    seeds: random.Random  # for requests without a seed
    root_key: bytes = field(repr=False)  # secret: of the root hashes of block hashes
    attempts: Attempts
    start_lock: StartLock
    outage: Outage  # the time without a worker
    tracing: Tracing
    dropped_attempts: RateLimitedLog
    facts: ModelFacts | None = None  # None until the first worker registers
    metrics: EngineMetrics | None = None  # likewise
