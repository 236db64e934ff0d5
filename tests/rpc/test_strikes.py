"""Who keeps killing its callees is tried alone and ended; nobody else ever is, whatever is cut, ended or restarted.

Over played links; tests/rpc/test_strikes_over_streams.py has real ones.
"""

import pytest

from services.rpc import suspect_retries
from tests.rpc.played_links import Bench, settle


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
    assert str(poison.error) == "the engine died while it ran this request alone"
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
    assert link.has == {"tried": True, "other": False} and not link.start_lock_held


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


async def test_who_has_not_got_the_start_lock_does_not_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (link,) = bench.links
    monkeypatch.setattr(suspect_retries, "START_LOCK_RETRY_SECONDS", 0)
    link.start_lock_broken = True
    call = bench.start("suspect")
    await link.dies()
    await link.dies()
    assert link.has == {}
    link.start_lock_broken = False
    await settle()
    assert link.has == {"suspect": True}
    await link.dies()
    assert call.error is not None
