"""Tries the calls whose callees keep dying, one after the other, each with nobody beside it that starts.

So the death that ends a call is its own beyond doubt, and no innocent one is ever ended. Meanwhile one link takes
nobody else. Knows nothing of how the others are placed (services/rpc/dispatcher.py).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from services.rpc.call import Call, StreamBroken
from services.rpc.errors import TandemError
from services.rpc.link import Link

log = logging.getLogger(__name__)
CallT = TypeVar("CallT", bound=Call[Any])
SUSPECT_AT = 2  # strikes from which on a call starts alone
RETURN_SECONDS = 30.0  # so long a peer that may have died is waited for: its epoch tells
START_LOCK_RETRY_SECONDS = 0.05


class SuspectRetries(Generic[CallT]):
    def __init__(
        self,
        calls: Mapping[Link[Any, Any], Mapping[int, CallT]],
        submit: Callable[[Link[Any, Any], CallT], None],
        place: Callable[[CallT], None],
        over: Callable[[], None],
    ) -> None:
        """`calls` are those on each link that is up. `submit` puts a suspect on a link, alone; `place` takes one back
        whose trial came to nothing; `over` says that everybody may start everywhere again."""
        self._calls = calls
        self._submit = submit
        self._place = place
        self._over = over
        self._suspects: deque[CallT] = deque()
        self._running: asyncio.Task[None] | None = None  # while there are suspects
        self.link: Link[Any, Any] | None = None  # the link that takes nobody else meanwhile
        self._retrying: CallT | None = None  # the one call that starts there now
        self._died = False  # the link ended under it, and not in order
        self._changed = asyncio.Event()

    def add(self, call: CallT) -> None:
        self._suspects.append(call)
        self._running = self._running or asyncio.create_task(self._run())

    def remove(self, call: CallT) -> None:
        """It is given up; nothing if it is no suspect."""
        if call in self._suspects:
            self._suspects.remove(call)

    def news(self) -> None:
        """A call has started, ended or moved, or a link came or went."""
        self._changed.set()

    def link_up(self, link: Link[Any, Any]) -> None:
        if self._running is not None and self._retrying is None:
            self.link = link  # nobody is on it yet

    def lost(self, call: CallT, *, died: bool) -> bool:
        """The link of a call went down. True: it was on trial there, and what becomes of it is decided here."""
        if call is not self._retrying:
            return False
        self._retrying, self._died = None, died
        return True

    async def _run(self) -> None:
        """As long as there are suspects; then everybody may start everywhere again."""
        try:
            while self._suspects:
                link = await self._quiet_link()
                if self._suspects and (call := self._suspects.popleft()).open_choices:
                    await self._try(call, link)
        finally:
            self._running = self.link = None
        self._over()

    async def _quiet_link(self) -> Link[Any, Any]:
        """One that has no call which is just starting. From now on it gets none."""
        while True:
            if self.link not in self._calls:
                self.link = min(self._calls, key=self._num_starting, default=None)
            if self.link is not None and not self._num_starting(self.link):
                return self.link
            await self._change()

    async def _try(self, call: CallT, link: Link[Any, Any]) -> None:
        """Lets a suspect start with nobody beside it. If that kills the peer, it ends with an error."""
        log.warning("request %s: %s processes died at it, so it starts alone", call.request_id, call.strikes)
        self._retrying, self._died, epoch, was_alone = call, False, 0, False
        try:
            async with link.hold_start_lock() as held:
                if link in self._calls and call.open_choices:
                    epoch = link.peer.epoch if link.peer is not None else 0
                    self._submit(link, call)
                    while self._retrying is call and call.starting and call.open_choices:
                        await self._change()
                was_alone = held()
        except StreamBroken:
            await asyncio.sleep(START_LOCK_RETRY_SECONDS)
        lost, self._retrying = self._retrying is None or not epoch, None
        if self._died and was_alone and call.starting and await self._is_another(link, epoch):
            why = f"the {link.peer_role} died at this request, which it had to itself"
            call.fail(TandemError("INTERNAL", why))
        elif lost:
            self._place(call)

    async def _is_another(self, link: Link[Any, Any], epoch: int) -> bool:
        """Whether the peer that comes back is another one: then the one with this epoch has died."""
        try:
            async with asyncio.timeout(RETURN_SECONDS):
                while link not in self._calls:
                    await self._change()
        except TimeoutError:
            return False
        return link.peer is not None and link.peer.epoch != epoch

    def _num_starting(self, link: Link[Any, Any]) -> int:
        return sum(call.starting for call in self._calls[link].values())

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
