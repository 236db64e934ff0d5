"""Runs an engine's plans: sends each result as soon as it is complete, and launches the next plan while one runs.

A plan with grammars is sampled only after the results of the plans before it are sent: their tokens decide its masks,
and the engine plans the next step meanwhile.
"""

from collections import deque

from engine_core.step_plan import StepPlan
from services.process.progress_page import BEAT_SECONDS, Progress
from services.telemetry.spans import now
from services.worker.engine_link import EngineLink
from services.worker.model_runner import Launched, ModelRunner
from services.worker.telemetry import StepSpans, WorkerMetrics
from services.worker.watchdog import Watchdog

IDLE_POLL_MS = int(1000 * BEAT_SECONDS)
CAPTURE_SECONDS = 120.0  # that a capture of a graph may take


class StepLoop:
    def __init__(
        self, link: EngineLink, runner: ModelRunner, metrics: WorkerMetrics, spans: StepSpans, progress: Progress
    ) -> None:
        self._link = link
        self._runner = runner
        self._metrics = metrics
        self._spans = spans
        self._progress = progress
        self._watchdog = Watchdog(progress)
        self._launched: deque[tuple[Launched, int]] = deque()  # with each plan's start time

    def run(self) -> None:
        """Runs plans until EngineGone (lost engine), Fatal (lasting refusal) or BadMessage (bad plan) is raised."""
        while True:
            self._progress.thread.beat()
            if self._launched and self._launched[0][0].done.query():
                self._finish(self._launched[1][0].plan if len(self._launched) > 1 else None)
                continue
            plan = self._link.poll_plan()
            if plan is None and not self._launched and not self._capture_next_graph():
                plan = self._link.poll_plan(IDLE_POLL_MS)
            if plan is not None:
                self._launch(plan)

    def close(self) -> None:
        """Disarms the watchdog. No beats are expected from now on: the worker may wait long for its next engine."""
        self._watchdog.watch(0)
        self._progress.thread.pause()

    def _capture_next_graph(self) -> bool:
        if not self._runner.num_missing_graphs:
            return False
        self._progress.busy_for(CAPTURE_SECONDS)
        captured = self._runner.capture_next_graph()
        self._progress.busy_for(0)
        return captured

    def _launch(self, plan: StepPlan) -> None:
        began = now()
        self._progress.worked()
        if not self._launched:
            self._watchdog.watch(plan.deadline_ms)
        forwarded = self._runner.forward(plan)
        while forwarded.grammars is not None and self._launched:
            self._finish(self._launched[1][0].plan if len(self._launched) > 1 else plan)
        self._launched.append((self._runner.sample(forwarded), began))

    def _finish(self, following: StepPlan | None) -> None:
        """Waits for the first launched plan and sends its result. `following`: the plan that runs after it."""
        step, began = self._launched.popleft()
        result = self._runner.collect(step)
        ended = now()
        self._watchdog.watch(following.deadline_ms if following is not None else 0)
        self._link.done(result)
        kernels, launches = self._runner.kernel_nanoseconds(step), self._runner.launch_nanoseconds(step)
        self._metrics.step(step.plan, began, ended, kernels, launches)
        self._spans.step(step.plan, began, ended)
