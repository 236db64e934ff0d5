"""The tokenizer's gRPC service over a real connection: when it answers, and when it grants the start lock."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

import demo
from services.rpc.columns import unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2, text_pb2_grpc
from services.rpc.hello import make_hello
from services.rpc.transport import RpcServer, open_channel
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.model_archive import ModelArchive
from services.tokenizer.servicer import TextServicer
from services.tokenizer.telemetry import TokenizerTelemetry
from services.tokenizer.vocabulary import Vocabulary
from tests.e2e.harness import wait_for
from tests.telemetry.fake_tracing import FakeTracing
from tests.tokenizer.parts import FakeEngineLink, answer_formats, ids_of, output_resolver
from tests.tokenizer.sessions import GatedEncoder

VOCABULARY = Vocabulary(demo.CHECKPOINT)
PATIENCE = 20.0
INFO = pb.ModelInfo(model_type="qwen3")
ARCHIVE = ModelArchive(demo.CHECKPOINT, None)


class Parts:
    """A servicer on a socket. Its engine is a link that the test brings up."""

    def __init__(self, folder: Path) -> None:
        hello = make_hello("tokenizer", digest="d1")
        self.engines = EngineClient((f"unix:{folder}/engine.sock",), hello)  # its own link is never connected
        self.link, self.tracing = FakeEngineLink(), FakeTracing()
        self.encoder = GatedEncoder(self.engines)
        telemetry = TokenizerTelemetry(CollectorRegistry(), self.tracing)
        formats = answer_formats("hermes", "qwen3")
        resolver = output_resolver(self.engines, formats)
        self.servicer = TextServicer(
            VOCABULARY, self.encoder, self.engines, hello, telemetry, INFO, ARCHIVE, formats, resolver
        )
        self.address = f"unix:{folder}/tokenizer.sock"
        self.server = RpcServer(self.address, None)
        text_pb2_grpc.add_TextServiceServicer_to_server(self.servicer, self.server.grpc)

    def link_up(self) -> None:
        self.engines.link_up(self.link)  # type: ignore[arg-type]

    async def entries(self, count: int) -> list[Any]:
        """Waits until the engine has so many entries."""
        await asyncio.to_thread(wait_for, lambda: len(self.link.entries) >= count, f"{count} entries", PATIENCE)
        return self.link.entries


@pytest.fixture
async def parts(socket_dir: Path) -> AsyncIterator[Parts]:
    parts = Parts(socket_dir)
    await parts.server.start()
    yield parts
    await parts.servicer.callee.close_streams()
    await parts.server.stop()


@pytest.fixture
async def stub(parts: Parts) -> AsyncIterator[Any]:
    async with open_channel(parts.address) as channel, asyncio.timeout(PATIENCE):
        yield text_pb2_grpc.TextServiceStub(channel)


def submit(handle: int) -> text_pb2.TextDown:
    message = text_pb2.TextSubmit(attempt=1, text=text_pb2.TextInput(text="one"), choices=[pb.Choice(handle=handle)])
    return text_pb2.TextDown(entries=[text_pb2.TextEntry(submit=message)])


async def open_stream(stub: Any) -> Any:
    call = stub.Connect()
    await call.write(text_pb2.TextDown(hello=make_hello("shim")))
    return call


async def test_streams_are_answered_once_an_engine_is_connected(parts: Parts, stub: Any) -> None:
    call = await open_stream(stub)
    answer = asyncio.create_task(call.read())
    await asyncio.wait([answer], timeout=0.1)
    assert not answer.done()
    parts.link_up()
    hello = (await answer).hello
    assert (hello.role, hello.tokenizer_digest, hello.engine.max_model_len) == ("tokenizer", "d1", 64)


async def test_a_stream_that_breaks_aborts_its_requests(parts: Parts, stub: Any) -> None:
    parts.link_up()
    call = await open_stream(stub)
    await call.write(submit(501))
    (entry,) = await parts.entries(1)
    assert unpack_u32(entry.submit.prompt_token_ids) == ids_of("one")
    call.cancel()
    assert (await parts.entries(2))[1].abort.handle == 1


async def asked_for_the_start_lock(parts: Parts, stub: Any) -> tuple[Any, Any, asyncio.Task[Any]]:
    """Submits a prompt that is not encoded until the gate opens. Returns the stream, and a call for the start lock with
    its first read."""
    parts.link_up()
    call = await open_stream(stub)
    await call.read()
    parts.encoder.gate.clear()
    await call.write(submit(501))
    await asyncio.to_thread(wait_for, lambda: parts.tracing.spans, "the submit", PATIENCE)
    lock = stub.HoldStartLock(make_hello("shim"))
    granted = asyncio.create_task(lock.read())
    await asyncio.wait([granted], timeout=0.1)
    return call, lock, granted


async def test_the_start_lock_is_granted_once_earlier_prompts_are_encoded(parts: Parts, stub: Any) -> None:
    """So none of them starts at an engine while the request that starts alone runs."""
    _call, lock, granted = await asked_for_the_start_lock(parts, stub)
    assert not granted.done()
    parts.encoder.gate.set()
    await granted
    assert len(parts.link.entries) == 1
    lock.cancel()


async def test_a_call_for_the_start_lock_that_ends_leaves_the_prompts_of_others(parts: Parts, stub: Any) -> None:
    _call, lock, _granted = await asked_for_the_start_lock(parts, stub)
    lock.cancel()
    other = stub.HoldStartLock(make_hello("shim"))  # waits for the same prompt, once the first one has left
    waiting = asyncio.create_task(other.read())
    await asyncio.wait([waiting], timeout=0.1)
    parts.encoder.gate.set()
    await parts.entries(1)
    await waiting
    other.cancel()


@pytest.mark.parametrize("rpc", ["Tokenize", "Encode"])
async def test_a_drain_waits_for_calls_that_generate_nothing(parts: Parts, stub: Any, rpc: str) -> None:
    text = text_pb2.TextInput(text="one")
    requests = {
        "Tokenize": text_pb2.TokenizeRequest(text=text),
        "Encode": text_pb2.EncodeRequest(submit=text_pb2.TextSubmit(text=text)),
    }
    parts.link_up()
    parts.encoder.gate.clear()
    call = getattr(stub, rpc)(requests[rpc])
    await asyncio.to_thread(wait_for, lambda: parts.encoder.waiting, "the call", PATIENCE)
    drain = asyncio.create_task(parts.servicer.callee.drain())
    done, _ = await asyncio.wait([drain], timeout=0.1)
    assert not done
    parts.encoder.gate.set()
    answer = await call if rpc == "Tokenize" else await call.read()
    assert answer.ByteSize()
    await drain


async def test_a_reset_needs_every_engine(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stub.ResetPrefixCache(pb.ResetPrefixCacheRequest())
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_stopping_tokenizer_ends_the_spans_of_open_requests(parts: Parts, stub: Any) -> None:
    parts.link_up()
    call = await open_stream(stub)
    await call.write(submit(501))
    await parts.entries(1)
    request = parts.tracing.spans[0]
    assert not request.ended
    parts.servicer.stop()
    assert request.ended


async def test_a_program_is_told_to_come_again_until_an_engine_has_connected(parts: Parts) -> None:
    async with open_channel(parts.address) as channel, asyncio.timeout(PATIENCE):
        stub: Any = text_pb2_grpc.TextServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Generate(text_pb2.GenerateTextRequest()).read()
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        assert (info.model_type, info.tokenizer_digest) == ("qwen3", "d1") and not info.HasField("facts")
        (stats,) = (await stub.GetStats(engine_pb2.GetStatsRequest())).engines
        assert stats.num_blocks == 0, "its engine is not connected"
        parts.engines.link_up(parts.link)  # type: ignore[arg-type]
        assert (await stub.GetModelInfo(pb.GetModelInfoRequest())).facts.max_model_len == 64


async def test_a_programs_call_that_ends_aborts_its_choices(parts: Parts) -> None:
    parts.engines.link_up(parts.link)  # type: ignore[arg-type]
    async with open_channel(parts.address) as channel, asyncio.timeout(PATIENCE):
        stub: Any = text_pb2_grpc.TextServiceStub(channel)
        call = stub.Generate(text_pb2.GenerateTextRequest(token_ids=text_pb2.TokenIds(ids=[5]), n=2))
        reading = asyncio.create_task(call.read())
        await asyncio.to_thread(wait_for, lambda: parts.link.entries, "the submit")
        handles = {choice.handle for choice in parts.link.entries[0].submit.choices}
        call.cancel()
        await asyncio.to_thread(wait_for, lambda: len(parts.link.entries) == 3, "two aborts")
        assert {entry.abort.handle for entry in parts.link.entries[1:]} == handles
        await asyncio.gather(reading, return_exceptions=True)
