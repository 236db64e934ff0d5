"""The time in which a process has no peer that could answer: from the loss of the last one to the return of one.

New work waits through an outage, up to `patience` seconds; then the outage is *given up*: what waits without having
been accepted ends with an error, and new work is refused at once. A process that has never had a peer refuses at once.
"""

import asyncio
import math
import time
from collections.abc import Callable

from services.rpc.errors import TandemError, unavailable

MAX_RETRY_SECONDS = 60  # the largest Retry-After


class Outage:
    """The present outage, if there is one. Used on one event loop.

    `patience`: seconds. `on_given_up` is called with the error for what waits. `needed` names what is missing, for
    the error's message.
    """

    def __init__(self, patience: float, needed: str, on_given_up: Callable[[TandemError], None]) -> None:
        self._patience = patience
        self._needed = needed
        self._on_given_up = on_given_up
        self._began: float | None = None  # time.monotonic() of the loss; None: there is a peer, or never was one
        self._timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()  # set while there is a peer; replaced when the wait is given up
        self.is_waiting = False  # there is no peer, and the wait for one is not given up

    def begin(self) -> None:
        """The last peer is lost. While an outage lasts, another call changes nothing."""
        if self._began is not None:
            return
        self._began, self.is_waiting = time.monotonic(), True
        self._ended.clear()
        self._timer = asyncio.get_running_loop().call_later(self._patience, self._give_up)

    def end(self) -> None:
        """There is a peer."""
        self.is_waiting, self._began = False, None
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set()

    @property
    def has_peer(self) -> bool:
        return self._ended.is_set()

    @property
    def is_served(self) -> bool:
        """Whether work is accepted: there is a peer, or one is expected soon."""
        return self.has_peer or self.is_waiting

    @property
    def is_given_up(self) -> bool:
        """Whether the last peer is lost, and new work no longer waits for the next one."""
        return self._began is not None and not self.is_waiting

    def check(self) -> None:
        """Raises TandemError (UNAVAILABLE) if new work cannot be accepted."""
        if not self.is_served:
            raise self.error()

    async def wait(self) -> None:
        """Returns when there is a peer. Raises as `check`, also later."""
        self.check()
        while not self.has_peer:
            await self._ended.wait()
            self.check()

    def close(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        self.is_waiting = False
        waiting, self._ended = self._ended, asyncio.Event()
        waiting.set()
        self._on_given_up(self.error())

    def error(self) -> TandemError:
        """Returns the error for refused work. An outage is expected to last as long again as it has lasted."""
        if self._began is None:
            return unavailable(f"{self._needed} is connected; try again")
        seconds = time.monotonic() - self._began
        message = f"{self._needed} has been connected for {seconds:.0f} s; try again"
        return unavailable(message, min(max(1, math.ceil(seconds)), MAX_RETRY_SECONDS))
