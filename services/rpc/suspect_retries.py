"""Retries suspects one at a time: each starts alone, and ends with an error if its peers die again.

One link is *reserved*: the dispatcher places no other call on it. Once every call there has its first token, the
caller takes the peer's start lock (services/rpc/start_lock.py), so that no other caller's request starts there either,
and submits the suspect. Its trial's tokens clear it. If the peer dies before, again and again, the suspect is
the only possible cause, so only this call fails.
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
SUSPECT_AT = 2  # a call with this many strikes is a suspect
RECONNECT_SECONDS = 30.0  # timeout for a lost link to reconnect: the epoch shows whether the peer died
START_LOCK_RETRY_SECONDS = 0.05
# Deaths alone that fail a suspect. Streams that have tokens go on beside it, and may have been why: but a request that
# kills at a certain token has none left afterwards, so it hits one suspect at most. A peer may be killed by chance;
# one more death costs little, because a spare takes over. One more is needed once peers have died more often, without a
# suspect alone, than one request at its start explains, and one for each death alone of a suspect that was innocent.
ALONE_DEATHS = 3
MAX_EXPLAINED = 2
MOST_INNOCENT = 3
RECENT_SECONDS = 120.0


class SuspectRetries(Generic[CallT]):
    def __init__(
        self,
        calls: Mapping[Link[Any, Any], Mapping[int, CallT]],
        submit_alone: Callable[[Link[Any, Any], CallT], None],
        place: Callable[[CallT], None],
        on_idle: Callable[[], None],
    ) -> None:
        """`calls` are the dispatcher's: for each link that is up, handle -> call. `place` takes a suspect back if its
        retry had no result. `on_idle` is called when no suspect is left and no link is reserved."""
        self._calls = calls
        self._submit_alone = submit_alone
        self._place = place
        self._on_idle = on_idle
        self._suspects: deque[CallT] = deque()
        self._task: asyncio.Task[None] | None = None  # runs while there are suspects
        self.reserved_link: Link[Any, Any] | None = None
        self._current: CallT | None = None  # the suspect that left the queue, until its retry is over
        self._retrying: CallT | None = None  # the suspect that starts on the reserved link now
        self._died = False  # the link of `_retrying` went down without an orderly end
        self._changed = asyncio.Event()
        self._shared_deaths: deque[float] = deque()  # times of deaths at which no suspect was alone; the newest few
        # For each death of a suspect alone: when its trial ended later. The newest few.
        self._innocent_deaths: deque[float] = deque(maxlen=MOST_INNOCENT)

    def add(self, call: CallT) -> None:
        """Queues a suspect for its retry, and starts the task that retries if it is not running."""
        self._suspects.append(call)
        self._task = self._task or asyncio.create_task(self._run())

    def remove(self, call: CallT) -> None:
        """Drops an aborted call if it is in the queue."""
        if call in self._suspects:
            self._suspects.remove(call)

    @property
    def queued(self) -> list[CallT]:
        """The suspects that wait for their retry, without the one that is being retried."""
        return list(self._suspects)

    def __contains__(self, handle: object) -> bool:
        """Returns whether an open choice has this handle, of a suspect in the queue or of the one being retried."""
        calls = [*self._suspects, self._current] if self._current is not None else self._suspects
        return any(handle in call.open_choices for call in calls)

    def notify(self) -> None:
        """Must be called after a call started, ended or moved, and after a link went up or down."""
        self._changed.set()

    def link_up(self, link: Link[Any, Any]) -> None:
        """Reserves a link that just came up, and so has no calls, if there are suspects and none is being retried."""
        if self._task is not None and self._retrying is None:
            self.reserved_link = link

    def record_death(self) -> None:
        """A peer has died without running a suspect alone."""
        self._shared_deaths.append(asyncio.get_running_loop().time())
        if len(self._shared_deaths) > MAX_EXPLAINED + 1:
            self._shared_deaths.popleft()

    def _is_guilty(self, call: CallT) -> bool:
        recent = asyncio.get_running_loop().time() - RECENT_SECONDS
        others = sum(moment > recent for moment in self._shared_deaths)
        innocent = sum(moment > recent for moment in self._innocent_deaths)
        return call.strikes >= SUSPECT_AT + ALONE_DEATHS + (others > MAX_EXPLAINED) + innocent

    def link_down(self, call: CallT, *, died: bool) -> bool:
        """Handles the loss of a call's link. `died`: it had no orderly end. Returns whether the call was starting alone
        there: then this class places or ends the call."""
        if call is not self._retrying:
            return False
        self._retrying, self._died = None, died
        return True

    async def _run(self) -> None:
        """Retries suspects until none is left."""
        try:
            while self._suspects:
                link = await self._reserve_link()
                if self._suspects and (call := self._suspects.popleft()).open_choices:
                    self._current = call
                    await self._retry(call, link)
                    self._current = None
        finally:
            self._task = self.reserved_link = self._current = None
        self._on_idle()

    async def _reserve_link(self) -> Link[Any, Any]:
        """Reserves the link with the fewest starting calls, and returns it once none of its calls is starting."""
        while True:
            if self.reserved_link not in self._calls:
                self.reserved_link = min(self._calls, key=self._num_starting, default=None)
            if self.reserved_link is not None and not self._num_starting(self.reserved_link):
                return self.reserved_link
            await self._wait_for_change()

    async def _retry(self, call: CallT, link: Link[Any, Any]) -> None:
        """Starts a suspect alone. If the peer dies before its trial has ended, fails it, or places it again until that
        has happened often enough. Places it again, too, if the link goes down for another reason, or if the start lock
        could not be taken."""
        log.warning(
            "request %s: %s processes died while it was starting, so it starts alone", call.request_id, call.strikes
        )
        self._retrying, self._died, epoch, was_alone = call, False, 0, False
        deaths_alone = call.strikes - SUSPECT_AT
        try:
            async with link.hold_start_lock() as held:
                if link in self._calls and call.open_choices:
                    epoch = link.peer.epoch if link.peer is not None else 0
                    self._submit_alone(link, call)
                    while self._retrying is call and call.starting and call.open_choices:
                        await self._wait_for_change()
                was_alone = held()
        except StreamBroken:
            await asyncio.sleep(START_LOCK_RETRY_SECONDS)
        no_result, self._retrying = self._retrying is None or not epoch, None
        if self._died and was_alone and call.starting and await self.peer_died(link, epoch):
            call.strikes += 1
            if self._is_guilty(call):
                call.fail(TandemError("INTERNAL", f"the {link.peer_role} died while it ran this request alone"))
            else:
                self._place(call)
        elif no_result:
            self._place(call)
        elif not call.starting:
            self._innocent_deaths.extend(deaths_alone * [asyncio.get_running_loop().time()])

    async def peer_died(self, link: Link[Any, Any], epoch: int) -> bool:
        """Waits for the link's next peer. Returns whether its epoch is not `epoch`.

        Returns False if none connects within RECONNECT_SECONDS.
        """
        try:
            async with asyncio.timeout(RECONNECT_SECONDS):
                while link not in self._calls:
                    await self._wait_for_change()
        except TimeoutError:
            return False
        return link.peer is not None and link.peer.epoch != epoch

    def _num_starting(self, link: Link[Any, Any]) -> int:
        return sum(call.starting for call in self._calls[link].values())

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
