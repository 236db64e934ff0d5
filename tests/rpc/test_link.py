"""A link connects, reports a lost stream, reconnects, and makes unary calls. Over real streams to an engine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.rpc.call import StreamBroken
from services.rpc.errors import TandemError
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.generated.engine_pb2_grpc import EngineServiceStub
from services.rpc.generated.text_pb2_grpc import TextServiceStub
from services.rpc.hello import HelloMismatch, make_hello
from services.rpc.link import Link, call_all, call_one, stream_one
from services.shim.tokenizer_client import TokenizerClient
from services.version import PROTOCOL
from tests.rpc.pipeline import Pipeline
from tests.rpc.streams import short_request


@pytest.fixture
async def pipeline(socket_dir: Path) -> AsyncIterator[Pipeline]:
    async with Pipeline(socket_dir).running() as running:
        yield running


class Owner:
    """Records what the link reports. Its queues have one entry per event."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.died: asyncio.Queue[bool] = asyncio.Queue()
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.breaks_at_message = False

    def link_up(self, link: Any) -> None:
        self.up.set()

    def link_down(self, link: Any, *, died: bool) -> None:
        self.up.clear()
        self.died.put_nowait(died)

    def readiness_changed(self, link: Any) -> None: ...

    def receive(self, link: Any, message: Any) -> None:
        if self.breaks_at_message:
            self.breaks_at_message = False
            raise StreamBroken("a gap")
        self.messages.put_nowait(message)


def engine_link(target: str, owner: Owner) -> Link[engine_pb2.EngineEntry, engine_pb2.EngineUp]:
    return Link(target, EngineServiceStub, engine_pb2.EngineDown, make_hello("tokenizer"), "engine", owner)


@pytest.fixture
async def link(pipeline: Pipeline) -> AsyncIterator[Link[engine_pb2.EngineEntry, engine_pb2.EngineUp]]:
    """A link to the engine, which is up."""
    owner = Owner()
    link = engine_link(pipeline.engine_address, owner)
    running = asyncio.create_task(link.run())
    async with asyncio.timeout(10):
        await owner.up.wait()
    yield link
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_entries_go_out_and_messages_come_in(link: Any) -> None:
    for entry in short_request(1).entries:
        link.put(entry)
    async with asyncio.timeout(10):
        while not (message := await link._owner.messages.get()).step.terminals:
            pass
    assert message.step.terminals[0].output_tokens == 3 and link.num_received >= 1


async def test_a_lost_stream_is_replaced_by_a_new_one(pipeline: Pipeline, socket_dir: Path) -> None:
    owner, proxy = Owner(), pipeline.engine_proxy
    link = engine_link(f"unix:{socket_dir}/engine-proxy.sock", owner)
    running = asyncio.create_task(link.run())
    async with asyncio.timeout(10):
        await owner.up.wait()
        proxy.cut_each = 2  # the hello and one more message
        for entry in short_request(1).entries:
            link.put(entry)
        assert await owner.died.get()
        proxy.cut_each = None
        await owner.up.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_stream_that_its_owner_gives_up_is_no_death(link: Any) -> None:
    owner = link._owner
    owner.breaks_at_message = True
    for entry in short_request(1).entries:
        link.put(entry)
    async with asyncio.timeout(10):
        assert not await owner.died.get()
        await owner.up.wait()


@pytest.mark.parametrize("cut", [True, False])
async def test_a_failed_stream_may_be_a_death_and_an_orderly_end_is_none(socket_dir: Path, cut: bool) -> None:
    owner = Owner()
    async with Pipeline(socket_dir).running() as pipeline, asyncio.timeout(30):
        target = f"unix:{socket_dir}/engine-proxy.sock" if cut else pipeline.engine_address
        running = asyncio.create_task(engine_link(target, owner).run())
        await owner.up.wait()
        if cut:
            await pipeline.engine_proxy.stop()
    assert await asyncio.wait_for(owner.died.get(), 10) == cut
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_unary_call_returns_the_response(link: Any) -> None:
    request = engine_pb2.GetStatsRequest()
    stats = await link.call_unary(lambda stub: stub.GetStats(request, timeout=10))
    assert stats.num_blocks == 512
    await call_all([link, link], lambda stub: stub.GetStats(request, timeout=10))


async def test_unary_calls_fail_unless_every_link_is_up(link: Any) -> None:
    down = engine_link("unix:/none", Owner())
    with pytest.raises(TandemError, match="not every engine could be reached; try again") as failed:
        await call_all([link, down], lambda stub: stub.GetStats(engine_pb2.GetStatsRequest(), timeout=10))
    assert failed.value.code == "UNAVAILABLE"


async def test_a_unary_call_that_fails_is_unavailable(link: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with grpc.aio.insecure_channel("unix:/none") as nowhere:
        with pytest.raises(TandemError, match="not every engine could be reached"):
            await link.call_unary(lambda stub: EngineServiceStub(nowhere).GetStats(engine_pb2.GetStatsRequest()))
    assert f"a call to {link.target} failed: UNAVAILABLE" in caplog.text


async def test_a_call_that_takes_too_long_is_told_apart(link: Any) -> None:
    """Here it is one that has answered in part."""
    with pytest.raises(TandemError, match="the engine did not answer in time; try again") as failed:
        async for _ in link.call_stream(lambda stub: stub.HoldStartLock(make_hello("shim"), timeout=0.2)):
            pass
    assert (failed.value.code, failed.value.status.http) == ("DEADLINE_EXCEEDED", 503)


async def test_one_of_several_links_answers(link: Any) -> None:
    down = engine_link("unix:/none", Owner())
    request = engine_pb2.GetStatsRequest()
    stats = await call_one([down, link], lambda stub: stub.GetStats(request, timeout=10))
    assert stats.num_blocks == 512
    with pytest.raises(TandemError, match="no process that could answer is connected; try again") as failed:
        await call_one([down, down], lambda stub: stub.GetStats(request, timeout=10))
    assert failed.value.code == "UNAVAILABLE"


async def test_one_of_several_links_answers_with_a_stream(pipeline: Pipeline) -> None:
    link: Any = Link(
        pipeline.tokenizer_address, TextServiceStub, text_pb2.TextDown, make_hello("shim"), "tokenizer", Owner()
    )
    down = engine_link("unix:/none", Owner())

    def pieces(links: list[Any]) -> Any:
        return stream_one(links, lambda stub: stub.GetTokenizer(text_pb2.GetTokenizerRequest(), timeout=10))

    running = asyncio.create_task(link.run())
    try:
        with pytest.raises(TandemError, match="no process that could answer is connected"):
            await anext(pieces([down, link]))
        await asyncio.wait_for(link._owner.up.wait(), 10)
        assert [piece async for piece in pieces([down, link])][-1].sha256
        async with grpc.aio.insecure_channel("unix:/none") as nowhere:
            link._stub = TextServiceStub(nowhere)
            with pytest.raises(TandemError, match="the tokenizer could not be reached; try again"):
                await anext(pieces([link]))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_start_lock_is_held_until_the_peer_ends_the_grant(link: Any) -> None:
    async with asyncio.timeout(10), link.hold_start_lock() as held:
        assert held()
        while held():  # noqa: ASYNC110 - the peer ends the call of an idle holder
            await asyncio.sleep(0.01)


async def test_the_start_lock_of_a_peer_that_is_gone_is_a_broken_stream(link: Any) -> None:
    async with grpc.aio.insecure_channel("unix:/none") as nowhere:
        link._stub = EngineServiceStub(nowhere)
        with pytest.raises(StreamBroken, match="UNAVAILABLE"):
            async with link.hold_start_lock():
                pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": 99}, f"protocol {PROTOCOL} here.*99 there"),
        ({"role": "worker"}, "role shim expected, 'worker' there"),
        ({"tokenizer_digest": "f" * 64}, "tokenizer_digest [0-9a-f]{16} here.*ffffffffffffffff there"),
    ],
)
async def test_a_hello_that_does_not_match_is_refused_with_both_values(
    pipeline: Pipeline, changes: dict[str, object], message: str
) -> None:
    hello = make_hello("shim")
    for name, value in changes.items():
        setattr(hello, name, value)
    client = TokenizerClient((pipeline.tokenizer_address,), hello)
    with pytest.raises(HelloMismatch, match=message):
        await asyncio.wait_for(client.links[0].run(), 10)


async def test_the_caller_refuses_a_hello_as_well(pipeline: Pipeline) -> None:
    """The address is that of a tokenizer, not of an engine."""
    link: Link[text_pb2.TextEntry, text_pb2.TextUp] = Link(
        pipeline.tokenizer_address, TextServiceStub, text_pb2.TextDown, make_hello("shim"), "engine", Owner()
    )
    with pytest.raises(HelloMismatch, match="role engine expected, 'tokenizer' there"):
        await asyncio.wait_for(link.run(), 10)
