"""The dispatcher places calls on links, resumes them when a link goes down, and counts strikes. Over fake links."""

import asyncio
import gc
import weakref

import pytest

from services.rpc.columns import pack_u32
from services.rpc.errors import TandemError
from services.rpc.handles import LAST, Handles
from services.rpc.suspect_retries import ALONE_DEATHS
from tests.clock import Clock
from tests.rpc.fake_links import FakeCall, FakeEdge, settle


async def test_a_new_call_needs_a_first_link() -> None:
    with pytest.raises(TandemError, match="no process that could answer is connected; try again") as refused:
        FakeEdge().start("new")
    assert (refused.value.code, refused.value.retryable) == ("UNAVAILABLE", True)


async def test_new_calls_wait_through_an_outage_behind_those_that_resume(edge: FakeEdge) -> None:
    (link,) = edge.links
    edge.start("resumed")
    await link.down()
    edge.start("first")
    edge.start("second")
    await link.up()
    assert list(link.submits) == ["resumed", "first", "second"]


async def test_as_many_new_calls_wait_as_the_peer_may_queue(edge: FakeEdge) -> None:
    (link,) = edge.links
    await link.restart(max_num_queued_reqs=2)
    await link.down()
    edge.start("first")
    edge.start("second")
    with pytest.raises(TandemError, match=r"2 requests wait .*: 1 more would exceed max_num_queued_reqs \(2\)") as full:
        edge.start("third")
    assert (full.value.code, full.value.retry_after > 0) == ("RESOURCE_EXHAUSTED", True)
    edge.dispatcher.start(FakeCall("resumed", edge.dispatcher), resumed=True)
    await link.up()
    assert list(link.submits) == ["first", "second", "resumed"]


async def test_calls_that_wait_for_a_reserved_link_are_refused_as_in_an_outage(edge: FakeEdge) -> None:
    """Within the limit they wait; once no peer accepts calls, those that no engine has accepted end."""
    (link,) = edge.links
    await link.restart(max_num_queued_reqs=2)
    edge.dispatcher.start(FakeCall("suspect", edge.dispatcher), alone=True)
    await settle()
    accepted, first, second = FakeCall("accepted", edge.dispatcher), edge.start("first"), edge.start("second")
    accepted.accept()
    edge.dispatcher.start(accepted, resumed=True)
    with pytest.raises(TandemError) as full:
        edge.start("third")
    assert full.value.code == "RESOURCE_EXHAUSTED" and list(link.submits) == ["suspect"]
    link.is_ready = link.is_served = False
    edge.dispatcher.readiness_changed()
    assert [call.error and call.error.code for call in (accepted, first, second)] == [None, *2 * ["UNAVAILABLE"]]
    with pytest.raises(TandemError) as refused:
        edge.start("new")
    assert (refused.value.code, refused.value.retry_after > 0) == ("UNAVAILABLE", True)


async def test_an_outage_that_is_given_up_ends_what_no_engine_has_accepted() -> None:
    edge = FakeEdge(resume_wait=0.05)
    (link,) = edge.links
    await link.up()
    accepted, waiting = edge.start("accepted"), edge.start("waiting")
    accepted.accept()
    suspect = FakeCall("suspect", edge.dispatcher)
    edge.dispatcher.start(suspect, alone=True)
    await link.down()
    new = edge.start("new")
    async with asyncio.timeout(10):
        await new.failed.wait()
    for call in (waiting, suspect, new):
        assert call.error is not None and call.error.code == "UNAVAILABLE" and not call.open_choices
    assert accepted.error is None and accepted.open_choices
    with pytest.raises(TandemError, match="has been connected for 0 s") as refused:
        edge.start("late")
    assert refused.value.retry_after == 1
    await link.up()
    assert list(link.submits) == ["accepted"]
    edge.start("next")
    assert list(link.submits) == ["accepted", "next"]


async def test_a_resumed_call_waits_for_a_link() -> None:
    edge = FakeEdge()
    edge.dispatcher.start(FakeCall("resumed", edge.dispatcher), resumed=True)
    await edge.links[0].up()
    assert edge.links[0].submits == {"resumed": False}


async def test_a_call_goes_to_the_least_loaded_link() -> None:
    edge = FakeEdge(2)
    one, other = edge.links
    await one.up()
    edge.start("first")
    edge.start("second")
    await other.up()
    edge.start("third")
    edge.start("fourth")
    edge.start("fifth")
    assert list(one.submits) == ["first", "second", "fifth"] and list(other.submits) == ["third", "fourth"]


async def test_a_resumed_call_brings_its_tokens_to_another_link() -> None:
    edge = FakeEdge(2)
    one, other = edge.links
    await one.up()
    call = edge.start("running")
    call.token()
    await other.up()
    await one.down()
    assert edge.dispatcher.find(other, call.handle) is call  # type: ignore[arg-type]
    assert edge.dispatcher.find(one, call.handle) is None  # type: ignore[arg-type]
    assert other.last_submit.attempt == 2
    assert other.last_submit.choices[0].resumed_token_ids == pack_u32([7])


async def test_the_time_without_a_link_is_part_of_a_calls_wait(edge: FakeEdge, clock: Clock) -> None:
    (link,) = edge.links
    resumed = edge.start("resumed")
    clock.now += 1
    await link.down()
    clock.now += 2
    await link.up()
    assert (link.last_submit.attempt, link.last_submit.waited_ms) == (2, 3000)
    edge.dispatcher.abort(resumed)
    await link.down()
    edge.start("new")
    clock.now += 4
    await link.up()
    assert (link.last_submit.attempt, link.last_submit.waited_ms) == (1, 4000)
    clock.now += 5
    await link.restart()
    clock.now += 6
    await link.restart()
    assert (link.last_submit.attempt, link.last_submit.alone, link.last_submit.waited_ms) == (3, True, 15_000)


async def test_a_ready_link_is_preferred() -> None:
    """The other one stops, or its engine has no worker."""
    edge = FakeEdge(2)
    one, other = edge.links
    await one.up()
    await other.up()
    one.is_ready = False
    for name in ("first", "second"):
        edge.start(name)
    assert not one.submits and list(other.submits) == ["first", "second"]
    await other.down()
    assert list(one.submits) == ["first", "second"], "what is not ready is better than nothing"


async def test_new_calls_are_accepted_while_one_peer_accepts_them_or_the_next_is_waited_for() -> None:
    edge = FakeEdge(2, resume_wait=0.05)
    one, other = edge.links
    assert not edge.dispatcher.is_served
    await one.up()
    await other.up()
    one.is_served = False
    assert edge.dispatcher.is_served
    other.is_served = False
    assert not edge.dispatcher.is_served, "no engine has had a worker for long"
    await one.down()
    await other.down()
    assert edge.dispatcher.is_served
    with pytest.raises(TandemError):
        await edge.dispatcher.outage.wait()
    assert not edge.dispatcher.is_served


async def test_a_call_is_continued_under_its_own_numerics_id_alone() -> None:
    edge = FakeEdge(2, resume_wait=0.05)
    one, other = edge.links
    await one.up(numerics_id="a")
    await other.up(numerics_id="b")
    call = FakeCall("begun", edge.dispatcher)
    edge.dispatcher.start(call)
    call.accept("a")
    assert list(one.submits) == ["begun"] and edge.dispatcher.is_ready
    await one.down(died=False)
    assert not other.submits and not call.error
    await one.up(numerics_id="a")
    assert list(one.submits) == ["begun"] and one.last_submit.numerics_id == "a"
    await one.down(died=False)
    async with asyncio.timeout(10):
        await call.failed.wait()
    assert call.error is not None and call.error.code == "UNAVAILABLE"
    assert "began with numerics_id 'a', and no process with the same model and options is left" in call.error.message
    assert not other.submits


async def test_an_aborted_call_is_forgotten(edge: FakeEdge) -> None:
    (link,) = edge.links
    call = edge.start("aborted")
    edge.dispatcher.abort(call)
    assert link.aborts == [call.handle] and not call.open_choices
    assert edge.dispatcher.find(link, call.handle) is None  # type: ignore[arg-type]
    await link.restart()
    assert link.submits == {}, "it is not resumed"


async def test_an_aborted_call_that_waits_for_a_link_is_not_placed(edge: FakeEdge) -> None:
    (link,) = edge.links
    call = edge.start("aborted")
    await link.down()
    edge.dispatcher.abort(call)
    await link.up()
    assert link.submits == {} and link.aborts == []


async def test_one_aborted_choice_ends_alone(edge: FakeEdge) -> None:
    (link,) = edge.links
    call, other = edge.start("aborted"), edge.start("other")
    edge.dispatcher.abort_choice(call, call.handle)
    assert link.aborts == [call.handle] and not call.open_choices and other.open_choices


async def test_a_death_is_a_strike_for_calls_without_a_token_from_there(edge: FakeEdge) -> None:
    (link,) = edge.links
    starting, running = edge.start("starting"), edge.start("running")
    running.token()
    await link.restart()
    assert (starting.strikes, running.strikes) == (1, 0)
    starting.token()
    assert starting.strikes == 0, "a token takes all strikes back"


async def test_the_calls_of_a_death_are_not_kept_once_another_peer_is_up(edge: FakeEdge) -> None:
    (link,) = edge.links
    call = edge.start("starting")
    await link.restart()
    edge.dispatcher.abort(call)
    kept = weakref.ref(call)
    del call
    gc.collect()
    assert kept() is None


async def test_a_lost_stream_is_no_strike(edge: FakeEdge) -> None:
    """The peer that reconnects has the same epoch, so it did not die."""
    (link,) = edge.links
    call = edge.start("harmless")
    for _ in range(5):
        await link.down()
        await link.up(same=True)
        assert link.submits == {"harmless": False}
    assert not call.strikes


async def test_an_orderly_end_is_no_strike(edge: FakeEdge) -> None:
    (link,) = edge.links
    edge.start("harmless")
    for _ in range(5):
        await link.down(died=False)
        await link.up()
        assert link.submits == {"harmless": False}


async def test_handles_of_open_calls_are_not_used_again(edge: FakeEdge) -> None:
    placed = edge.start("placed")
    started = edge.start("started")
    await edge.links[0].down(died=False)
    assert placed.handle in edge.dispatcher and started.handle in edge.dispatcher
    edge.dispatcher.abort(placed)
    assert placed.handle not in edge.dispatcher
    edge.dispatcher._handles = Handles(edge.dispatcher, after=LAST)
    assert (placed.handle, started.handle) == (1, 2)
    assert [edge.dispatcher.new_handle() for _ in range(2)] == [1, 3]


async def test_handles_of_suspects_are_not_used_again(edge: FakeEdge) -> None:
    """Neither while the suspect is queued, nor while it is retried, nor while its link's next peer is awaited."""
    (link,) = edge.links
    first, second = edge.start("first"), edge.start("second")
    for _ in range(2):
        assert first.handle in edge.dispatcher and second.handle in edge.dispatcher
        await link.restart()
    edge.dispatcher.abort(second)
    for _ in range(ALONE_DEATHS):
        assert link.submits == {"first": True} and first.handle in edge.dispatcher
        await link.down()
        assert first.handle in edge.dispatcher
        await link.up()
    assert first.error is not None and first.handle not in edge.dispatcher
