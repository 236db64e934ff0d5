"""What a peer sends that has the secret, or this user's directory: a broken message ends a link, never a process."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest

from engine_core.result_check import ResultCheck, SampledRows
from engine_core.results import ResultReader
from engine_core.step_plan import BadMessage, StepResult, pack_i32
from engine_core.worker_messages import (
    PROTOCOL,
    BatchLimits,
    ModelFacts,
    Register,
    WorkerHello,
    decode_from_engine,
    decode_from_worker,
    encode,
)
from services.engine.worker_link import WorkerGone, WorkerLink
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.hello import make_hello
from services.rpc.transport import open_channel
from services.worker.engine_link import EngineLink, EngineRefused
from tests.fakes import make_facts
from tests.rpc.pipeline import Pipeline

NESTED = b"\x82\xa4type\xa4done\xa6result" + b"\x91" * 5000
BAD_FRAMES = {
    "not UTF-8": b"\x81\xa4type\xa2\xff\xfe",
    "nested": NESTED,
    "nested beside": b"\x82\xa4type\xa5hello\xa1x" + b"\x91" * 100_000,
    "cut": encode(WorkerHello(PROTOCOL, 1, 0))[:-1],
    "empty": b"",
    "an extension": b"\xc7\xff\x01" + b"\0" * 255,
    "a list that claims 4 billion entries": b"\x81\xa4type\xdd\xff\xff\xff\xff",
    "names that claim 4 billion entries": b"\x83\xa4type\xa8register\xa5epoch\x01\xa5facts\x81"
    b"\xb2served_model_names\xdd\xff\xff\xff\xff",
    "errors that claim 4 billion entries": b"\x82\xa4type\xa4done\xa6result\x9a\x01\x01"
    + b"\xc4\x00" * 7
    + b"\xdd\xff\xff\xff\xff",
    "a number beyond 64 bits": b"\x81\xa4type\xcf" + b"\xff" * 8,
}


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_what_is_no_message_is_told_so_at_once(frame: bytes) -> None:
    for decode in (decode_from_worker, decode_from_engine):
        began = time.monotonic()
        with pytest.raises(BadMessage):
            decode([frame])
        assert time.monotonic() - began < 5, "what it claims to hold costs nothing"


def test_a_message_has_one_frame() -> None:
    hello = encode(WorkerHello(PROTOCOL, 1, 0))
    assert decode_from_worker([hello]) == WorkerHello(PROTOCOL, 1, 0)
    for frames in ([], [hello, b""], [hello[:3], hello[3:]]):
        with pytest.raises(BadMessage, match="has one frame"):
            decode_from_worker(frames)


@pytest.mark.parametrize(
    "change",
    [
        {"num_blocks": 0},
        {"num_blocks": 2**40},
        {"num_blocks": 2**21 + 1},
        {"numerics_id": "x" * 4097},
        {"sampling_defaults": {"temperature": float("nan")}},
        {"sampling_defaults": {"top_k": -2}},
        {"block_size": -1},
        {"vocab_size": 0},
        {"max_model_len": 2**31},
        {"kv_groups": ()},
        {"served_model_names": ()},
        {"eos_token_ids": (50,)},
        {"eos_token_ids": (-1,)},
        {"max_logprobs": 51},
    ],
    ids=str,
)
def test_facts_that_no_model_has_are_no_message(change: dict[str, Any]) -> None:
    facts = msgspec.structs.asdict(make_facts()) | change
    frame = encode({"type": "register", "epoch": 1, "facts": facts})
    with pytest.raises(BadMessage):
        decode_from_worker([frame])
    assert isinstance(decode_from_worker([encode(Register(1, make_facts()))]), Register)


ROWS = SampledRows(pack_i32([5, 6]), pack_i32([0, 3]), pack_i32([0, 2]))  # request 6 wants one top logprob
GOOD = StepResult(1, 1, *(pack_i32(column) for column in ([5, 6], [0, 3], [1, 1], [7, 49], [0, 2], [49, 1])), b"\0" * 8)
ONE: dict[str, Any] = {  # request 6 alone
    "handles": pack_i32([6]),
    "start_indices": pack_i32([3]),
    "counts": pack_i32([1]),
    "token_ids": pack_i32([7]),
    "logprob_widths": pack_i32([2]),
}


def logprobs(*widths: int) -> dict[str, Any]:
    """A result's logprob columns: each row has as many entries as its width says."""
    count = sum(widths)
    columns = {"logprob_widths": pack_i32(list(widths)), "logprob_token_ids": pack_i32([1] * count)}
    return columns | {"logprobs": b"\0" * 4 * count}


BAD_RESULTS: dict[str, dict[str, Any]] = {
    "half a number": {"handles": b"\0" * 7},
    "another request": {"handles": pack_i32([5, 7])},
    "another order": {"handles": pack_i32([6, 5])},
    "no rows": dict.fromkeys(("handles", "start_indices", "counts", "token_ids"), b""),
    "a row without a token": {"counts": pack_i32([1, 0]), "token_ids": pack_i32([7])},
    "counts missing": {"counts": pack_i32([1])},
    "starts missing": {"start_indices": b""},
    "another start": {"start_indices": pack_i32([0, 4])},
    "a count below zero": {"counts": pack_i32([3, -1])},
    "two tokens of one row": {"counts": pack_i32([2, 0])},
    "ids missing": {"token_ids": pack_i32([7])},
    "an id too many": {"token_ids": pack_i32([7, 8, 9])},
    "an id beyond the vocabulary": {"token_ids": pack_i32([7, 50])},
    "an id below zero": {"token_ids": pack_i32([7, -1])},
    "a width below zero": {"logprob_widths": pack_i32([0, -2])},
    "a width beyond the limit": {"logprob_widths": pack_i32([0, 22])},
    "widths missing": {"logprob_widths": b""},
    "logprobs missing": {"logprobs": b"\0" * 4},
    "logprobs without ids": {"logprob_token_ids": b""},
    "half a logprob": {"logprobs": b"\0" * 7},
    "a logprob's id beyond the vocabulary": {"logprob_token_ids": pack_i32([49, 50])},
    "an error beside its row": {"errors": [(6, "broken")]},
    "an error of another request": {"errors": [(7, "broken")]},
    "an error of a megabyte": {
        "errors": [(6, "x" * 2**20)],
        "handles": pack_i32([5]),
        "start_indices": pack_i32([0]),
        "counts": pack_i32([1]),
        "token_ids": pack_i32([7]),
        "logprob_widths": pack_i32([0]),
        "logprob_token_ids": b"",
        "logprobs": b"",
    },
    "another width than wanted": {"logprob_widths": pack_i32([0, 1])},
    "no logprobs of a request that wants them": logprobs(0, 0),
    "logprobs of a request that wants none": logprobs(1, 2),
    "one logprob too many": logprobs(0, 3),
    "one logprob too few": logprobs(0, 1),
    "widths without logprobs": {"logprob_token_ids": b"", "logprobs": b""},
    "no logprob column": dict.fromkeys(("logprob_widths", "logprob_token_ids", "logprobs"), b""),
    "an error twice": ONE | {"errors": [(5, "broken"), (5, "broken")]},
    "a row of a request that reports an error": ONE | {"errors": [(6, "broken")]},
    "a width of a request that reports an error": {"errors": [(5, "broken")]} | ONE | {"logprob_widths": ROWS[2]},
}


def test_a_result_that_can_be_passes() -> None:
    check = ResultCheck(50)
    check(GOOD, ROWS)
    check(StepResult(1, 1, *[b""] * 7), SampledRows(b"", b"", b""))
    check(StepResult(1, 1, *[b""] * 7, [(6, "broken"), (5, "broken")]), ROWS)
    check(msgspec.structs.replace(GOOD, errors=[(5, "broken")], **ONE), ROWS)


@pytest.mark.parametrize("change", BAD_RESULTS.values(), ids=BAD_RESULTS)
def test_a_result_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        ResultCheck(50)(msgspec.structs.replace(GOOD, **change), ROWS)


def test_random_columns_are_refused_or_read() -> None:
    """What passes the check can be read by the scheduler's reader."""
    source, check, passed = np.random.default_rng(7), ResultCheck(50), 0
    for _ in range(5000):
        rows = SampledRows(*(pack_i32(source.integers(0, 3, size=1)) for _ in range(3)))
        columns = [pack_i32(source.integers(-1, 3, size=source.choice([1, 1, 1, 2]))) for _ in range(7)]
        for index, right in ((0, rows.handles), (1, rows.start_indices), (4, rows.logprob_widths)):
            columns[index] = right if source.random() < 0.9 else columns[index]
        result = StepResult(1, 1, *columns)
        try:
            check(result, rows)
        except BadMessage:
            continue
        passed += 1
        list(ResultReader().rows(result)[1])
    assert passed > 20


class Ends:
    """Both ends of one link, the worker registered."""

    def __init__(self, folder: Path, facts: ModelFacts) -> None:
        self.engine = WorkerLink(f"ipc://{folder}/worker.sock", BatchLimits(PROTOCOL, 8, 64))
        self.worker = EngineLink(f"ipc://{folder}/worker.sock")
        self.worker.hello()
        while self.engine._peer is None:
            self.engine.poll_registration()
        self.worker.limits()

    def close(self) -> None:
        self.worker.close()
        self.engine.close()


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_worker_that_sends_malformed_messages_loses_its_link(socket_dir: Path, frame: bytes) -> None:
    ends = Ends(socket_dir, make_facts())
    try:
        ends.worker._socket.send(frame)
        with pytest.raises(WorkerGone, match="the worker breaks the protocol"):
            while True:
                ends.engine.poll_result()
        with pytest.raises(EngineRefused):
            ends.worker.next_plan()
    finally:
        ends.close()


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_an_engine_that_sends_malformed_messages_loses_its_worker(socket_dir: Path, frame: bytes) -> None:
    ends = Ends(socket_dir, make_facts())
    try:
        assert ends.engine._peer is not None
        ends.engine._socket.send_multipart([ends.engine._peer, frame])
        with pytest.raises(EngineRefused, match="bad message from the engine"):
            ends.worker.next_plan()
    finally:
        ends.close()


@pytest.fixture
async def pipeline(socket_dir: Path) -> AsyncIterator[Pipeline]:
    async with Pipeline(socket_dir).running() as running:
        yield running


def raw(method: str, kind: str = "stream_stream") -> Callable[[grpc.aio.Channel], Any]:
    """A call whose messages are the test's own bytes."""
    return lambda channel: getattr(channel, kind)(f"/tandem.v1.{method}")


HELLO = {
    "EngineService": engine_pb2.EngineDown(hello=make_hello("tokenizer")).SerializeToString(),
    "TextService": engine_pb2.EngineDown(hello=make_hello("shim")).SerializeToString(),
}
BAD_BYTES = {
    "no protobuf": b"\xff\xff\xff",
    "nothing": b"",
    "a length beyond its end": b"\x0a\xff\xff\xff\x07",
    "nested": b"\x0a\x7f" * 60,
    "no hello": b"\x12\x00",
}


@pytest.mark.parametrize("content", BAD_BYTES.values(), ids=BAD_BYTES)
@pytest.mark.parametrize("service", HELLO)
async def test_a_caller_that_sends_malformed_messages_loses_its_stream(
    pipeline: Pipeline, service: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """As its first message, and behind a good hello."""
    running = asyncio.create_task(pipeline.fold(pipeline.submit("Hello!", max_tokens=50)))
    address = pipeline.engine_address if service == "EngineService" else pipeline.tokenizer_address
    async with open_channel(address) as channel, asyncio.timeout(20):
        for first in ([], [HELLO[service]]):
            call = raw(f"{service}/Connect")(channel)()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for message in [*first, content]:
                    await call.write(message)
                await call.done_writing()
                async for _ in call:
                    pass
            assert await call.code() != grpc.StatusCode.UNKNOWN, "what a servicer does not expect"
        for method, kind in (("HoldStartLock", "unary_stream"), ("ResetPrefixCache", "unary_unary")):
            if content in (b"", BAD_BYTES["no hello"]):
                continue  # a message without fields, or with an unknown one
            with pytest.raises(grpc.aio.AioRpcError):
                answer = raw(f"{service}/{method}", kind)(channel)(content)
                await (answer.read() if kind == "unary_stream" else answer)
    assert (await running)[0].terminals[0]["reason"] == pb.FINISH_REASON_LENGTH
    assert "Traceback" not in caplog.text


COLUMNS = ("handles", "start_indices", "counts", "logprob_widths", "token_ids", "logprob_token_ids", "logprobs")


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("content", [b"\1", b"\xff" * 4, b"\xff" * 400], ids=len)
async def test_an_engine_that_sends_malformed_messages_loses_its_tokenizer_s_stream(
    pipeline: Pipeline, column: str, content: bytes
) -> None:
    """And the tokenizer goes on where it was, on the next one."""
    expected = await pipeline.fold(pipeline.submit("Hello!", max_tokens=20))
    expected = await pipeline.fold(pipeline.submit("Hello!", max_tokens=20))
    pipeline.engine_proxy.reset()
    spoiled = False

    def spoil(index: int, message: bytes) -> list[bytes]:
        nonlocal spoiled
        up = engine_pb2.EngineUp.FromString(message)
        if spoiled or not up.step.handles:
            return [message]
        spoiled = True
        setattr(up.step, column, content)
        return [up.SerializeToString()]

    pipeline.engine_proxy.alter = spoil
    assert await pipeline.fold(pipeline.submit("Hello!", max_tokens=20)) == expected
    assert spoiled
