"""The client for programs: whatever dies behind it, a program gets the answer that it would have had."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.client import EngineClient, TextClient
from services.rpc.errors import invalid, too_much, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.status import abort
from services.security.credentials import write
from tests.client_calls import SECONDS, answer, ask_engine, ask_text, cut_everywhere, engine_requests, text_requests
from tests.rpc.call_proxy import CallProxy
from tests.rpc.pipeline import Pipeline
from tests.security.peers import OURS, THEIRS, stats_server


@pytest.fixture
async def pipeline(socket_dir: Path) -> AsyncIterator[Pipeline]:
    async with Pipeline(socket_dir).running() as running:
        yield running


@pytest.fixture
async def text(pipeline: Pipeline, socket_dir: Path) -> AsyncIterator[CallProxy]:
    listen = f"unix:{socket_dir}/text-calls.sock"
    async with CallProxy("tandem.v1.TextService", listen, pipeline.tokenizer_address) as proxy:
        yield proxy


@pytest.fixture
async def engine(pipeline: Pipeline, socket_dir: Path) -> AsyncIterator[CallProxy]:
    listen = f"unix:{socket_dir}/engine-calls.sock"
    async with CallProxy("tandem.v1.EngineService", listen, pipeline.engine_address) as proxy:
        yield proxy


async def test_calls_cut_at_every_message_change_no_text(pipeline: Pipeline, text: CallProxy) -> None:
    async with TextClient(text.address) as client, TextClient(pipeline.tokenizer_address) as direct:
        sample = (await answer(direct, ask_text()))["choices"][0]["text"]
        requests = text_requests(sample[len(sample) // 2 :][:2])
        assert (await answer(direct, requests["stop string"]))["choices"][0]["reason"] == pb.FINISH_REASON_STOP
        await cut_everywhere(client, text, direct, requests)


async def test_calls_cut_at_every_message_change_no_tokens(pipeline: Pipeline, engine: CallProxy) -> None:
    async with EngineClient(engine.address) as client, EngineClient(pipeline.engine_address) as direct:
        stop = (await answer(direct, ask_engine()))["choices"][0]["ids"][6]
        requests = engine_requests(stop)
        assert (await answer(direct, requests["stop token"]))["choices"][0]["stop"] == stop
        await cut_everywhere(client, engine, direct, requests)


async def test_a_request_that_kills_every_callee_ends_with_the_last_status(text: CallProxy) -> None:
    text.cut = lambda call, number: number == 0
    async with TextClient(text.address, max_deaths=3) as client:
        with pytest.raises(grpc.aio.AioRpcError, match="cut by the test") as error:
            await answer(client, ask_text())
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE and len(text.calls) == 3


@pytest.mark.parametrize("service", ["text", "engine"])
async def test_a_callee_with_other_numbers_does_not_continue_an_answer(
    text: CallProxy, engine: CallProxy, service: str
) -> None:
    proxy, client, request = {
        "text": (text, TextClient(text.address), ask_text()),
        "engine": (engine, EngineClient(engine.address), ask_engine()),
    }[service]
    response_type: Any = text_pb2.GenerateTextResponse if service == "text" else engine_pb2.GenerateTokensResponse

    def other_numbers(call: int, message: bytes) -> bytes:
        response = response_type.FromString(message)
        if response.HasField("started"):
            response.started.numerics_id = "other"
        return bytes(response.SerializeToString())

    proxy.alter = other_numbers
    proxy.cut = lambda call, number: number == 2
    async with client:
        with pytest.raises(
            grpc.aio.AioRpcError, match="began with numerics_id 'other', but .* 'fake-numerics'"
        ) as error:
            await answer(client, request)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT and len(proxy.calls) == 2
    details = dict(error.value.trailing_metadata() or ())["grpc-status-details-bin"]
    assert b"resume.started.numerics_id" in details


def refusing(*numbers: int, seconds: int = 1) -> Any:
    async def refuse(number: int, context: Any) -> None:
        if number in numbers:
            await abort(context, too_much("the queue is full", seconds))

    return refuse


async def test_a_request_waits_for_an_engine(text: CallProxy) -> None:
    async def refuse(number: int, context: Any) -> None:
        if number == 0:
            error = unavailable("no engine is connected")
            error.retry_after = 1
            await abort(context, error)

    async with TextClient(text.address) as client:
        await answer(client, ask_text())
        expected = await answer(client, ask_text())
        text.reset()
        text.refuse = refuse
        assert await answer(client, ask_text()) == expected
        assert len(text.calls) == 2


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED], ids=str)
async def test_a_process_that_stops_ends_no_answer(text: CallProxy, code: grpc.StatusCode) -> None:
    """A server that stops cancels the calls that came too late to be told."""

    async def refuse(number: int, context: Any) -> None:
        if number < 2:
            await context.abort(code, "stopping")

    async with TextClient(text.address) as client:
        await answer(client, ask_text())
        expected = await answer(client, ask_text())
        text.reset()
        text.refuse = refuse
        assert await answer(client, ask_text()) == expected
        assert len(text.calls) == 3


async def test_a_resume_waits_for_the_queue_and_a_new_request_does_not(text: CallProxy) -> None:
    async with TextClient(text.address) as client:
        await answer(client, ask_text())
        expected = await answer(client, ask_text())
        text.reset()
        text.refuse, text.cut = refusing(1, 2), lambda call, number: call == 0 and number == 2
        began = time.monotonic()
        assert await answer(client, ask_text()) == expected
        assert len(text.calls) == 4 and 1.9 < time.monotonic() - began < 10
        text.reset()
        text.refuse = refusing(0)
        with pytest.raises(grpc.aio.AioRpcError, match="the queue is full") as error:
            await answer(client, ask_text())
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and len(text.calls) == 1


async def test_a_resume_gives_up_after_its_time(text: CallProxy) -> None:
    text.refuse, text.cut = refusing(*range(1, 9)), lambda call, number: number == 2
    async with TextClient(text.address, resume_seconds=0.5) as client:
        with pytest.raises(grpc.aio.AioRpcError, match="the queue is full"):
            await answer(client, ask_text())
    assert len(text.calls) == 3


async def test_an_error_of_the_request_is_raised_at_once(text: CallProxy) -> None:
    async def refuse(number: int, context: Any) -> None:
        await abort(context, invalid("no", "n"))

    text.refuse = refuse
    async with TextClient(text.address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await answer(client, ask_text())
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT and len(text.calls) == 1


async def test_a_target_without_a_process_costs_no_answer(socket_dir: Path, pipeline: Pipeline) -> None:
    async with TextClient(f"unix:{socket_dir}/none.sock", pipeline.tokenizer_address) as client:
        await answer(client, ask_text())
        expected = await answer(client, ask_text())
        for _ in range(3):
            assert await answer(client, ask_text()) == expected


async def test_calls_are_spread_and_go_on_at_the_other_target(pipeline: Pipeline, socket_dir: Path) -> None:
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                CallProxy("tandem.v1.TextService", f"unix:{socket_dir}/{name}.sock", pipeline.tokenizer_address)
            )
            for name in ("first", "second")
        ]
        client = await stack.enter_async_context(TextClient(first.address, second.address))
        await asyncio.gather(*(channel.channel_ready() for channel in client._channels))
        expected = [await answer(client, ask_text()) for _ in range(4)][-1]
        assert len(first.calls) == len(second.calls) == 2
        first.reset()
        first.cut = lambda call, number: number > 2
        assert [await answer(client, ask_text()) for _ in range(4)] == [expected] * 4
        assert len(first.calls) >= 2 and len(second.calls) >= 4


async def test_a_client_waits_for_its_first_callee(socket_dir: Path) -> None:
    pipeline = Pipeline(socket_dir)
    async with TextClient(pipeline.tokenizer_address) as client:
        asking = asyncio.create_task(answer(client, ask_text(sampling={"max_tokens": 2})))
        await asyncio.wait([asking], timeout=0.2)
        assert not asking.done()
        async with pipeline.running():
            async with asyncio.timeout(SECONDS):
                try:
                    assert (await asking)["usage"].output_tokens == 2
                except grpc.aio.AioRpcError as error:  # the tokenizer was up before its engine
                    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_without_a_callee_a_call_ends_in_time(socket_dir: Path) -> None:
    async with TextClient(f"unix:{socket_dir}/none.sock", resume_seconds=0.3) as client:
        with pytest.raises(grpc.aio.AioRpcError, match="No such file") as error:
            await answer(client, ask_text())
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def running_requests(client: EngineClient) -> int:
    stats = await client.stub.GetStats(engine_pb2.GetStatsRequest(), timeout=SECONDS)
    return int(stats.num_running + stats.num_waiting)


async def until_idle(client: EngineClient) -> None:
    async with asyncio.timeout(SECONDS):
        while await running_requests(client):  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_deadline_covers_all_calls(pipeline: Pipeline, engine: CallProxy, stream: bool) -> None:
    engine.cut = lambda call, number: number == 5
    async with EngineClient(engine.address) as client, EngineClient(pipeline.engine_address) as direct:
        began = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await answer(client, ask_engine(sampling={"max_tokens": 230}, stream=stream), timeout=0.8)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED and len(engine.calls) > 2
        assert time.monotonic() - began < 5
        await until_idle(direct)


async def test_a_program_that_stops_reading_cancels_the_call(pipeline: Pipeline) -> None:
    async with EngineClient(pipeline.engine_address) as client:
        async for response in client.generate(ask_engine(sampling={"max_tokens": 230})):
            if response.choices:
                break
        await until_idle(client)
        task = asyncio.create_task(answer(client, ask_engine(sampling={"max_tokens": 230}, stream=False)))
        async with asyncio.timeout(SECONDS):
            while not await running_requests(client):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_idle(client)


async def test_over_tcp_the_credentials_decide(tmp_path: Path) -> None:
    write(OURS, tmp_path / "ours")
    write(THEIRS, tmp_path / "theirs")
    async with stats_server() as address:
        async with EngineClient(address, credentials=tmp_path / "ours") as client:
            assert (await client.stub.GetStats(engine_pb2.GetStatsRequest(), timeout=SECONDS)).num_steps == 7
        async with EngineClient(address, credentials=str(tmp_path / "theirs")) as client:
            with pytest.raises(grpc.aio.AioRpcError):
                await client.stub.GetStats(engine_pb2.GetStatsRequest(), timeout=SECONDS)
        with pytest.raises(ValueError, match="TCP needs `credentials`"):
            EngineClient(address)


def test_a_client_needs_a_target() -> None:
    with pytest.raises(ValueError, match="at least one target"):
        TextClient()
