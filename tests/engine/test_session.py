"""A tokenizer's stream at the engine: which commands of the busy loop its entries become, and which are refused."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine_core.events import Admitted, StepEvents
from engine_core.request import SUSPECT_AT
from services.engine.generate import engine_entry
from services.engine.mailbox import StepMailbox
from services.engine.open_choices import OpenChoices
from services.engine.queue_limits import QueueLimits
from services.engine.session import NS_PER_MS, Session
from services.rpc.columns import pack_u32
from services.rpc.errors import CONTEXT_LENGTH_EXCEEDED, other_numerics, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.hello import make_hello
from services.rpc.outage import Outage
from services.rpc.waited import MAX_WAITED_MS
from services.telemetry.logs import RateLimitedLog
from tests.engine.parts import commands, make_loop, make_state
from tests.fakes import ROOT_KEY, SERVICE
from tests.held_lock import OpenCall, ends
from tests.telemetry.fake_tracing import FakeTracing

log = logging.getLogger(__name__)
CALLER = make_hello("tokenizer")


class Engine:
    """Sessions of one engine; its busy loop does not run."""

    def __init__(self, folder: Path) -> None:
        self.loop, self.registry, self.tracing = make_loop(folder), CollectorRegistry(), FakeTracing()
        self.state = make_state(
            self.loop, RateLimitedLog(log, logging.WARNING), self.tracing, self.registry, QueueLimits(6, 40)
        )
        self.choices = OpenChoices(self.state)

    def stream(self) -> "Stream":
        return Stream(Session(self.state, self.choices, StepMailbox(1, SERVICE)))


class Stream:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.receive: Callable[[engine_pb2.EngineEntry], None] = session.opened(CALLER)

    def submit(self, *choices: pb.Choice, prompt: bytes | None = None, **fields: Any) -> None:
        sampling = fields.pop("sampling", pb.SamplingParams(max_tokens=5))
        column = pack_u32([5, 6, 7]) if prompt is None else prompt
        message = engine_pb2.Submit(prompt_token_ids=column, choices=choices, sampling=sampling, **fields)
        self.receive(engine_pb2.EngineEntry(submit=message))

    def abort(self, handle: int) -> None:
        self.receive(engine_pb2.EngineEntry(abort=pb.Abort(handle=handle)))

    def errors(self) -> list[tuple[int, str, str, str]]:
        terminals = self.session.mailbox.take().step.terminals
        assert all(one.reason == pb.FINISH_REASON_ERROR for one in terminals)
        return [(one.handle, one.error.code, one.error.param, one.error.message) for one in terminals]


@pytest.fixture
def engine(socket_dir: Path) -> Iterator[Engine]:
    engine = Engine(socket_dir)
    yield engine
    engine.loop._link.close()


def test_each_choice_of_a_submit_becomes_a_request(engine: Engine) -> None:
    engine.stream().submit(
        pb.Choice(handle=31, choice=0), pb.Choice(handle=32, choice=1), seed=9, attempt=1, traceparent="above"
    )
    first, second = commands(engine.loop)
    assert (first.handle, first.choice, second.handle, second.choice) == (1, 0, 2, 1), "the core's own handles"
    for request in (first, second):
        assert (request.token_ids, request.seed, request.strikes) == ([5, 6, 7], 9, 0)
    assert engine.state.queue.reqs.held == 2
    assert [(span.name, span.parent) for span in engine.tracing.spans] == [("engine.request", "above")] * 2
    assert [first.traceparent, second.traceparent] == [span.traceparent for span in engine.tracing.spans]


@pytest.mark.parametrize("waited_ms", [0, 3000, MAX_WAITED_MS])
def test_a_request_arrived_when_it_began_to_wait(engine: Engine, waited_ms: int) -> None:
    """On this process's clock, which may have begun later. The choices of a request have one arrival."""
    before = time.monotonic_ns()
    engine.stream().submit(pb.Choice(handle=1), pb.Choice(handle=2, choice=1), waited_ms=waited_ms)
    after = time.monotonic_ns()
    first, second = commands(engine.loop)
    assert before <= first.arrival + waited_ms * NS_PER_MS <= after
    assert first.arrival == second.arrival


def test_a_programs_request_arrives_when_its_call_does(engine: Engine) -> None:
    """It has no field to say that it has waited."""
    request = engine_pb2.GenerateTokensRequest(prompt_token_ids=[5], sampling=pb.SamplingParams(max_tokens=5))
    assert "waited_ms" not in request.DESCRIPTOR.fields_by_name
    before = time.monotonic_ns()
    engine.stream().receive(engine_entry(request, "", 4, 64))
    assert before <= commands(engine.loop)[0].arrival <= time.monotonic_ns()


def test_a_root_depends_on_the_engines_key_the_group_and_the_salt(engine: Engine) -> None:
    """Engines with the same key have the same roots, so a resume on another one finds its blocks."""
    pairs = [("", ""), ("a", "b"), ("ab", ""), ("", "ab"), ("a", "b")]
    roots: dict[bytes, list[bytes]] = {}
    handles = itertools.count()
    for key in (ROOT_KEY, b"another key, of another engine --", ROOT_KEY):
        engine.state.root_key = key
        stream = engine.stream()
        for group, salt in pairs:
            stream.submit(pb.Choice(handle=next(handles)), cache_group=group, cache_salt=salt, attempt=2)
        found = [request.root_hash for request in commands(engine.loop)]
        assert found[1] == found[4] and len(set(found)) == 4
        assert roots.setdefault(key, found) == found
    ours, theirs = roots.values()
    assert not set(ours) & set(theirs)
    assert ROOT_KEY.decode() not in repr(engine.state)


def test_choices_without_a_seed_share_a_drawn_one(engine: Engine) -> None:
    """The choice's number tells them apart (see sampling)."""
    stream = engine.stream()
    stream.submit(pb.Choice(handle=1), pb.Choice(handle=2, choice=1))
    stream.submit(pb.Choice(handle=3))
    first, second, third = (request.seed for request in commands(engine.loop))
    assert first == second != third


def test_a_drawn_seed_is_exact_in_a_double(engine: Engine) -> None:
    """So that a client can send it back, whatever its language makes of JSON's numbers."""
    stream = engine.stream()
    for handle in range(1, 21):
        stream.submit(pb.Choice(handle=handle))
    seeds = [request.seed for request in commands(engine.loop)]
    assert max(seeds) < 2**53 and min(seeds) >= 0
    assert max(seeds) > 2**48, "the whole range is used"


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no choice": ({"choices": []}, "n", ""),
    "too many": ({"choices": [1, 2, 3, 4, 5]}, "n", "n is 5, but must be from 1 to 4"),
    "priority": ({"priority": 1}, "priority", "this server schedules by arrival; see --scheduling-policy"),
    "no prompt": ({"prompt": b""}, "prompt", "the prompt is empty"),
    "broken column": ({"prompt": b"\0\0\0"}, "", "a column has 3 bytes"),
    "sampling": ({"sampling": pb.SamplingParams(temperature=3)}, "temperature", "temperature is 3"),
    "group": ({"cache_group": "g" * 257}, "cache_group", "cache_group has 257 characters, but must have at most 256"),
    "salt": ({"cache_salt": "s" * 1025}, "cache_salt", "cache_salt has 1025 characters, but must have at most 1024"),
}


@pytest.mark.parametrize(("fields", "param", "message"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_submit_gets_one_error_per_choice_and_leaves_nothing_behind(
    engine: Engine, fields: dict[str, Any], param: str, message: str
) -> None:
    handles = fields.get("choices", [1, 2])
    stream = engine.stream()
    rest = {name: value for name, value in fields.items() if name != "choices"}
    stream.submit(*(pb.Choice(handle=handle) for handle in handles), **rest)
    errors = stream.errors()
    assert [(handle, code, at) for handle, code, at, _ in errors] == [
        (handle, "INVALID_ARGUMENT", param) for handle in handles
    ]
    assert all(message in text for _, _, _, text in errors)
    assert not commands(engine.loop) and not engine.tracing.spans
    assert (engine.state.queue.reqs.held, engine.state.queue.tokens.held) == (0, 0)


@pytest.mark.parametrize("asked", [False, True])
def test_accepted_has_the_sampling_parameters_if_the_submit_asks_for_them(engine: Engine, asked: bool) -> None:
    stream = engine.stream()
    stream.submit(pb.Choice(handle=1), pb.Choice(handle=2, choice=1), return_sampling=asked)
    admitted = [Admitted(request.handle, 0) for request in commands(engine.loop)]
    engine.choices.publish(StepEvents(admitted=admitted), None)
    accepted = stream.session.mailbox.take().step.accepted
    assert [one.HasField("sampling") for one in accepted] == [asked, asked]
    assert not asked or [one.sampling.max_tokens for one in accepted] == [5, 5]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "reason"), [(64, 1, CONTEXT_LENGTH_EXCEEDED), (3, 62, CONTEXT_LENGTH_EXCEEDED), (3, 0, "")]
)
def test_a_request_beyond_the_context_has_openais_code(
    engine: Engine, prompt: int, max_tokens: int, reason: str
) -> None:
    stream = engine.stream()
    sampling = pb.SamplingParams(max_tokens=max_tokens)
    stream.submit(pb.Choice(handle=1), prompt=pack_u32([5] * prompt), sampling=sampling)
    (terminal,) = stream.session.mailbox.take().step.terminals
    assert (terminal.error.code, terminal.error.reason) == ("INVALID_ARGUMENT", reason)


def test_no_choice_starts_unless_all_are_valid(engine: Engine) -> None:
    stream = engine.stream()
    stream.submit(pb.Choice(handle=1), pb.Choice(handle=2, resumed_token_ids=pack_u32([999])))
    assert [handle for handle, *_ in stream.errors()] == [1, 2]
    assert not commands(engine.loop)


def test_priority_is_taken_under_the_priority_policy(engine: Engine) -> None:
    engine.state.by_priority = True
    engine.stream().submit(pb.Choice(handle=1), priority=-2)
    assert [request.priority for request in commands(engine.loop)] == [-2]


def test_a_full_queue_refuses_new_requests_and_takes_resumed_ones(engine: Engine) -> None:
    stream = engine.stream()
    for handle in range(1, 7):
        stream.submit(pb.Choice(handle=handle), attempt=1)
    assert not stream.errors()
    stream.submit(pb.Choice(handle=7), attempt=1)
    message = "6 requests are running or waiting: 1 more would exceed max_num_queued_reqs (6)"
    assert stream.errors() == [(7, "RESOURCE_EXHAUSTED", "", message)]
    labels = {"model_name": "fake", "engine": "0", "reason": "max_num_queued_reqs"}
    assert engine.registry.get_sample_value("vllm:admission_rejections_total", labels) == 1
    stream.submit(pb.Choice(handle=8), attempt=2)
    stream.submit(pb.Choice(handle=9, resumed_token_ids=pack_u32([8])), attempt=1)
    assert not stream.errors()
    assert engine.state.queue.reqs.held == 8


def test_only_what_was_accepted_waits_for_a_worker_that_new_requests_no_longer_wait_for(engine: Engine) -> None:
    """A higher attempt alone is no sign of it."""
    stream = engine.stream()
    engine.state.outage = Outage(0.0, "no worker", lambda error: None)
    stream.submit(pb.Choice(handle=1), attempt=2)
    stream.submit(pb.Choice(handle=2, cached_tokens=0), attempt=2)
    stream.submit(pb.Choice(handle=3, resumed_token_ids=pack_u32([8])), attempt=2)
    stream.submit(pb.Choice(handle=4), attempt=2, numerics_id=engine.state.facts.numerics_id)
    assert [(handle, code) for handle, code, *_ in stream.errors()] == [(1, "UNAVAILABLE")]
    assert engine.state.queue.reqs.held == 3
    engine.choices.refuse_waiting(unavailable("no worker"))
    assert not stream.errors()


def test_what_began_with_other_numerics_is_refused_by_an_engine_too(engine: Engine) -> None:
    stream = engine.stream()
    resumed = pb.Choice(handle=1, resumed_token_ids=pack_u32([8]))
    stream.submit(resumed, attempt=2, numerics_id="others")
    ((handle, code, _, message),) = stream.errors()
    assert (handle, code) == (1, "UNAVAILABLE") and message == str(other_numerics("others"))
    assert not commands(engine.loop)
    stream.submit(resumed, attempt=3, numerics_id=engine.state.facts.numerics_id)
    assert len(commands(engine.loop)) == 1


def test_the_choices_of_a_request_are_accepted_together(engine: Engine) -> None:
    stream = engine.stream()
    stream.submit(pb.Choice(handle=1), pb.Choice(handle=2))
    stream.submit(pb.Choice(handle=3))
    engine.choices.publish(StepEvents(admitted=[Admitted(commands(engine.loop)[0].handle, 0)]), None)
    engine.choices.refuse_waiting(unavailable("no worker"))
    assert [handle for handle, *_ in stream.errors()] == [3]


def test_an_abort_reaches_the_choice_of_its_own_stream_alone(engine: Engine) -> None:
    first, second = engine.stream(), engine.stream()
    first.submit(pb.Choice(handle=1))
    (request,) = commands(engine.loop)
    second.abort(1)
    first.abort(2)
    assert not commands(engine.loop)
    first.abort(1)
    assert commands(engine.loop) == [request.handle]


def test_a_closed_stream_aborts_its_choices_alone(engine: Engine) -> None:
    first, second = engine.stream(), engine.stream()
    first.submit(pb.Choice(handle=1), pb.Choice(handle=2))
    second.submit(pb.Choice(handle=3))
    own = [request.handle for request in commands(engine.loop)][:2]
    first.session.close()
    assert commands(engine.loop) == own


def test_a_newer_attempt_aborts_the_older_one_and_an_older_one_is_dropped(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = engine.stream(), engine.stream()
    older.submit(pb.Choice(handle=1), attempt=1)
    (request,) = commands(engine.loop)
    newer.submit(pb.Choice(handle=1), attempt=2)
    aborted, added = commands(engine.loop)
    assert (aborted, added.handle) == (request.handle, 2)
    older.submit(pb.Choice(handle=1), pb.Choice(handle=4), attempt=1)
    (other,) = commands(engine.loop)
    assert engine.choices.core_handle(older.session.mailbox, 4) == other.handle, "the other choice starts"
    assert "a newer attempt of its choice is running" in caplog.text


async def test_only_the_holder_of_the_start_lock_starts_a_suspect(engine: Engine) -> None:
    stream, context = engine.stream(), OpenCall()
    stream.submit(pb.Choice(handle=1), alone=True)
    assert [request.strikes for request in commands(engine.loop)] == [0]
    holding = asyncio.create_task(engine.state.start_lock.hold(CALLER, context))  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await context.granted.wait()
        stream.submit(pb.Choice(handle=2), alone=True)
        assert [request.strikes for request in commands(engine.loop)] == [SUSPECT_AT]
        stream.abort(2)
        assert await ends(holding), "the abort ends the request, so the grant ends"


async def test_a_suspect_of_an_older_attempt_is_dropped_and_the_start_lock_released(engine: Engine) -> None:
    older, newer, call = engine.stream(), engine.stream(), OpenCall()
    newer.submit(pb.Choice(handle=1), attempt=2)
    holding = asyncio.create_task(engine.state.start_lock.hold(CALLER, call))  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await call.granted.wait()
        older.submit(pb.Choice(handle=1), attempt=1, alone=True)
        assert await ends(holding)
