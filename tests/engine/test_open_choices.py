"""Each event of a step reaches the stream of its choice, and an ended choice leaves nothing behind."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from engine_core.events import Admitted, Finished, NewTokens, StepEvents
from engine_core.request import Stop
from services.engine.busy_loop import StepTimes
from services.engine.mailbox import StepMailbox
from services.engine.open_choices import OpenChoice, OpenChoices
from services.engine.queue_limits import QueueLimits
from services.engine.telemetry import start_timeline
from services.rpc.columns import unpack_u32
from services.rpc.errors import unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.hello import make_hello
from services.telemetry.logs import RateLimitedLog
from services.telemetry.spans import now
from tests.engine.parts import commands, make_loop, make_state
from tests.fakes import SERVICE
from tests.held_lock import OpenCall, ends
from tests.telemetry.fake_tracing import FakeTracing

SECOND = 10**9


class Table:
    """A table with two streams."""

    def __init__(self, folder: Path) -> None:
        self.tracing, self.registry = FakeTracing(), CollectorRegistry()
        self.loop = make_loop(folder)
        log = RateLimitedLog(logging.getLogger(__name__), logging.WARNING)
        self.state = make_state(self.loop, log, self.tracing, self.registry, QueueLimits(10, 100))
        self.choices = OpenChoices(self.state)
        self.mailboxes = [StepMailbox(1, SERVICE), StepMailbox(1, SERVICE)]

    def add(self, stream: int, handle: int, attempt: int = 1) -> int:
        """Adds a choice of 4 prompt tokens, as a session does; returns the core's handle."""
        core_handle = self.choices.new_handle()
        key = ("tokenizer", stream, handle)
        assert self.state.attempts.claim(key, attempt, lambda: self.loop.abort(core_handle))
        timeline = start_timeline(self.tracing, "parent")
        choice = OpenChoice(self.mailboxes[stream], handle, key, attempt, 70 + handle, 4, 4, timeline)
        self.choices.add(core_handle, choice)
        return core_handle

    def value(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"vllm:{name}", {"model_name": "fake", "engine": "0"})


@pytest.fixture
def table(socket_dir: Path) -> Iterator[Table]:
    table = Table(socket_dir)
    yield table
    table.loop._link.close()


def finished(core_handle: int, stop: Stop | None = None) -> Finished:
    return Finished(core_handle, stop or Stop("length"), 4, 2, 3, 1)


def test_events_go_to_the_stream_of_their_choice_under_its_own_handle(table: Table) -> None:
    first, second = table.add(0, 501), table.add(1, 501)
    events = StepEvents(
        admitted=[Admitted(first, 3), Admitted(second, 0)],
        new_tokens=[NewTokens(first, 0, [8], None), NewTokens(second, 0, [9], None)],
        finished=[finished(second)],
    )
    table.choices.publish(events, StepTimes(now(), now(), 8))
    steps = [mailbox.take().step for mailbox in table.mailboxes]
    assert [(one.handle, one.seed, one.prompt_tokens, one.cached_tokens) for one in steps[0].accepted] == [
        (501, 571, 4, 3)
    ]
    assert [one.cached_tokens for one in steps[1].accepted] == [0]
    assert [unpack_u32(step.handles) for step in steps] == [[501], [501]]
    assert [unpack_u32(step.token_ids) for step in steps] == [[8], [9]]
    assert [[terminal.handle for terminal in step.terminals] for step in steps] == [[], [501]]
    assert steps[1].terminals[0].reason == pb.FINISH_REASON_LENGTH


def test_events_of_unknown_choices_are_dropped(table: Table) -> None:
    events = StepEvents([Admitted(99, 0)], [NewTokens(99, 0, [8], None)], [finished(99)])
    table.choices.publish(events, None)
    step = table.mailboxes[0].take().step
    assert not step.accepted and not step.handles and not step.terminals


def test_tokens_count_as_queued_until_the_first_token_and_the_request_until_its_end(table: Table) -> None:
    queue = table.state.queue
    running, waiting = table.add(0, 1), table.add(0, 2)
    assert (queue.reqs.held, queue.tokens.held) == (2, 8)
    for index in range(2):
        table.choices.publish(StepEvents(new_tokens=[NewTokens(running, index, [8], None)]), None)
        assert (queue.reqs.held, queue.tokens.held) == (2, 4)
    table.choices.publish(StepEvents(finished=[finished(waiting, Stop("abort"))]), None)
    assert (queue.reqs.held, queue.tokens.held) == (1, 0)
    table.choices.publish(StepEvents(finished=[finished(running)]), None)
    assert (queue.reqs.held, queue.tokens.held) == (0, 0)


def test_an_aborted_choice_holds_no_place_in_the_queue(table: Table) -> None:
    """A newer attempt has its own: counted twice, new requests would be refused after a tokenizer's death."""
    queue = table.state.queue
    first, second = table.add(0, 1), table.add(0, 2)
    table.choices.publish(StepEvents(new_tokens=[NewTokens(second, 0, [8], None)]), None)
    for core_handle in (first, second, second):
        table.choices.abort(core_handle)
    assert (queue.reqs.held, queue.tokens.held) == (0, 0) and commands(table.loop) == [first, second, second]
    tokens = [NewTokens(first, 0, [8], None)]
    table.choices.publish(StepEvents(new_tokens=tokens, finished=[finished(first), finished(second)]), None)
    table.choices.abort(first)
    assert (queue.reqs.held, queue.tokens.held) == (0, 0)


def test_choices_of_a_request_that_was_accepted_are_not_refused(table: Table) -> None:
    """Its client reads the first one already."""
    first, second, other = (table.add(0, handle) for handle in (1, 2, 3))
    table.choices._choices[second].acceptance = table.choices._choices[first].acceptance
    table.choices.publish(StepEvents(admitted=[Admitted(first, 0)]), None)
    table.choices.publish(StepEvents(finished=[finished(first)]), None)
    table.mailboxes[0].take()
    table.choices.refuse_waiting(unavailable("no worker"))
    assert [one.handle for one in table.mailboxes[0].take().step.terminals] == [3]
    assert commands(table.loop) == [other]


def test_a_newer_attempt_on_the_same_stream_gets_the_only_terminal_message(table: Table) -> None:
    older = table.add(0, 5, attempt=1)
    newer = table.add(0, 5, attempt=2)
    assert commands(table.loop) == [older], "aborted by the newer attempt's claim"
    table.choices.publish(StepEvents(finished=[finished(older, Stop("abort"))]), None)
    assert not table.mailboxes[0].take().step.terminals
    assert table.choices.core_handle(table.mailboxes[0], 5) == newer
    table.choices.publish(StepEvents(finished=[finished(newer)]), None)
    assert [one.reason for one in table.mailboxes[0].take().step.terminals] == [pb.FINISH_REASON_LENGTH]
    assert table.choices.core_handle(table.mailboxes[0], 5) is None
    assert table.add(0, 5, attempt=1), "its attempt is released as well"


async def test_the_start_lock_is_released_by_the_first_token_or_the_end(table: Table) -> None:
    lock, caller = table.state.start_lock, make_hello("tokenizer")
    for event in ("token", "end"):
        core_handle, call = table.choices.new_handle(), OpenCall()
        key = (caller.instance, caller.epoch, 1)
        timeline = start_timeline(table.tracing, "parent")
        table.choices.add(core_handle, OpenChoice(table.mailboxes[0], 1, key, 1, 7, 4, 4, timeline))
        holding = asyncio.create_task(lock.hold(caller, call))  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            await call.granted.wait()
            assert lock.start_alone(caller, [1])
            token, end = [NewTokens(core_handle, 0, [8], None)], [finished(core_handle)]
            events = StepEvents(new_tokens=token) if event == "token" else StepEvents(finished=end)
            table.choices.publish(events, None)
            assert await ends(holding)


def test_the_open_choices_of_a_stream(table: Table) -> None:
    mine, _, mine_as_well = table.add(0, 1), table.add(1, 2), table.add(0, 3)
    assert table.choices.of_stream(table.mailboxes[0]) == [mine, mine_as_well]
    table.choices.publish(StepEvents(finished=[finished(mine)]), None)
    assert table.choices.of_stream(table.mailboxes[0]) == [mine_as_well]


def test_an_ended_choice_becomes_metrics_and_spans(table: Table) -> None:
    core_handle = table.add(0, 1)
    arrived = table.choices._choices[core_handle].timeline.arrived
    first = StepTimes(arrived + 1 * SECOND, arrived + 3 * SECOND, 4)
    last = StepTimes(arrived + 3 * SECOND, arrived + 7 * SECOND, 1)
    admitted, token = Admitted(core_handle, 3), NewTokens(core_handle, 0, [8], None)
    table.choices.publish(StepEvents(admitted=[admitted], new_tokens=[token]), first)
    table.choices.publish(StepEvents(finished=[finished(core_handle)]), last)
    assert table.value("request_queue_time_seconds_sum") == pytest.approx(1)
    assert table.value("request_prefill_time_seconds_sum") == pytest.approx(2)
    assert table.value("request_decode_time_seconds_sum") == pytest.approx(4)
    assert table.value("request_prefill_kv_computed_tokens_sum") == 1
    request, *stages = table.tracing.spans
    assert (request.name, request.parent, request.ended) == ("engine.request", "parent", [(last.done, "")])
    assert request.attributes["tandem.finish_reason"] == "length"
    assert [(stage.name, stage.parent, stage.at, stage.ended[0][0]) for stage in stages] == [
        ("engine.queue", request.traceparent, arrived, first.planned),
        ("engine.prefill", request.traceparent, first.planned, first.done),
        ("engine.decode", request.traceparent, first.done, last.done),
    ]


def test_a_choice_that_never_ran_has_a_queue_span_alone(table: Table) -> None:
    core_handle = table.add(0, 1)
    table.choices.publish(StepEvents(finished=[finished(core_handle, Stop("abort"))]), None)
    assert [span.name for span in table.tracing.spans] == ["engine.request", "engine.queue"]
    assert table.value("request_queue_time_seconds_count") == 0


def test_a_stopping_engine_ends_the_spans_of_open_choices(table: Table) -> None:
    table.add(0, 1)
    table.choices.end_spans()
    assert table.tracing.spans[0].ended == [(None, "the engine stopped")]
