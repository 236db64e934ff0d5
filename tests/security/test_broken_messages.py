"""Malformed messages from a peer with the secret, or with access to the Unix sockets, end a link, never a process."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from engine_core.step_plan import BadMessage
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
    "nested in an unknown field": b"\x82\xa4type\xa5hello\xa1x" + b"\x91" * 100_000,
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
def test_a_malformed_frame_is_refused_at_once(frame: bytes) -> None:
    for decode in (decode_from_worker, decode_from_engine):
        began = time.monotonic()
        with pytest.raises(BadMessage):
            decode([frame])
        assert time.monotonic() - began < 5, "memory is allocated for what it claims to hold"


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


class Ends:
    """Both ends of one link: the worker has said hello and received the limits."""

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
        with pytest.raises(EngineRefused, match="malformed message from the engine"):
            ends.worker.next_plan()
    finally:
        ends.close()


@pytest.fixture
async def pipeline(socket_dir: Path) -> AsyncIterator[Pipeline]:
    async with Pipeline(socket_dir).running() as running:
        yield running


def raw(method: str, kind: str = "stream_stream") -> Callable[[grpc.aio.Channel], Any]:
    """Returns a function that makes a call without encoding its messages."""
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
    """Malformed as the first message, and after a valid hello."""
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
            assert await call.code() != grpc.StatusCode.UNKNOWN, "the servicer raised an unexpected exception"
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
    """The tokenizer resumes on the next stream."""
    expected = await pipeline.fold(pipeline.submit("Hello!", max_tokens=20))
    expected = await pipeline.fold(pipeline.submit("Hello!", max_tokens=20))
    pipeline.engine_proxy.reset()
    corrupted = False

    def corrupt(index: int, message: bytes) -> list[bytes]:
        nonlocal corrupted
        up = engine_pb2.EngineUp.FromString(message)
        if corrupted or not up.step.handles:
            return [message]
        corrupted = True
        setattr(up.step, column, content)
        return [up.SerializeToString()]

    pipeline.engine_proxy.alter = corrupt
    assert await pipeline.fold(pipeline.submit("Hello!", max_tokens=20)) == expected
    assert corrupted
