"""Random messages, well-formed and malformed: each is accepted, or refused with the expected exception.

All examples depend on a fixed seed. Messages that the parsers accept are passed to the code that uses them.
"""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from google.protobuf.message import Message

from engine_core.result_check import ResultCheck, ResultRows
from engine_core.step_plan import BadMessage, StepResult, pack_i32
from engine_core.worker_messages import (
    PROTOCOL,
    BatchLimits,
    Prepare,
    Prepared,
    PreparerHello,
    Refused,
    Register,
    Step,
    StepDone,
    WorkerHello,
    decode_from_engine,
    decode_from_worker,
    encode,
)
from services.rpc.call import StreamBroken
from services.rpc.errors import MALFORMED
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.hello import make_hello
from services.shim.generation import Generation
from services.shim.tokenizer_client import TokenizerClient
from services.tokenizer.engine_client import EngineCall, EngineClient
from tests.engine_core.test_async import make_scheduler
from tests.fakes import make_facts
from tests.rpc.pipeline import silent_telemetry
from tests.security.malformed import mutated, set_odd_values
from tests.worker.test_plan_check import CHECK, PLAN

NUM_FRAMES, NUM_MESSAGES = 20_000, 4_000


def odd_value(value: Any, rng: random.Random) -> Any:
    """Returns an unexpected value, of the same type or another one."""
    others = [
        None,
        -1,
        2**31,
        2**63,
        "x",
        b"\xff" * 4,
        b"\1",
        pack_i32([-1, 2**31 - 1]),
        [],
        [b""],
        [[]],
        {},
        1.5,
        True,
    ]
    if isinstance(value, list) and value and rng.random() < 0.7:
        changed = list(value)
        place = rng.randrange(len(changed))
        changed[place] = odd_value(changed[place], rng)
        return changed
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        return value | {name: odd_value(value[name], rng)}
    return rng.choice(others)


def frames(messages: list[Any], rng: random.Random) -> Any:
    """Yields encoded messages: some with mutated bytes, some with odd values, some valid."""
    plain = [(encode(message), msgspec.msgpack.decode(encode(message))) for message in messages]
    for _ in range(NUM_FRAMES):
        content, values = rng.choice(plain)
        kind = rng.random()
        yield content if kind < 0.1 else mutated(content, rng) if kind < 0.5 else encode(odd_value(values, rng))


def read_frames(
    messages: list[Any], rng: random.Random, decode: Callable[[list[bytes]], Any], use: Callable[[Any], bool]
) -> None:
    """Decodes frames and uses the messages; `use` returns whether it checks messages of this kind. Asserts that each
    outcome occurs often."""
    seen = {"refused": 0, "decoded": 0, "used": 0}
    for frame in frames(messages, rng):
        try:
            message = decode([frame])
            seen["decoded"] += 1
            seen["used"] += use(message)
        except BadMessage:
            seen["refused"] += 1
    assert min(seen.values()) > 50, seen


def test_random_frames_of_a_worker() -> None:
    good = StepResult(
        7, 1, *(pack_i32(column) for column in ([1, 2], [0, 0], [1, 1], [7, 8], [1, 1], [7, 8])), b"\0" * 8
    )
    check, rows = ResultCheck(50), ResultRows(good.handles, good.start_indices, good.logprob_widths)
    scheduler, _ = make_scheduler()

    def use(message: Any) -> bool:
        if isinstance(message, StepDone):
            check(message.result, rows)
            scheduler.update(message.result)
        return isinstance(message, StepDone)

    messages = [WorkerHello(PROTOCOL, 1, 0), Register(1, make_facts()), StepDone(good), PreparerHello(PROTOCOL, 1)]
    messages.append(Prepared(1, 7, "no"))
    read_frames(messages, random.Random(1), decode_from_worker, use)


def test_random_frames_of_an_engine() -> None:
    def use(message: Any) -> bool:
        if isinstance(message, Step):
            CHECK(message.plan)
        return isinstance(message, Step)

    read_frames(
        [BatchLimits(PROTOCOL, 8, 64), Step(PLAN), Refused("no"), Prepare(1, 7, "start: ", b"")],
        random.Random(2),
        decode_from_engine,
        use,
    )


class FakeLink:
    """A link that is up."""

    is_ready = True

    def __init__(self) -> None:
        self.peer = pb.Hello(epoch=5, engine=pb.EngineFacts(vocab_size=100))

    def put(self, entry: Any) -> None: ...


class NoListener:
    def accepted(self, *seen: Any) -> None: ...
    def tokens(self, *seen: Any) -> None: ...
    def ended(self, *seen: Any) -> None: ...


def is_accepted(
    client: Any, link: FakeLink, up: Message, rng: random.Random, change: Callable[[], None] | None
) -> bool:
    """Returns whether the client accepts the message, changed by `change` or, if None, by mutated bytes."""
    try:
        if change is None:
            up = type(up).FromString(mutated(up.SerializeToString(), rng))
        else:
            change()
        client.receive(link, up)
        return True
    except (StreamBroken, *MALFORMED):
        return False


@pytest.mark.parametrize("mutate", [False, True])
async def test_random_messages_of_an_engine(mutate: bool) -> None:
    rng, seen = random.Random(3), [0, 0]
    client, link = EngineClient((), make_hello("tokenizer")), FakeLink()
    client.link_up(link)  # type: ignore[arg-type]
    for _ in range(NUM_MESSAGES):
        handle = client.dispatcher.new_handle()
        client.dispatcher.start(EngineCall(engine_pb2.Submit(choices=[pb.Choice(handle=handle)]), NoListener()))
        up = engine_pb2.EngineUp(
            step=engine_pb2.StepBatch(
                epoch=5, handles=pack_i32([handle]), start_indices=pack_i32([0]), counts=pack_i32([1]),
                logprob_widths=pack_i32([0]), token_ids=pack_i32([7]),
                terminals=[engine_pb2.Terminal(handle=handle, reason=pb.FINISH_REASON_STOP)],
            )
        )  # fmt: skip

        def change(up: engine_pb2.EngineUp = up) -> None:
            set_odd_values(up.step, rng)
            up.step.epoch = 5

        seen[is_accepted(client, link, up, rng, None if mutate else change)] += 1
    assert min(seen) > 100, seen


@pytest.mark.parametrize("mutate", [False, True])
async def test_random_messages_of_a_tokenizer(mutate: bool) -> None:
    rng, seen = random.Random(4), [0, 0]
    client, link = TokenizerClient((), make_hello("shim")), FakeLink()
    client.link_up(link)  # type: ignore[arg-type]
    for _ in range(NUM_MESSAGES):
        handle = client.dispatcher.new_handle()
        submit = text_pb2.TextSubmit(choices=[pb.Choice(handle=handle)])
        generation = Generation(client, [submit], silent_telemetry(), set())
        up = text_pb2.TextUp(
            batch=text_pb2.TextBatch(
                epoch=5,
                accepted=[text_pb2.TextAccepted(handle=handle, prompt_token_ids=pack_i32([1]))],
                handles=pack_i32([handle]), start_indices=pack_i32([0]), counts=pack_i32([1]),
                token_ids=pack_i32([7]), piece_counts=pack_i32([1]), pieces=["x"],
                terminals=[text_pb2.TextTerminal(handle=handle, reason=pb.FINISH_REASON_STOP)],
            )
        )  # fmt: skip

        def change(up: text_pb2.TextUp = up, handle: int = handle) -> None:
            set_odd_values(up.batch, rng)
            up.batch.epoch = 5
            for one in (*up.batch.accepted, *up.batch.terminals):
                one.handle = handle if rng.random() < 0.8 else one.handle

        seen[is_accepted(client, link, up, rng, None if mutate else change)] += 1
        generation.close()
    assert min(seen) > 100, seen
