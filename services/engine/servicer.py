"""The engine's gRPC edge: streams from tokenizers, who asked for which choice, and where each step's events go.

Every limit is checked here again, whatever the processes in front have checked; a refused request gets its terminal
message and disturbs nobody. All on the event loop; the busy loop is told by commands alone.
"""

import asyncio
import functools
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import msgspec

from engine_core.events import Finished, SchedulerStats, StepEvents
from engine_core.request import SUSPECT_AT
from engine_core.request_check import MAX_N, MAX_SEED, RequestRefused, make_request
from engine_core.worker_messages import BatchLimits, ModelFacts
from services.engine.busy_loop import BusyLoop, StepTimes
from services.engine.codec import StepMailbox, engine_facts, engine_stats, new_choices, terminal
from services.engine.event_loop import call_in_event_loop
from services.engine.metrics import EngineMetrics
from services.engine.queue_limits import QueueFull, QueueLimits
from services.engine.telemetry import Timeline, begin, end
from services.errors import Fatal
from services.rpc.errors import TandemError, invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, engine_pb2_grpc
from services.rpc.handles import Handles
from services.rpc.hello import make_hello
from services.rpc.link import ADMINISTRATION_SECONDS
from services.rpc.session import Attempts, Callee
from services.rpc.start_lock import CallerKey
from services.telemetry.logs import RateLimitedLog
from services.telemetry.spans import Tracing, now

log = logging.getLogger(__name__)


@dataclass
class Owner:
    """Who asked for a choice: where its events go, under which handle."""

    mailbox: StepMailbox
    handle: int
    key: CallerKey
    attempt: int
    seed: int
    num_prompt_tokens: int
    num_queued_tokens: int  # what it holds of the limit on them; 0 from its first token on
    timeline: Timeline


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    def __init__(
        self,
        loop: BusyLoop,
        limits: BatchLimits,
        queue: QueueLimits,
        by_priority: bool,
        seed: int | None,
        make_metrics: Callable[[ModelFacts], EngineMetrics],
        tracing: Tracing,
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._queue = queue
        self._by_priority = by_priority
        self._make_metrics = make_metrics
        self._metrics: EngineMetrics | None = None  # once the model is known
        self._tracing = tracing
        self._random = random.Random(seed) if seed is not None else random.SystemRandom()
        self._facts: ModelFacts | None = None
        self._hello: asyncio.Future[pb.Hello] = asyncio.get_running_loop().create_future()
        self._repeats = RateLimitedLog(log, logging.WARNING)
        self._owners: dict[int, Owner] = {}
        self._handles = Handles(self._owners)  # the core's own
        self._core_handles: dict[tuple[StepMailbox, int], int] = {}
        self._max_n = min(MAX_N, queue.reqs.limit)
        self._attempts = Attempts()
        self.callee = Callee()
        self._mailboxes: set[StepMailbox] = set()
        self._stats = engine_pb2.EngineStats()

    async def Connect(self, request_iterator: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """One tokenizer's stream; its requests are aborted when it ends."""
        try:
            hello = await asyncio.shield(self._hello)
        except asyncio.CancelledError:
            return  # this process stops, or the caller gave up; grpc would print a traceback
        mailbox = StepMailbox(hello.epoch)
        mailbox.put_stats(self._stats)
        self._mailboxes.add(mailbox)

        def opened(caller: pb.Hello) -> Callable[[engine_pb2.EngineEntry], None]:
            return lambda entry: self._receive(mailbox, caller, entry)

        try:
            await self.callee.serve_stream(context, hello, ("tokenizer",), mailbox, opened, engine_pb2.EngineUp)
        finally:
            self._mailboxes.discard(mailbox)
            for handle in [handle for handle, owner in self._owners.items() if owner.mailbox is mailbox]:
                self._abort(handle)

    async def GetStats(self, request: Any, context: Any) -> engine_pb2.EngineStats:
        return self._stats

    async def HoldStartLock(self, request: pb.Hello, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Granted at once: what runs pauses when the suspect comes (see Scheduler)."""
        await self.callee.start_lock.hold(request, context)

    async def ResetPrefixCache(self, request: Any, context: Any) -> pb.ResetPrefixCacheResponse:
        done, here = asyncio.Event(), asyncio.get_running_loop()
        self._loop.reset_prefix_cache(lambda: call_in_event_loop(here, done.set))
        try:
            async with asyncio.timeout(ADMINISTRATION_SECONDS):
                await done.wait()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the engine is still between two steps")
        return pb.ResetPrefixCacheResponse()

    def registered(self, facts: ModelFacts) -> None:
        """A worker is there: callers may say hello. Raises Fatal when it is not like the one before."""
        if self._facts is not None:
            if msgspec.structs.replace(facts, num_blocks=self._facts.num_blocks) != self._facts:
                raise Fatal("the worker came back with another model")
            self._facts = facts
            return
        self._facts = facts
        self._metrics = self._make_metrics(facts)
        self._hello.set_result(
            make_hello(
                "engine",
                digest=facts.tokenizer_digest,
                engine=engine_facts(facts, self._limits.max_num_seqs, self._max_n, self._queue.reqs.limit),
            )
        )

    def published(self, events: StepEvents, stats: SchedulerStats, times: StepTimes | None) -> None:
        """Sorts a step's events by owner, into one mailbox per stream. `times` only after a step."""
        self._stats = engine_stats(stats)
        done = times.done if times is not None else now()
        for mailbox in self._mailboxes:
            mailbox.put_stats(self._stats)
        for admitted in events.admitted:
            if (owner := self._owners.get(admitted.handle)) is not None:
                owner.timeline.scheduled = times.planned if times is not None else done
                owner.mailbox.put_accepted(
                    engine_pb2.Accepted(
                        handle=owner.handle,
                        seed=owner.seed,
                        prompt_tokens=owner.num_prompt_tokens,
                        cached_tokens=admitted.num_cached_tokens,
                    )
                )
        for tokens in events.new_tokens:
            if (owner := self._owners.get(tokens.handle)) is not None:
                owner.mailbox.put_tokens(owner.handle, tokens)
                owner.timeline.token(times.planned if times is not None else done, done)
                if owner.num_queued_tokens:
                    self._no_longer_queued(owner)
                    self.callee.start_lock.on_first_token(owner.key)
        for finished in events.finished:
            if (owner := self._owners.pop(finished.handle, None)) is not None:
                if owner.num_queued_tokens:
                    self._no_longer_queued(owner)
                self._queue.reqs.release(1)
                self._finish(owner, finished)
                self._record(owner, finished, done)
        if self._metrics is not None:
            self._metrics.state(stats)
            if times is not None:
                self._metrics.step(times.num_tokens)

    def _no_longer_queued(self, owner: Owner) -> None:
        self._queue.tokens.release(owner.num_queued_tokens)
        owner.num_queued_tokens = 0

    def _finish(self, owner: Owner, finished: Finished) -> None:
        assert self._facts is not None
        self._attempts.release(owner.key, owner.attempt)
        self.callee.start_lock.on_end(owner.key)
        place = (owner.mailbox, owner.handle)
        if self._core_handles.get(place) == finished.handle:  # else a higher attempt on the same stream has it
            del self._core_handles[place]
            owner.mailbox.put_terminal(terminal(owner.handle, finished, self._facts))

    def _record(self, owner: Owner, finished: Finished, done: int) -> None:
        assert self._metrics is not None
        end(owner.timeline, self._tracing, finished, done)
        computed = finished.num_prompt_tokens - finished.num_cached_tokens
        self._metrics.ended(owner.timeline.seconds(), finished.num_preemptions, computed)

    def stop(self) -> None:
        """This process stops: what still runs leaves its spans behind."""
        for owner in self._owners.values():
            owner.timeline.span.end(error="the engine stopped")

    def _receive(self, mailbox: StepMailbox, caller: pb.Hello, entry: engine_pb2.EngineEntry) -> None:
        if entry.HasField("submit"):
            try:
                self._submit(mailbox, caller, entry.submit)
            except RequestRefused as refused:
                self._refuse(mailbox, entry.submit, invalid(str(refused), refused.param))
            except QueueFull as full:
                self._refuse(mailbox, entry.submit, full)
                if self._metrics is not None:
                    self._metrics.rejected(full.option)
            except ValueError as error:
                self._refuse(mailbox, entry.submit, invalid(str(error)))
        elif entry.HasField("abort"):
            handle = self._core_handles.get((mailbox, entry.abort.handle))
            if handle is not None:
                self._abort(handle)
                self.callee.start_lock.on_end((caller.instance, caller.epoch, entry.abort.handle))

    def _submit(self, mailbox: StepMailbox, caller: pb.Hello, submit: engine_pb2.Submit) -> None:
        """All choices are checked before any of them starts."""
        assert self._facts is not None
        if not 1 <= len(submit.choices) <= self._max_n:
            raise RequestRefused("n", f"n is {len(submit.choices)}, but must be from 1 to {self._max_n}")
        if submit.priority and not self._by_priority:
            raise RequestRefused(
                "priority",
                f"priority is {submit.priority}, but this server goes by arrival: see --scheduling-policy priority",
            )
        seed = submit.seed if submit.HasField("seed") else self._random.randint(0, MAX_SEED)
        handles = [self._handles.new() for _ in submit.choices]
        requests = [make_request(new, self._facts) for new in new_choices(submit, self._facts, handles, seed)]
        if submit.attempt <= 1 and not any(choice.resumed_token_ids for choice in submit.choices):
            self._queue.check([request.num_tokens for request in requests])
        handles_given = (choice.handle for choice in submit.choices)
        alone = submit.alone and self.callee.start_lock.start_alone(caller, handles_given)
        for request, choice in zip(requests, submit.choices, strict=True):
            key = (caller.instance, caller.epoch, choice.handle)
            abort = functools.partial(self._abort, request.handle)
            if not self._attempts.claim(key, submit.attempt, abort):
                self._repeats.log("dropped an attempt that is not the newest")
                self.callee.start_lock.on_end(key)
                continue
            timeline = begin(self._tracing, submit.traceparent)
            request.traceparent = timeline.span.traceparent
            request.strikes = SUSPECT_AT if alone else 0
            self._owners[request.handle] = Owner(
                mailbox,
                choice.handle,
                key,
                submit.attempt,
                seed,
                request.num_prompt_tokens,
                request.num_tokens,
                timeline,
            )
            self._queue.hold(request.num_tokens)
            self._core_handles[mailbox, choice.handle] = request.handle
            self._loop.add(request)

    def _refuse(self, mailbox: StepMailbox, submit: engine_pb2.Submit, error: TandemError) -> None:
        for choice in submit.choices:
            mailbox.put_terminal(
                engine_pb2.Terminal(handle=choice.handle, reason=pb.FINISH_REASON_ERROR, error=error.to_proto())
            )

    def _abort(self, handle: int) -> None:
        """The terminal event follows from the core."""
        self._loop.abort(handle)
