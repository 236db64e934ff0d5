"""The worker's metrics, and a trace span for each step that computes prompt tokens of a traced request.

Decode steps get no spans: there would be one per token, and the engine's decode span has their duration.
"""

import threading

from prometheus_client import CollectorRegistry, Counter

from engine_core.step_plan import StepPlan, unpack_i32
from services.telemetry.spans import Tracing

NANO = 1e-9


class WorkerMetrics:
    """Counters of steps and of their times.

    Over an interval, the accelerator's wait share is 1 - worker_kernel_seconds / worker_runnable_seconds. On a GPU,
    gaps between the kernels of a step count as kernel time; on a CPU, torch's operations count as waiting. If
    worker_launch_seconds nears worker_kernel_seconds on a GPU, its steps are as long as the host takes to launch them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registered = threading.Event()  # set while registered with an engine: /ready
        self.has_registered = threading.Event()  # set from the first registration on: /health
        self._steps = Counter("tandem:worker_steps", "Plans that were run.", registry=registry)
        self._seconds = Counter("tandem:worker_step_seconds", "Time from a plan to its result.", registry=registry)
        self._runnable = Counter(
            "tandem:worker_runnable_seconds", "Time in which at least one request could run.", registry=registry
        )
        self._kernels = Counter(
            "tandem:worker_kernel_seconds",
            "The part of it in which a kernel ran; on a GPU, from the copy of a step's inputs to its last kernel.",
            registry=registry,
        )
        self._launches = Counter(
            "tandem:worker_launch_seconds",
            "The host's time from the copy of a step's inputs to the last launch; on a CPU, kernels run within it.",
            registry=registry,
        )
        self._last_ended = 0

    def step(self, plan: StepPlan, began: int, ended: int, in_kernels: int, in_launches: int) -> None:
        """Counts a step. `began` and `ended` are times, `in_kernels` and `in_launches` durations, in nanoseconds."""
        self._steps.inc()
        self._seconds.inc((ended - began) * NANO)
        self._runnable.inc((ended - (self._last_ended if plan.was_runnable else began)) * NANO)
        self._kernels.inc(in_kernels * NANO)
        self._launches.inc(in_launches * NANO)
        self._last_ended = ended


class StepSpans:
    """Emits a worker.prefill span for each traced request in each step that computes its prompt; decode steps: none.

    Tracks the slots of traced requests until they first sample.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._traced: dict[int, str] = {}  # slot -> traceparent of the engine's span

    def step(self, plan: StepPlan, began: int, ended: int) -> None:
        """Emits one span per traced request of the plan that had not sampled since it got its slot.

        Times are in nanoseconds since the Unix epoch.
        """
        for slot in plan.released_slots:
            self._traced.pop(slot, None)
        self._traced |= {new.slot: new.traceparent for new in plan.new_requests if new.traceparent}
        if not self._traced:
            return
        rows = zip(
            unpack_i32(plan.slots).tolist(),
            unpack_i32(plan.num_new_tokens).tolist(),
            unpack_i32(plan.num_computed_tokens).tolist(),
            unpack_i32(plan.sampled).tolist(),
            strict=True,
        )
        for slot, num_new, num_computed, sampled in rows:
            if slot not in self._traced:
                continue
            span = self._tracing.start("worker.prefill", self._traced[slot], at=began)
            span.set({"tandem.num_new_tokens": num_new, "tandem.num_computed_tokens": num_computed})
            span.end(ended)
            if sampled:
                del self._traced[slot]
