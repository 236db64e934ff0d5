"""A request that keeps killing its peers starts alone and then fails; no other request ever does. Over fake links,
and at the end over real streams."""

import asyncio
from pathlib import Path

import pytest

from engine_core.events import Finished
from engine_core.request import SUSPECT_AT, Request
from engine_core.scheduler import Scheduler
from services.rpc import suspect_retries
from services.rpc.generated.engine_pb2_grpc import EngineServiceStub
from services.rpc.hello import make_hello
from services.rpc.suspect_retries import ALONE_DEATHS
from services.rpc.transport import open_channel
from services.shim.text_call import TextCall
from services.shim.updates import UpdateMailbox
from tests.rpc.fake_links import FakeEdge, settle
from tests.rpc.pipeline import Pipeline, silent_telemetry
from tests.rpc.streams import next_terminal, open_stream, short_request


async def test_two_deaths_make_a_suspect_and_three_more_fail_it(edge: FakeEdge) -> None:
    (link,) = edge.links
    poison, running = edge.start("poison"), edge.start("running")
    running.token()
    await link.restart()
    assert link.submits == {"poison": False, "running": False}
    running.token()
    await link.restart()
    late = edge.start("late")
    for _ in range(ALONE_DEATHS):
        assert link.submits == {"poison": True}, "resumed and new requests wait"
        assert poison.error is None
        await link.down()
        if poison.strikes == SUSPECT_AT + ALONE_DEATHS - 1:
            break
        await link.up()
    assert poison.error is None, "the epoch of the next peer tells whether the last one died"
    await link.up()
    assert poison.error is not None and poison.error.code == "INTERNAL"
    assert str(poison.error) == "the engine died while it ran this request alone"
    assert link.submits == {"running": False, "late": False}
    assert running.error is late.error is None


async def test_a_call_that_kills_behind_some_tokens_is_found(edge: FakeEdge) -> None:
    """Each peer dies at its tenth token. The second trial, of sixteen tokens, gives two strikes, and each death alone
    one more. Four deaths not alone could have had another reason, so four alone are needed."""
    (link,) = edge.links
    poison, deaths = edge.start("poison"), 0
    while poison.error is None:
        for _ in range(10):
            poison.token()
        await link.restart()
        deaths += 1
        assert deaths < 10
    assert deaths == 8 and str(poison.error) == "the engine died while it ran this request alone"


async def test_a_token_clears_a_suspect_and_the_next_one_starts(edge: FakeEdge) -> None:
    (link,) = edge.links
    first, second, third = (edge.start(name) for name in ("first", "second", "third"))
    await link.restart()
    third.token()
    await link.restart()
    assert link.submits == {"first": True}
    first.token()
    await settle()
    assert link.submits == {"first": True, "second": True}, "the first one goes on meanwhile"
    second.token()
    await settle()
    assert link.submits == {"first": True, "second": True, "third": False}
    assert first.strikes == second.strikes == 0
    await link.restart()
    assert link.submits == {"first": False, "second": False, "third": False}, "one strike makes no suspect"


@pytest.mark.parametrize("died", [True, False], ids=["lost stream", "orderly end"])
async def test_a_suspect_is_retried_if_its_peer_did_not_die(edge: FakeEdge, died: bool) -> None:
    """A lost stream: the peer that reconnects has the same epoch."""
    (link,) = edge.links
    call = edge.start("harmless")
    for _ in range(2):
        await link.restart()
    for _ in range(5):
        assert link.submits == {"harmless": True}
        await link.down(died=died)
        await link.up(same=died)
    call.token()
    await settle()
    assert call.error is None and not call.strikes


async def test_a_peer_that_does_not_reconnect_in_time_is_not_taken_for_dead(
    edge: FakeEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspect_retries, "RECONNECT_SECONDS", 0)
    (link,) = edge.links
    call = edge.start("suspect")
    for _ in range(2):
        await link.restart()
    await link.down()
    await link.up()
    assert call.error is None and link.submits == {"suspect": True}


async def test_a_suspect_that_no_engine_has_accepted_waits_no_longer_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suspect_retries, "RECONNECT_SECONDS", 0.2)
    edge = FakeEdge(resume_wait=0.05)
    (link,) = edge.links
    await link.up()
    call = edge.start("suspect")
    for _ in range(SUSPECT_AT):
        await link.restart()
    assert link.submits == {"suspect": True}
    await link.down()
    async with asyncio.timeout(10):
        await call.failed.wait()
    assert call.error is not None and call.error.code == "UNAVAILABLE"


async def test_a_death_after_the_end_of_the_grant_fails_no_suspect(edge: FakeEdge) -> None:
    """Other callers' requests may have started there by then."""
    (link,) = edge.links
    call = edge.start("suspect")
    for _ in range(2):
        await link.restart()
    link.start_lock_ends_early = True
    await link.restart()
    assert call.error is None and link.submits == {"suspect": True}
    link.start_lock_ends_early = False
    for _ in range(ALONE_DEATHS):
        assert call.error is None
        await link.restart()
    assert call.error is not None


async def test_other_calls_go_to_another_link() -> None:
    edge = FakeEdge(2)
    one, other = edge.links
    await one.up()
    poison, running = edge.start("poison"), edge.start("running")
    running.token()
    await other.up()
    await one.down()
    assert other.submits == {"poison": False, "running": False}
    await other.down()
    assert running.strikes == 1, "it had no token from there"
    await one.up()
    assert one.submits == {"poison": True}
    await other.up()
    assert other.submits == {"running": False}
    running.token()
    for _ in range(ALONE_DEATHS):
        assert poison.error is None and one.submits == {"poison": True}
        await one.restart()
    assert poison.error is not None and running.error is None
    edge.start("new")
    assert one.submits == {"new": False}, "the link is no longer reserved"


async def test_a_suspect_waits_until_no_call_of_its_link_is_starting() -> None:
    edge = FakeEdge(3)
    one, two, busy = edge.links
    await busy.up()
    starting = edge.start("starting")
    await one.up()
    await two.up()
    suspect = edge.start("suspect")
    assert one.submits == {"suspect": False}
    await one.down()
    await two.down()
    assert busy.submits == {"starting": False}, "this call could cause the next death as well"
    edge.start("new")
    await settle()
    assert busy.submits == {"starting": False}, "the link is reserved"
    starting.token()
    await settle()
    assert busy.submits == {"starting": False, "suspect": True}
    suspect.token()
    await settle()
    assert busy.submits == {"starting": False, "suspect": True, "new": False}


async def test_an_aborted_suspect_delays_no_other_call(edge: FakeEdge) -> None:
    (link,) = edge.links
    started, queued, other = (edge.start(name) for name in ("started", "queued", "other"))
    await link.restart()
    other.token()
    await link.restart()
    edge.dispatcher.abort(queued)
    edge.dispatcher.abort(started)
    await settle()
    assert link.submits == {"started": True, "other": False} and not link.start_lock_held


async def test_a_suspect_that_ends_without_a_token_delays_no_other_call(edge: FakeEdge) -> None:
    """It is refused, for example."""
    (link,) = edge.links
    suspect, other = edge.start("suspect"), edge.start("other")
    await link.restart()
    other.token()
    await link.restart()
    edge.dispatcher.end(link, suspect.handle)  # type: ignore[arg-type]
    await settle()
    assert link.submits == {"suspect": True, "other": False}


async def test_a_suspect_starts_only_with_the_start_lock(edge: FakeEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    (link,) = edge.links
    monkeypatch.setattr(suspect_retries, "START_LOCK_RETRY_SECONDS", 0)
    link.start_lock_broken = True
    call = edge.start("suspect")
    await link.restart()
    await link.restart()
    assert link.submits == {}
    link.start_lock_broken = False
    await settle()
    for _ in range(ALONE_DEATHS):
        assert link.submits == {"suspect": True} and call.error is None
        await link.restart()
    assert call.error is not None


async def test_a_death_that_hits_two_suspects_by_chance_fails_neither(edge: FakeEdge) -> None:
    """A third request kills while they run alone: it has tokens, so it goes on beside them."""
    (link,) = edge.links
    first, second = edge.start("first"), edge.start("second")
    for _ in range(2):
        await link.restart()
    for _ in range(2):
        await link.restart()
    for call in (first, second):
        call.token()
        await settle()
    assert first.error is second.error is None and link.submits == {"first": True, "second": True}


async def test_the_scheduler_gets_a_suspect_as_one(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with the start lock. tests/engine_core/test_restart.py: the scheduler runs it alone."""
    strikes: list[int] = []
    add = Scheduler.add

    def recorded(scheduler: Scheduler, request: Request) -> Finished | None:
        strikes.append(request.strikes)
        return add(scheduler, request)

    monkeypatch.setattr(Scheduler, "add", recorded)
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
            await stream.write(short_request(handle, alone=alone))
            assert (await next_terminal(stream)).output_tokens == 3
            start_lock.cancel()
        updates, record = UpdateMailbox(), silent_telemetry()
        record.submitted(1)
        call = TextCall(pipeline.submit("through the tokenizer", max_tokens=3), 0, updates, record)
        pipeline.client.dispatcher.start(call, alone=True)
        await updates.take()
    assert strikes == [0, 0, SUSPECT_AT, SUSPECT_AT]


async def test_after_deaths_alone_of_an_innocent_one_as_many_more_are_needed(edge: FakeEdge) -> None:
    """Two, and one more because four deaths not alone could have had another reason."""
    (link,) = edge.links
    innocent = edge.start("innocent")
    for _ in range(2 + 2):
        await link.restart()
    innocent.token()
    await settle()
    other = edge.start("other")
    for _ in range(2 + ALONE_DEATHS + 2 + 1):
        assert other.error is None
        innocent.token()
        await link.restart()
    assert other.error is not None and innocent.error is None
