"""A HoldStartLock call as a servicer sees it, and the wait for the end of its grant."""

import asyncio


class OpenCall:
    """The context of a HoldStartLock call that stays open. `granted` is set when the servicer grants the lock."""

    def __init__(self) -> None:
        self.granted = asyncio.Event()

    async def write(self, message: object) -> None:
        self.granted.set()


async def ends(holding: "asyncio.Task[None]", seconds: float = 5.0) -> bool:
    """Returns whether the task `holding`, which runs `StartLock.hold`, ends within `seconds`. Does not cancel it."""
    await asyncio.wait([holding], timeout=seconds)
    return holding.done()
