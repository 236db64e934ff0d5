"""Work waits through an outage for so long, and learns when the wait is given up."""

import asyncio
import time

import pytest

from services.rpc.errors import TandemError
from services.rpc.outage import Outage


def outage(patience: float) -> tuple[Outage, list[TandemError]]:
    given_up: list[TandemError] = []
    return Outage(patience, "no peer", given_up.append), given_up


async def test_nothing_waits_before_the_first_peer() -> None:
    made, _ = outage(60)
    with pytest.raises(TandemError, match="no peer is connected; try again"):
        await made.wait()
    assert not made.is_served and not made.has_peer
    made.end()
    await made.wait()
    assert made.is_served and made.has_peer


async def test_a_wait_ends_with_the_outage() -> None:
    made, given_up = outage(60)
    made.end()
    made.begin()
    waiting = asyncio.create_task(made.wait())
    await asyncio.sleep(0)
    assert made.is_served and made.is_waiting and not waiting.done()
    made.end()
    await waiting
    assert not given_up and not made.is_waiting


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, 1), (7.2, 8), (59.0, 59), (3600.0, 60)])
async def test_retry_after_is_as_long_as_the_outage_has_lasted(
    seconds: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = outage(60)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    made.end()
    made.begin()
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 + seconds)
    assert made.error().retry_after == expected
    made.close()


async def test_a_wait_is_given_up_and_a_later_peer_serves_again() -> None:
    made, given_up = outage(0.02)
    made.end()
    made.begin()
    made.begin()
    with pytest.raises(TandemError, match="no peer has been connected for 0 s; try again") as caught:
        await made.wait()
    assert (caught.value.code, caught.value.retry_after) == ("UNAVAILABLE", 1)
    assert not made.is_served and [error.code for error in given_up] == ["UNAVAILABLE"]
    with pytest.raises(TandemError):
        made.check()
    made.end()
    await made.wait()
    made.begin()
    assert made.is_served, "the next outage is waited for like the first"
    made.close()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await made.wait()
    assert len(given_up) == 1
