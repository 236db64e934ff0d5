"""The start lock is held for one request that starts alone. A holder without such a request blocks no other caller."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from services.rpc import start_lock as start_lock_module
from services.rpc.columns import pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2_grpc
from services.rpc.generated.engine_pb2_grpc import EngineServiceStub
from services.rpc.hello import make_hello
from services.rpc.start_lock import IDLE_SECONDS, StartLock
from services.rpc.transport import open_channel
from tests.rpc.pipeline import Pipeline
from tests.rpc.streams import next_terminal, open_stream, short_request

PATIENCE = 5.0  # seconds, on a busy machine; without the timeout a caller waited for ever


@pytest.mark.parametrize("edge", ["engine", "tokenizer"])
async def test_an_idle_holder_does_not_stop_the_others(socket_dir: Path, edge: str) -> None:
    """Although its call stays open."""
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
    """The gRPC context of a caller that keeps its call open."""

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
    assert not start_lock.start_alone(mine, [3]), "one request per grant"
    await asyncio.wait([holding], timeout=2 * IDLE_SECONDS)
    assert not holding.done(), "a holder with a long prefill is not idle"
    waiting = asyncio.create_task(start_lock.may_start(others))
    start_lock.on_start((mine.instance, mine.epoch, 1))
    start_lock.on_start((mine.instance, mine.epoch, 3))  # a choice of another request
    await asyncio.wait([holding], timeout=2 * IDLE_SECONDS)
    assert not holding.done() and not waiting.done(), "its other choice has no token yet"
    start_lock.on_start((mine.instance, mine.epoch, 2))
    await asyncio.wait_for(asyncio.gather(holding, waiting), PATIENCE)


async def test_between_two_grants_other_requests_start() -> None:
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


@pytest.mark.parametrize("others_wait", [True, False])
async def test_grants_follow_at_once_unless_they_delay_others(
    others_wait: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a caller alone retries many suspects one right after the other."""
    monkeypatch.setattr(start_lock_module, "MAX_PAUSE_SECONDS", 60.0)
    start_lock, mine, others = StartLock(), make_hello("shim"), make_hello("shim")
    first, second = Context(), Context()
    holding = asyncio.create_task(start_lock.hold(mine, first))  # type: ignore[arg-type]
    await first.granted.wait()
    waiting = asyncio.create_task(start_lock.may_start(others if others_wait else mine))
    await asyncio.wait([holding], timeout=0.3)  # so long is the grant
    holding.cancel()
    await asyncio.gather(holding, waiting)
    again = asyncio.create_task(start_lock.hold(mine, second))  # type: ignore[arg-type]
    await asyncio.wait([asyncio.create_task(second.granted.wait())], timeout=0.15)
    assert second.granted.is_set() is not others_wait
    await second.granted.wait()
    again.cancel()
    await again


async def first_end(stream: Any) -> None:
    while not (await stream.read()).step.terminals:
        pass


async def test_alone_counts_only_with_the_start_lock(socket_dir: Path) -> None:
    """Otherwise a request that claims to be a suspect would stop all others until its first token."""
    engine = Pipeline(socket_dir)
    async with engine.running(), open_channel(engine.engine_address) as channel, asyncio.timeout(30):
        suspects, other = [await open_stream(channel, make_hello("tokenizer")) for _ in range(2)]
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
        await suspects.write(engine_pb2.EngineDown(entries=entries))
        await other.write(short_request(1))
        first = asyncio.create_task(next_terminal(other))
        last = asyncio.create_task(first_end(suspects))
        done, _ = await asyncio.wait([first, last], return_when=asyncio.FIRST_COMPLETED)
        assert first in done, "three tokens take less time than forty"
        await last


async def test_an_attempt_that_is_dropped_does_not_keep_the_start_lock(socket_dir: Path) -> None:
    """A dropped attempt has no first token and no terminal message that would end the grant."""
    engine = Pipeline(socket_dir)
    async with engine.running() as pipeline, open_channel(engine.engine_address) as channel, asyncio.timeout(30):
        hello = make_hello("tokenizer")
        stream = await open_stream(channel, hello)
        long_work = short_request(1)
        long_work.entries[0].submit.sampling.max_tokens = 200
        await stream.write(long_work)
        await stream.read()
        start_lock = EngineServiceStub(channel).HoldStartLock(hello)
        await start_lock.read()
        await stream.write(short_request(1, alone=True))  # the same attempt again
        began = time.monotonic()
        await pipeline.fold(pipeline.submit("Hello!", max_tokens=2))
        assert time.monotonic() - began < PATIENCE
        start_lock.cancel()


async def test_no_request_of_another_caller_starts_while_the_lock_is_held(socket_dir: Path) -> None:
    engine = Pipeline(socket_dir)
    async with engine.running(), open_channel(engine.engine_address) as channel, asyncio.timeout(30):
        mine, others = make_hello("tokenizer"), make_hello("tokenizer")
        my_stream, other_stream = await open_stream(channel, mine), await open_stream(channel, others)
        start_locks = [EngineServiceStub(channel).HoldStartLock(hello) for hello in (mine, others)]
        await start_locks[0].read()
        await other_stream.write(short_request(1))
        for handle in range(1, 4):
            await my_stream.write(short_request(handle))
            await next_terminal(my_stream)
        waiting = [asyncio.create_task(next_terminal(other_stream)), asyncio.create_task(start_locks[1].read())]
        done, _ = await asyncio.wait(waiting, timeout=0.1)
        assert not done
        start_locks[0].cancel()
        await asyncio.gather(*waiting)
        start_locks[1].cancel()
