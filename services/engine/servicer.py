"""The engine's gRPC service: one Session per tokenizer's stream or program's call, facts, stats, the start lock, the
prefix cache's reset.

Runs on the event loop. It reaches the busy loop by commands alone; the busy loop's events come in through
`registered` and `published`.
"""

import asyncio
import functools
import logging
import random
from collections.abc import Callable
from typing import Any

import grpc
import msgspec

from engine_core.events import SchedulerStats, StepEvents
from engine_core.request_check import MAX_N
from engine_core.worker_messages import BatchLimits, ModelFacts
from services.engine.busy_loop import BusyLoop, StepTimes
from services.engine.codec import engine_facts, engine_stats
from services.engine.event_loop import call_in_event_loop
from services.engine.generate import TokensMailbox, engine_entry
from services.engine.mailbox import StepMailbox
from services.engine.metrics import EngineMetrics
from services.engine.open_choices import OpenChoices
from services.engine.queue_limits import QueueLimits
from services.engine.session import Session
from services.engine.state import EngineState
from services.errors import Fatal
from services.rpc.callee import Callee
from services.rpc.errors import TandemError, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, engine_pb2_grpc
from services.rpc.hello import make_hello, model_info
from services.rpc.link import ADMINISTRATION_SECONDS
from services.rpc.outage import Outage
from services.rpc.program_request import check_numerics, field_of, traceparent_of
from services.rpc.status import abort
from services.telemetry.logs import RateLimitedLog
from services.telemetry.spans import Tracing

log = logging.getLogger(__name__)


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    def __init__(
        self,
        loop: BusyLoop,
        limits: BatchLimits,
        queue: QueueLimits,
        by_priority: bool,
        seed: int | None,
        root_key: bytes,
        resume_wait: float,
        make_metrics: Callable[[ModelFacts], EngineMetrics],
        tracing: Tracing,
    ) -> None:
        """Requests without a seed get one from a generator that starts from `seed`; None: random ones.

        `root_key`: the secret of root hashes, 32 bytes or more. `resume_wait`: seconds that new requests wait for a
        worker.
        """
        self.callee = Callee()
        self._limits = limits
        self._make_metrics = make_metrics
        self._state = EngineState(
            loop=loop,
            queue=queue,
            by_priority=by_priority,
            max_n=min(MAX_N, queue.reqs.limit),
            seeds=random.Random(seed) if seed is not None else random.SystemRandom(),
            root_key=root_key,
            attempts=self.callee.attempts,
            start_lock=self.callee.start_lock,
            outage=Outage(resume_wait, "no worker", self._on_given_up),
            tracing=tracing,
            dropped_attempts=RateLimitedLog(log, logging.WARNING),
        )
        self._choices = OpenChoices(self._state)
        self._hello: asyncio.Future[pb.Hello] = asyncio.get_running_loop().create_future()
        self._mailboxes: set[StepMailbox] = set()
        self._stats = engine_pb2.EngineStats()

    async def Connect(self, request_iterator: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Runs one tokenizer's stream, once a worker has registered. When the stream ends, its requests are aborted."""
        try:
            hello = await asyncio.shield(self._hello)
        except asyncio.CancelledError:
            return  # the process stops or the caller hung up; grpc would print a traceback
        mailbox = StepMailbox(hello.epoch, self)
        mailbox.put_stats(self._stats)
        self._mailboxes.add(mailbox)
        session = Session(self._state, self._choices, mailbox)
        try:
            await self.callee.serve_stream(
                context, lambda: hello, ("tokenizer",), mailbox, session.opened, engine_pb2.EngineUp
            )
        finally:
            self._mailboxes.discard(mailbox)
            session.close()

    async def Generate(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Runs one program's request. When the call ends, its choices are aborted.

        The status is RESOURCE_EXHAUSTED, with RetryInfo, until a worker has registered.
        """
        facts = self._state.facts
        if facts is None:
            await abort(context, unavailable("no worker has registered with this engine yet; try again"))
        mailbox = TokensMailbox(facts, stream=request.stream)
        session = Session(self._state, self._choices, mailbox)

        def entry() -> engine_pb2.EngineEntry:
            check_numerics(request, facts.numerics_id)
            made = engine_entry(request, traceparent_of(context), self._state.max_n, facts.max_model_len)
            mailbox.expect(made.submit.choices)
            return made

        try:
            await self.callee.serve_call(context, mailbox, session.opened, entry, functools.partial(field_of, request))
        finally:
            session.close()

    async def GetModelInfo(self, request: Any, context: Any) -> pb.ModelInfo:
        hello = self._hello.result() if self._hello.done() else None
        return model_info(hello)

    async def GetStats(self, request: Any, context: Any) -> engine_pb2.EngineStats:
        return self._stats

    async def HoldStartLock(self, request: pb.Hello, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Grants the start lock to the calling tokenizer, in its turn. Returns when the grant or the call ends.

        Running requests need not end first: the scheduler pauses them while a suspect runs.
        """
        await self.callee.start_lock.hold(request, context)

    async def ResetPrefixCache(self, request: Any, context: Any) -> pb.ResetPrefixCacheResponse:
        done, here = asyncio.Event(), asyncio.get_running_loop()
        self._state.loop.reset_prefix_cache(lambda: call_in_event_loop(here, done.set))
        try:
            async with asyncio.timeout(ADMINISTRATION_SECONDS):
                await done.wait()
        except TimeoutError:
            message = f"the prefix cache was not reset: a step has run for more than {ADMINISTRATION_SECONDS:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, message)
        return pb.ResetPrefixCacheResponse()

    def registered(self, facts: ModelFacts) -> None:
        """Takes the facts of a worker that has registered; after the first one, streams are accepted.

        Raises Fatal when the facts of a later worker differ from the first one's in more than the number of blocks.
        """
        state = self._state
        state.outage.end()
        if state.facts is not None:
            old, new = (msgspec.structs.asdict(one) | {"num_blocks": 0} for one in (state.facts, facts))
            if changed := [f"{name} {new[name]}, not {old[name]}" for name in old if new[name] != old[name]]:
                reason = f"the new worker has another model or other options than the one before: {changed[0]}"
                raise Fatal(f"{reason}; restart the engine")
            state.facts = facts
            if state.metrics is not None:
                state.metrics.record_kv_cache(facts)
            self.callee.tell_readiness()
            return
        state.facts = facts
        state.metrics = self._make_metrics(facts)
        self._hello.set_result(
            make_hello(
                "engine",
                digest=facts.tokenizer_digest,
                engine=engine_facts(facts, self._limits.max_num_seqs, state.max_n, state.queue.reqs.limit),
            )
        )

    def is_ready(self) -> bool:
        """Returns whether a token could be made now."""
        return self._state.outage.has_peer and not self.callee.is_draining

    def is_served(self) -> bool:
        """Returns whether new requests are accepted: there is a worker, or the next one is waited for."""
        return self._state.outage.is_served

    def is_healthy(self) -> bool:
        return self.is_served() and not self.callee.is_draining

    def lost(self) -> None:
        """The worker is gone: requests wait for the next one, new ones as long as the outage says."""
        self._state.outage.begin()
        self.callee.tell_readiness()

    def _on_given_up(self, error: TandemError) -> None:
        self._choices.refuse_waiting(error)
        self.callee.tell_readiness()

    def published(self, events: StepEvents, stats: SchedulerStats, times: StepTimes | None) -> None:
        """Puts events and stats of the busy loop into mailboxes and metrics. `times` as in OpenChoices.publish."""
        self._stats = engine_stats(stats)
        for mailbox in self._mailboxes:
            mailbox.put_stats(self._stats)
        self._choices.publish(events, times)
        if self._state.metrics is not None:
            self._state.metrics.record_state(stats)
            if times is not None:
                self._state.metrics.record_step(times.num_tokens)

    def stop(self) -> None:
        """Ends the spans of open choices. Call it before tracing stops."""
        self._state.outage.close()
        self._choices.end_spans()
