"""Work goes on while a role drains, for so long; a second cancellation, or a hand-over, ends it at once."""

import asyncio

import pytest

from services.process.drain import run_and_drain
from services.process.shell import AT_ONCE


class Role:
    """Work that ends when cancelled, and a drain that ends when the test says so."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.working = self.draining = False
        self.drained = asyncio.Event()
        self.task = asyncio.create_task(run_and_drain([self.work()], self.drain, seconds))

    async def work(self) -> None:
        self.working = True
        try:
            await asyncio.Event().wait()
        finally:
            self.working = False

    async def drain(self) -> None:
        self.draining = True
        await self.drained.wait()

    async def turn(self) -> None:
        """Lets the tasks run."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def ends(self) -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(self.task, 10)
        assert not self.working


async def test_work_goes_on_until_the_drain_has_ended() -> None:
    role = Role()
    await role.turn()
    role.task.cancel()
    await role.turn()
    assert role.working and role.draining and not role.task.done()
    role.drained.set()
    await role.ends()


async def test_a_drain_takes_so_long_at_most() -> None:
    role = Role(seconds=0.05)
    await role.turn()
    role.task.cancel()
    await role.ends()
    assert role.draining


async def test_a_second_cancellation_ends_the_drain() -> None:
    role = Role()
    await role.turn()
    role.task.cancel()
    await role.turn()
    role.task.cancel()
    await role.ends()


@pytest.mark.parametrize(("seconds", "message"), [(60.0, AT_ONCE), (0.0, None)])
async def test_there_may_be_no_drain(seconds: float, message: str | None) -> None:
    role = Role(seconds)
    await role.turn()
    role.task.cancel(message)
    await role.ends()
    assert not role.draining


async def test_the_end_of_work_ends_it_and_an_error_is_raised() -> None:
    async def drain() -> None:
        raise AssertionError("nothing was cancelled")

    async def broken() -> None:
        raise ValueError("a bug")

    await run_and_drain([asyncio.sleep(0), asyncio.sleep(0)], drain, 60.0)
    with pytest.raises(ValueError, match="a bug"):
        await run_and_drain([asyncio.Event().wait(), broken()], drain, 60.0)
