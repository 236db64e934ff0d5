"""Who keeps killing its callees is tried alone and ended; nobody else ever is, whatever is cut, ended or restarted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine_core.events import Finished
from engine_core.request import SUSPECT_AT, Request
from engine_core.scheduler import Scheduler
from services.rpc import dispatcher
from services.rpc.call import Call, StreamBroken
from services.rpc.columns import ITEM_BYTES, pack_u32
from services.rpc.dispatcher import Dispatcher
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.generated.engine_pb2_grpc import EngineServiceStub
from services.rpc.hello import make_hello
from services.rpc.link import Link
from services.rpc.transport import open_channel
from services.shim.generation import TextCall, Updates
from tests.rpc.pipeline import Pipeline, Proxy, silent_record
from tests.rpc.test_resume import _open_stream, _terminal


class FakeCall(Call[engine_pb2.Submit]):
    def __init__(self, name: str, dispatcher: "Dispatcher[FakeCall]") -> None:
        self.handle = dispatcher.new_handle()
        super().__init__(engine_pb2.Submit(request_id=name, choices=[pb.Choice(handle=self.handle)]))
        self.error: TandemError | None = None

    def fail(self, error: TandemError) -> None:
        self.end(self.handle)
        self.error = error

    def token(self) -> None:
        self.take_tokens(self.handle, len(self.open[self.handle].token_ids) // ITEM_BYTES, pack_u32([7]))


class FakeLink:
    """A peer that notes what it is asked to do. `floor_held` is whether this caller has the floor."""

    peer_role = "engine"

    def __init__(self, dispatcher: Dispatcher[FakeCall]) -> None:
        self.dispatcher = dispatcher
        self.floor_held = self.floor_broken = False
        self.has: dict[str, bool] = {}  # name -> alone
        self.epoch = 0

    async def up(self, *, same: bool = False) -> None:
        self.epoch += not same
        self.peer = pb.Hello(epoch=self.epoch)
        self.dispatcher.link_up(self)  # type: ignore[arg-type]
        await settle()

    async def down(self, *, died: bool = True) -> None:
        self.has = {}
        self.dispatcher.link_down(self, died=died)  # type: ignore[arg-type]
        await settle()

    async def dies(self) -> None:
        await self.down()
        await self.up()

    def put(self, entry: Any) -> None:
        if isinstance(entry, engine_pb2.Submit):
            assert entry.alone == self.floor_held, "whoever starts alone has the floor"
            self.has[entry.request_id] = entry.alone

    @contextlib.asynccontextmanager
    async def floor(self) -> AsyncIterator[None]:
        if self.floor_broken:
            raise StreamBroken("the peer is gone")
        self.floor_held = True
        try:
            yield
        finally:
            self.floor_held = False


async def settle() -> None:
    """Whatever can go on without news has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


class Bench:
    """A dispatcher over fake links, the first of them up."""

    def __init__(self, num_links: int = 1) -> None:
        self.dispatcher: Dispatcher[FakeCall] = Dispatcher(lambda submit: submit, lambda abort: abort)
        self.links = [FakeLink(self.dispatcher) for _ in range(num_links)]

    def start(self, name: str) -> FakeCall:
        call = FakeCall(name, self.dispatcher)
        self.dispatcher.start(call)
        return call


@pytest.fixture
async def bench() -> Bench:
    made = Bench()
    await made.links[0].up()
    return made


async def test_two_deaths_make_it_start_alone_and_the_third_one_ends_it(bench: Bench) -> None:
    (link,) = bench.links
    poison, running = bench.start("poison"), bench.start("running")
    running.token()
    await link.dies()
    assert link.has == {"poison": False, "running": False}
    running.token()
    await link.dies()
    late = bench.start("late")
    assert link.has == {"poison": True}, "those that run and new work wait"
    await link.down()
    assert poison.error is None, "nobody knows yet whether the peer died"
    await link.up()
    assert poison.error is not None and poison.error.code == "INTERNAL"
    assert str(poison.error) == "the engine died at this request, which it had to itself"
    assert link.has == {"running": False, "late": False}
    assert running.error is late.error is None


async def test_a_token_clears_it_and_the_next_suspect_starts(bench: Bench) -> None:
    (link,) = bench.links
    first, second, third = (bench.start(name) for name in ("first", "second", "third"))
    await link.dies()
    third.token()
    await link.dies()
    assert link.has == {"first": True}
    first.token()
    await settle()
    assert link.has == {"first": True, "second": True}, "the first goes on beside the second"
    second.token()
    await settle()
    assert link.has == {"first": True, "second": True, "third": False}
    assert first.strikes == second.strikes == 0
    await link.dies()
    assert link.has == {"first": False, "second": False, "third": False}, "each begins to count anew"


@pytest.mark.parametrize("died", [True, False], ids=["cut", "goodbye"])
async def test_a_stream_that_ends_without_a_death_ends_nobody(bench: Bench, died: bool) -> None:
    """The peer comes back as the same, or said that it goes: no death was seen, however often."""
    (link,) = bench.links
    call = bench.start("innocent")
    for _ in range(2):
        await link.dies()
    for _ in range(5):
        assert link.has == {"innocent": True}
        await link.down(died=died)
        await link.up(same=died)
    call.token()
    await settle()
    assert call.error is None and not call.strikes


async def test_cuts_are_no_strikes(bench: Bench) -> None:
    """Who comes back is who was there before."""
    (link,) = bench.links
    call = bench.start("innocent")
    for _ in range(5):
        await link.down()
        await link.up(same=True)
        assert link.has == {"innocent": False}
    assert not call.strikes


async def test_goodbyes_are_no_strikes(bench: Bench) -> None:
    (link,) = bench.links
    bench.start("innocent")
    for _ in range(5):
        await link.down(died=False)
        await link.up()
        assert link.has == {"innocent": False}


async def test_everybody_else_goes_to_another_link() -> None:
    bench = Bench(2)
    one, other = bench.links
    await one.up()
    poison, running = bench.start("poison"), bench.start("running")
    running.token()
    await other.up()
    await one.down()
    assert other.has == {"poison": False, "running": False}
    await other.down()
    assert running.strikes == 1, "it had brought no token there"
    await one.up()
    assert one.has == {"poison": True}
    await other.up()
    assert other.has == {"running": False}
    running.token()
    await one.dies()
    assert poison.error is not None and running.error is None
    bench.start("new")
    assert one.has == {"new": False}, "it takes everybody again"


async def test_a_busy_link_is_tried_on_once_nothing_starts_there() -> None:
    bench = Bench(3)
    one, two, busy = bench.links
    await busy.up()
    starting = bench.start("starting")
    await one.up()
    await two.up()
    suspect = bench.start("suspect")
    assert one.has == {"suspect": False}
    await one.down()
    await two.down()
    assert busy.has == {"starting": False}, "a death then might be of the one that starts"
    bench.start("new")
    await settle()
    assert busy.has == {"starting": False}, "nor may others join it"
    starting.token()
    await settle()
    assert busy.has == {"starting": False, "suspect": True}
    suspect.token()
    await settle()
    assert busy.has == {"starting": False, "suspect": True, "new": False}


async def test_a_suspect_that_is_given_up_holds_up_nobody(bench: Bench) -> None:
    (link,) = bench.links
    tried, waiting, other = (bench.start(name) for name in ("tried", "waiting", "other"))
    await link.dies()
    other.token()
    await link.dies()
    bench.dispatcher.abort(waiting)
    bench.dispatcher.abort(tried)
    await settle()
    assert link.has == {"tried": True, "other": False} and not link.floor_held


async def test_a_suspect_that_ends_without_a_token_holds_up_nobody(bench: Bench) -> None:
    """It is refused, for example."""
    (link,) = bench.links
    tried, other = bench.start("tried"), bench.start("other")
    await link.dies()
    other.token()
    await link.dies()
    bench.dispatcher.end(link, tried.handle)  # type: ignore[arg-type]
    await settle()
    assert link.has == {"tried": True, "other": False}


async def test_who_has_not_got_the_floor_does_not_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (link,) = bench.links
    monkeypatch.setattr(dispatcher, "FLOOR_RETRY_SECONDS", 0)
    link.floor_broken = True
    call = bench.start("suspect")
    await link.dies()
    await link.dies()
    assert link.has == {}
    link.floor_broken = False
    await settle()
    assert link.has == {"suspect": True}
    await link.dies()
    assert call.error is not None


@pytest.mark.parametrize("edge", ["engine_proxy", "text_proxy"])
async def test_cuts_before_the_first_token_end_nobody(tmp_path: Path, edge: str) -> None:
    """Over real streams: every one is cut at its first message behind the hello, until the callers have had enough."""
    async with Pipeline(tmp_path).running() as pipeline:
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
        assert proxy.num_streams > 6 and not proxy.num_floors, "who comes back the same has not died: nobody is tried"


def short_work(handle: int, *, alone: bool = False) -> engine_pb2.EngineDown:
    submit = engine_pb2.Submit(
        attempt=1,
        prompt_token_ids=pack_u32([5]),
        choices=[pb.Choice(handle=handle)],
        sampling=pb.SamplingParams(max_tokens=3, ignore_eos=True),
        alone=alone,
    )
    return engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)])


async def test_the_floor_keeps_others_from_starting(tmp_path: Path) -> None:
    engine = Pipeline(tmp_path)
    async with engine.running(), open_channel(engine.engine_address) as channel, asyncio.timeout(30):
        mine, others = make_hello("tokenizer"), make_hello("tokenizer")
        my_stream, other_stream = await _open_stream(channel, mine), await _open_stream(channel, others)
        floors = [EngineServiceStub(channel).HoldFloor(hello) for hello in (mine, others)]
        await floors[0].read()
        await other_stream.write(short_work(1))
        for handle in range(1, 4):
            await my_stream.write(short_work(handle))
            await _terminal(my_stream)
        waiting = [asyncio.create_task(_terminal(other_stream)), asyncio.create_task(floors[1].read())]
        done, _ = await asyncio.wait(waiting, timeout=0.1)
        assert not done
        floors[0].cancel()
        await asyncio.gather(*waiting)
        floors[1].cancel()


async def test_the_core_is_told_who_must_be_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its steps to itself there (tests/engine_core/test_restart.py)."""
    strikes: list[int] = []
    add = Scheduler.add

    def noted(scheduler: Scheduler, request: Request) -> Finished | None:
        strikes.append(request.strikes)
        return add(scheduler, request)

    monkeypatch.setattr(Scheduler, "add", noted)
    engine = Pipeline(tmp_path)
    async with engine.running() as pipeline, open_channel(engine.engine_address) as channel, asyncio.timeout(30):
        stream = await _open_stream(channel, make_hello("tokenizer"))
        for handle, alone in ((1, False), (2, True)):
            await stream.write(short_work(handle, alone=alone))
            assert (await _terminal(stream)).output_tokens == 3
        updates, record = Updates(), silent_record()
        record.submitted(1)
        call = TextCall(pipeline.submit("through the tokenizer", max_tokens=3), 0, updates, record)
        pipeline.client.dispatcher.start(call, alone=True)
        await updates.take()
    assert strikes == [0, SUSPECT_AT, SUSPECT_AT]


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
async def test_an_orderly_end_is_no_death(tmp_path: Path, cut: bool) -> None:
    owner = Owner()
    async with Pipeline(tmp_path).running() as pipeline, asyncio.timeout(30):
        target = f"unix:{tmp_path}/engine-proxy.sock" if cut else pipeline.engine_address
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
