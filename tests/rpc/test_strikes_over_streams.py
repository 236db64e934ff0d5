"""Strikes and retries over real streams: a cut is no death, the start lock is kept, `alone` reaches the core."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine_core.events import Finished
from engine_core.request import SUSPECT_AT, Request
from engine_core.scheduler import Scheduler
from services.rpc.columns import pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.generated.engine_pb2_grpc import EngineServiceStub
from services.rpc.hello import make_hello
from services.rpc.link import Link
from services.rpc.transport import open_channel
from services.shim.text_call import TextCall
from services.shim.updates import UpdateMailbox
from tests.rpc.pipeline import Pipeline, Proxy, silent_record
from tests.rpc.streams import next_terminal, open_stream


@pytest.mark.parametrize("edge", ["engine_proxy", "text_proxy"])
async def test_cuts_before_the_first_token_end_nobody(socket_dir: Path, edge: str) -> None:
    """Over real streams: every one is cut at its first message behind the hello, until the callers have had enough."""
    async with Pipeline(socket_dir).running() as pipeline:
        submits = [("Hello!", 2), ("Count to ten", 1)]
        await pipeline.fold(*(pipeline.submit(text, n=n, max_tokens=8) for text, n in submits))
        expected = await pipeline.fold(*(pipeline.submit(text, n=n, max_tokens=8) for text, n in submits))
        proxy: Proxy = getattr(pipeline, edge)
        proxy.reset()
        seen: dict[int, int] = {0: 1}  # stream -> messages; the first one has said its hello before

        def cut(index: int, message: bytes) -> list[bytes]:
            seen[proxy.num_streams] = seen.get(proxy.num_streams, 0) + 1
            if seen[proxy.num_streams] == 1 or proxy.num_streams > 6:
                return [message]
            proxy.cut_after = index
            return []

        proxy.alter = cut
        assert await pipeline.fold(*(pipeline.submit(text, n=n, max_tokens=8) for text, n in submits)) == expected
        assert proxy.num_streams > 6 and not proxy.num_start_locks, (
            "who comes back the same has not died: nobody is tried"
        )


def short_work(handle: int, *, alone: bool = False) -> engine_pb2.EngineDown:
    submit = engine_pb2.Submit(
        attempt=1,
        prompt_token_ids=pack_u32([5]),
        choices=[pb.Choice(handle=handle)],
        sampling=pb.SamplingParams(max_tokens=3, ignore_eos=True),
        alone=alone,
    )
    return engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)])


async def test_the_start_lock_keeps_others_from_starting(socket_dir: Path) -> None:
    engine = Pipeline(socket_dir)
    async with engine.running(), open_channel(engine.engine_address) as channel, asyncio.timeout(30):
        mine, others = make_hello("tokenizer"), make_hello("tokenizer")
        my_stream, other_stream = await open_stream(channel, mine), await open_stream(channel, others)
        start_locks = [EngineServiceStub(channel).HoldStartLock(hello) for hello in (mine, others)]
        await start_locks[0].read()
        await other_stream.write(short_work(1))
        for handle in range(1, 4):
            await my_stream.write(short_work(handle))
            await next_terminal(my_stream)
        waiting = [asyncio.create_task(next_terminal(other_stream)), asyncio.create_task(start_locks[1].read())]
        done, _ = await asyncio.wait(waiting, timeout=0.1)
        assert not done
        start_locks[0].cancel()
        await asyncio.gather(*waiting)
        start_locks[1].cancel()


async def test_the_core_is_told_who_must_be_alone(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its steps to itself there (tests/engine_core/test_restart.py)."""
    strikes: list[int] = []
    add = Scheduler.add

    def noted(scheduler: Scheduler, request: Request) -> Finished | None:
        strikes.append(request.strikes)
        return add(scheduler, request)

    monkeypatch.setattr(Scheduler, "add", noted)
    engine = Pipeline(socket_dir)
    async with engine.running() as pipeline, open_channel(engine.engine_address) as channel, asyncio.timeout(30):
        hello = make_hello("tokenizer")
        stream = await open_stream(channel, hello)
        for handle, alone, has_start_lock in ((1, False, False), (2, True, False), (3, True, True)):
            start_lock = EngineServiceStub(channel).HoldStartLock(hello)
            if has_start_lock:
                await start_lock.read()
            else:
                start_lock.cancel()
            await stream.write(short_work(handle, alone=alone))
            assert (await next_terminal(stream)).output_tokens == 3
            start_lock.cancel()
        updates, record = UpdateMailbox(), silent_record()
        record.submitted(1)
        call = TextCall(pipeline.submit("through the tokenizer", max_tokens=3), 0, updates, record)
        pipeline.client.dispatcher.start(call, alone=True)
        await updates.take()
    assert strikes == [0, 0, SUSPECT_AT, SUSPECT_AT]


class Owner:
    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.died: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def link_up(self, link: Any) -> None:
        self.up.set()

    def link_down(self, link: Any, *, died: bool) -> None:
        self.died.set_result(died)

    def receive(self, link: Any, message: Any) -> None: ...


@pytest.mark.parametrize("cut", [True, False])
async def test_an_orderly_end_is_no_death(socket_dir: Path, cut: bool) -> None:
    owner = Owner()
    async with Pipeline(socket_dir).running() as pipeline, asyncio.timeout(30):
        target = f"unix:{socket_dir}/engine-proxy.sock" if cut else pipeline.engine_address
        link: Link[Any, Any] = Link(
            target, EngineServiceStub, engine_pb2.EngineDown, make_hello("tokenizer"), "engine", owner
        )
        running = asyncio.create_task(link.run())
        await owner.up.wait()
        if cut:
            await pipeline.engine_proxy.stop()
    assert await asyncio.wait_for(owner.died, 10) == cut
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
