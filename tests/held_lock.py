"""A HoldStartLock call as a servicer sees it, and the wait for the end of its grant."""

import asyncio


class OpenCall:
    """The context of a call that stays open."""

    def __init__(self) -> None:
        self.granted = asyncio.Event()

    async def write(self, message: object) -> None:
        self.granted.set()


async def ends(holding: "asyncio.Task[None]", seconds: float = 5.0) -> bool:
    """Whether `StartLock.hold` returns within the time. Cancelling it would look like its return."""
    await asyncio.wait([holding], timeout=seconds)
    return holding.done()
