"""The engine's gRPC service over a real connection, with the busy loop and a worker behind it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from services.engine import servicer as servicer_module
from services.engine.busy_loop import BusyLoop
from services.engine.metrics import EngineMetrics
from services.engine.queue_limits import QueueLimits
from services.engine.servicer import EngineServicer
from services.errors import Fatal
from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, engine_pb2_grpc
from services.rpc.hello import make_hello
from services.rpc.transport import RpcServer, open_channel
from services.telemetry.spans import NoTracing
from tests.e2e.harness import wait_for
from tests.engine.parts import LIMITS, commands, make_loop
from tests.fakes import ROOT_KEY, make_facts
from tests.rpc.pipeline import Pipeline
from tests.rpc.streams import next_terminal, open_stream

PATIENCE = 20.0
HELLO = engine_pb2.EngineDown(hello=make_hello("tokenizer"))


class Parts:
    """A servicer on a socket; its busy loop does not run."""

    def __init__(self, folder: Path, resume_wait: float = 60.0) -> None:
        self.loop: BusyLoop = make_loop(folder)
        self.address = f"unix:{folder}/engine.sock"
        self.server = RpcServer(self.address, None)
        self.servicer = EngineServicer(
            self.loop,
            LIMITS,
            QueueLimits(3, 0),
            False,
            None,
            ROOT_KEY,
            resume_wait,
            lambda facts: EngineMetrics(CollectorRegistry(), True, facts),
            NoTracing(),
        )
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self.servicer, self.server.grpc)


@pytest.fixture
async def parts(socket_dir: Path) -> AsyncIterator[Parts]:
    parts = Parts(socket_dir)
    await parts.server.start()
    yield parts
    await parts.servicer.callee.close_streams()
    await parts.server.stop()
    parts.loop._link.close()


async def test_streams_are_answered_once_a_worker_has_registered(parts: Parts) -> None:
    async with open_channel(parts.address) as channel, asyncio.timeout(PATIENCE):
        call: Any = engine_pb2_grpc.EngineServiceStub(channel).Connect()
        await call.write(HELLO)
        answer = asyncio.create_task(call.read())
        await asyncio.wait([answer], timeout=0.1)
        assert not answer.done()
        parts.servicer.registered(make_facts(tokenizer_digest="d1"))
        hello = (await answer).hello
    assert (hello.role, hello.tokenizer_digest, hello.engine.max_model_len) == ("engine", "d1", 64)
    limits = hello.engine.limits
    assert (limits.max_num_seqs, limits.max_num_queued_reqs) == (LIMITS.max_num_seqs, 3)
    assert limits.max_n == 3, "a request with more choices would never fit into the queue"


async def test_a_later_worker_may_differ_in_its_number_of_blocks_alone(parts: Parts) -> None:
    parts.servicer.registered(make_facts(num_blocks=64))
    parts.servicer.registered(make_facts(num_blocks=32))
    assert parts.servicer._state.facts == make_facts(num_blocks=32), "requests are checked against the new capacity"
    with pytest.raises(Fatal, match="the new worker has another model or other options than the one before"):
        parts.servicer.registered(make_facts(num_blocks=32, max_model_len=65))


async def test_new_requests_wait_for_the_next_worker_for_a_while(socket_dir: Path) -> None:
    """Those that an engine has accepted wait without a limit."""
    parts = Parts(socket_dir, resume_wait=0.3)
    parts.servicer.registered(make_facts())
    await parts.server.start()

    def entry(handle: int, attempt: int = 1, resumed: bytes = b"") -> engine_pb2.EngineDown:
        choice = pb.Choice(handle=handle, resumed_token_ids=resumed)
        submit = engine_pb2.Submit(attempt=attempt, prompt_token_ids=pack_u32([5]), choices=[choice])
        return engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)])

    async with open_channel(parts.address) as channel, asyncio.timeout(PATIENCE):
        call: Any = await open_stream(channel, make_hello("tokenizer"))
        parts.servicer.lost()
        await call.write(entry(1, attempt=2, resumed=pack_u32([6])))
        await call.write(entry(2))
        resumed, new = await asyncio.to_thread(two_commands, parts.loop)
        assert len(resumed.token_ids) == 2
        terminal = await next_terminal(call)
        assert (terminal.handle, terminal.error.code, terminal.error.retry_after) == (2, "UNAVAILABLE", 1)
        assert "no worker has been connected for 0 s" in terminal.error.message
        assert commands(parts.loop) == [new.handle]
        await call.write(entry(3))
        assert (await next_terminal(call)).handle == 3, "refused at once"
        assert not commands(parts.loop)
        parts.servicer.registered(make_facts())
        await call.write(entry(4))
        await asyncio.to_thread(wait_for, lambda: len(parts.loop._commands) == 1, "the request is accepted")
    await parts.servicer.callee.close_streams()
    await parts.server.stop()
    parts.loop._link.close()


def two_commands(loop: BusyLoop) -> list[Any]:
    """Waits for two commands, and takes them."""
    wait_for(lambda: len(loop._commands) == 2, "two commands")
    return commands(loop)


async def test_requests_of_a_stream_that_breaks_are_aborted(parts: Parts) -> None:
    parts.servicer.registered(make_facts())
    async with open_channel(parts.address) as channel, asyncio.timeout(PATIENCE):
        call: Any = await open_stream(channel, make_hello("tokenizer"))
        submit = engine_pb2.Submit(prompt_token_ids=pack_u32([5]), choices=[pb.Choice(handle=1), pb.Choice(handle=2)])
        await call.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        added = await asyncio.to_thread(two_commands, parts.loop)
        call.cancel()
        aborted = await asyncio.to_thread(two_commands, parts.loop)
    assert aborted == [request.handle for request in added]


async def test_a_reset_that_the_busy_loop_does_not_reach_in_time_is_an_error(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer_module, "ADMINISTRATION_SECONDS", 0.05)
    async with open_channel(parts.address) as channel:
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.ResetPrefixCache(pb.ResetPrefixCacheRequest(), timeout=PATIENCE)
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert error.value.details() == "the prefix cache was not reset: a step has run for more than 0.05 s"


async def test_stats_and_cached_tokens_before_and_after_a_reset(socket_dir: Path) -> None:
    """The same prompt is found in the prefix cache, but not after a reset."""
    pipeline = Pipeline(socket_dir)
    async with pipeline.running(), open_channel(pipeline.engine_address) as channel, asyncio.timeout(PATIENCE):
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        call: Any = await open_stream(channel, make_hello("tokenizer"))
        found = []
        for handle in range(1, 4):
            if handle == 3:
                await stub.ResetPrefixCache(pb.ResetPrefixCacheRequest())
            submit = engine_pb2.Submit(
                prompt_token_ids=pack_u32(range(5, 25)),
                choices=[pb.Choice(handle=handle)],
                sampling=pb.SamplingParams(max_tokens=2, ignore_eos=True),
            )
            await call.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
            found.append((await next_terminal(call)).cached_tokens)
        stats = await stub.GetStats(engine_pb2.GetStatsRequest())
    assert found == [0, 16, 0]
    assert (stats.num_running, stats.num_waiting, stats.prefix_cache_hits) == (0, 0, 16)
    assert stats.num_free_blocks == stats.num_blocks == 512


async def test_every_message_of_a_stream_carries_the_newest_stats(socket_dir: Path) -> None:
    pipeline = Pipeline(socket_dir)
    async with pipeline.running(), open_channel(pipeline.engine_address) as channel, asyncio.timeout(PATIENCE):
        call: Any = await open_stream(channel, make_hello("tokenizer"))
        submit = engine_pb2.Submit(
            prompt_token_ids=pack_u32([5, 6]),
            choices=[pb.Choice(handle=1)],
            sampling=pb.SamplingParams(max_tokens=20, ignore_eos=True),
        )
        await call.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        steps, num_tokens = [], 0
        while num_tokens < 20:
            step = (await call.read()).step
            num_tokens += len(unpack_u32(step.token_ids))
            steps.append(step.step_id)
            assert step.stats.num_blocks == 512
    assert steps == sorted(steps) and steps[-1] >= 20


async def test_a_program_is_told_to_come_again_until_a_worker_has_registered(parts: Parts) -> None:
    async with open_channel(parts.address) as channel, asyncio.timeout(PATIENCE):
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Generate(engine_pb2.GenerateTokensRequest(prompt_token_ids=[5])).read()
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not (await stub.GetModelInfo(pb.GetModelInfoRequest())).HasField("facts")
        parts.servicer.registered(make_facts(tokenizer_digest="d1"))
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        assert (info.tokenizer_digest, info.facts.max_model_len) == ("d1", 64)
        assert info.facts.default_sampling.HasField("temperature")


async def test_a_programs_call_becomes_requests_and_its_end_aborts_them(parts: Parts) -> None:
    parts.servicer.registered(make_facts())
    async with open_channel(parts.address) as channel, asyncio.timeout(PATIENCE):
        call: Any = engine_pb2_grpc.EngineServiceStub(channel).Generate(
            engine_pb2.GenerateTokensRequest(prompt_token_ids=[5], n=2, grammar="start: /a/")
        )
        reading = asyncio.create_task(call.read())
        added = await asyncio.to_thread(two_commands, parts.loop)
        call.cancel()
        aborted = await asyncio.to_thread(two_commands, parts.loop)
        await asyncio.gather(reading, return_exceptions=True)
    assert aborted == [request.handle for request in added]
    assert [request.grammar for request in added] == ["start: /a/"] * 2
