"""The start_lock is held for one request that starts alone. A holder without such a request blocks no other caller."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from services.rpc.columns import pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2_grpc
from services.rpc.generated.engine_pb2_grpc import EngineServiceStub
from services.rpc.hello import make_hello
from services.rpc.start_lock import IDLE_SECONDS, StartLock
from services.rpc.transport import open_channel
from tests.rpc.pipeline import Pipeline
from tests.rpc.streams import next_terminal, open_stream
from tests.rpc.test_strikes_over_streams import short_work

PATIENCE = 5.0  # on a busy machine; before, there was no end


@pytest.mark.parametrize("edge", ["engine", "tokenizer"])
async def test_an_idle_holder_does_not_stop_the_others(socket_dir: Path, edge: str) -> None:
    """Before, no other request started for as long as the call was open: these requests had no end."""
    async with Pipeline(socket_dir).running() as pipeline, asyncio.timeout(30):
        address, stub, role = {
            "engine": (pipeline.engine_address, EngineServiceStub, "tokenizer"),
            "tokenizer": (pipeline.tokenizer_address, text_pb2_grpc.TextServiceStub, "shim"),
        }[edge]
        async with open_channel(address) as channel:
            calls = [stub(channel).HoldStartLock(make_hello(role)) for _ in range(8)]
            await calls[0].read()
            for _ in range(3):
                began = time.monotonic()
                await pipeline.fold(pipeline.submit("Hello!", max_tokens=2))
                assert time.monotonic() - began < PATIENCE
            for call in calls:
                call.cancel()


class Context:
    """Of a caller that stays."""

    def __init__(self) -> None:
        self.granted = asyncio.Event()

    async def write(self, message: object) -> None:
        self.granted.set()


async def test_one_request_of_its_holder_starts_alone() -> None:
    start_lock, mine, others = StartLock(), make_hello("tokenizer"), make_hello("tokenizer")
    assert not start_lock.start_alone(mine, [1]), "a caller without the start lock starts nothing alone"
    context = Context()
    holding = asyncio.create_task(start_lock.hold(mine, context))  # type: ignore[arg-type]
    await context.granted.wait()
    assert not start_lock.start_alone(others, [1])
    assert start_lock.start_alone(mine, [1, 2])
    assert not start_lock.start_alone(mine, [3]), "one for each time that it holds the start lock"
    await asyncio.wait([holding], timeout=2 * IDLE_SECONDS)
    assert not holding.done(), "a long prefill is no idleness"
    waiting = asyncio.create_task(start_lock.may_start(others))
    start_lock.on_end((mine.instance, mine.epoch, 1))
    start_lock.on_first_token((mine.instance, mine.epoch, 3))  # of another request
    await asyncio.wait([holding], timeout=2 * IDLE_SECONDS)
    assert not holding.done() and not waiting.done(), "its other choice has not started"
    start_lock.on_first_token((mine.instance, mine.epoch, 2))
    await asyncio.wait_for(asyncio.gather(holding, waiting), PATIENCE)


async def test_between_two_holders_the_others_start() -> None:
    start_lock, mine, others = StartLock(), make_hello("tokenizer"), make_hello("tokenizer")
    first, second = Context(), Context()
    holding = [asyncio.create_task(start_lock.hold(mine, context)) for context in (first, second)]  # type: ignore[arg-type]
    await first.granted.wait()
    waiting = asyncio.create_task(start_lock.may_start(others))
    await asyncio.sleep(0)
    await second.granted.wait()
    assert waiting.done()
    for task in holding:
        task.cancel()
    await asyncio.gather(*holding)


async def first_end(stream: Any) -> None:
    while not (await stream.read()).step.terminals:
        pass


async def test_alone_counts_only_with_the_start_lock(socket_dir: Path) -> None:
    """Before, such a request had the engine to itself until its first token: 10 s instead of 0.13 s for the others."""
    engine = Pipeline(socket_dir)
    async with engine.running(), open_channel(engine.engine_address) as channel, asyncio.timeout(30):
        greedy, other = [await open_stream(channel, make_hello("tokenizer")) for _ in range(2)]
        long_prompt = engine_pb2.Submit(
            attempt=1,
            prompt_token_ids=pack_u32([5] * 200),
            choices=[pb.Choice(handle=1)],
            sampling=pb.SamplingParams(max_tokens=40, ignore_eos=True),
            alone=True,
        )
        entries = []
        for handle in range(1, 8):
            long_prompt.choices[0].handle = handle
            entries.append(engine_pb2.EngineEntry(submit=long_prompt))
        await greedy.write(engine_pb2.EngineDown(entries=entries))
        await other.write(short_work(1))
        first = asyncio.create_task(next_terminal(other))
        last = asyncio.create_task(first_end(greedy))
        done, _ = await asyncio.wait([first, last], return_when=asyncio.FIRST_COMPLETED)
        assert first in done, "three tokens are there before forty"
        await last


async def test_an_attempt_that_is_dropped_leaves_the_start_lock(socket_dir: Path) -> None:
    """A stale attempt never brings a token: it must not hold the start lock for ever."""
    engine = Pipeline(socket_dir)
    async with engine.running() as pipeline, open_channel(engine.engine_address) as channel, asyncio.timeout(30):
        hello = make_hello("tokenizer")
        stream = await open_stream(channel, hello)
        long_work = short_work(1)
        long_work.entries[0].submit.sampling.max_tokens = 200
        await stream.write(long_work)
        await stream.read()
        start_lock = EngineServiceStub(channel).HoldStartLock(hello)
        await start_lock.read()
        await stream.write(short_work(1, alone=True))  # the same attempt again
        began = time.monotonic()
        await pipeline.fold(pipeline.submit("Hello!", max_tokens=2))
        assert time.monotonic() - began < PATIENCE
        start_lock.cancel()
