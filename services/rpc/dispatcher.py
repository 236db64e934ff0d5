"""A caller's calls, over all the links it has: places each on the least loaded link, moves them when a link dies.

Shim (to tokenizers) and tokenizer (to engines) use the same one. Handles count up within this process and are never
used again. A call whose callees keep dying is tried alone, so that the death that ends it is its own beyond doubt.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from services.rpc.call import Call, StreamBroken
from services.rpc.errors import TandemError, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.link import Link

log = logging.getLogger(__name__)
CallT = TypeVar("CallT", bound=Call[Any])
SUSPECT_AT = 2  # strikes from which on a call starts alone
RETURN_SECONDS = 30.0  # so long a peer that may have died is waited for: its epoch tells
FLOOR_RETRY_SECONDS = 0.05


class Dispatcher(Generic[CallT]):
    """`submit_entry` and `abort_entry` build the edge's entry around a submit or an abort."""

    def __init__(self, submit_entry: Callable[[Any], Any], abort_entry: Callable[[pb.Abort], Any]) -> None:
        self._submit_entry = submit_entry
        self._abort_entry = abort_entry
        self._handles = itertools.count(1)
        self._calls: dict[Link[Any, Any], dict[int, CallT]] = {}
        self._homeless: list[CallT] = []  # that no link takes now
        self._epochs: dict[Link[Any, Any], int] = {}  # of the peer that each link had last
        self._struck: dict[Link[Any, Any], list[CallT]] = {}  # when it went down: if that was a death, as it seems
        self._suspects: deque[CallT] = deque()
        self._trials: asyncio.Task[None] | None = None  # while there are suspects
        self._trial_link: Link[Any, Any] | None = None  # the link that takes nobody else meanwhile
        self._on_trial: CallT | None = None  # the one call that starts there now
        self._died = False  # the link ended under it, and not in order
        self._changed = asyncio.Event()
        self.peer: pb.Hello | None = None  # the last one that connected: what it said of the model
        self.first_link = asyncio.get_running_loop().create_future()

    def new_handle(self) -> int:
        return next(self._handles)

    @property
    def connected(self) -> bool:
        return bool(self._calls)

    def start(self, call: CallT, *, resumed: bool = False, alone: bool = False) -> None:
        """Submits a call, as a suspect if it is to start `alone`. Raises TandemError (UNAVAILABLE) when no peer is
        connected, unless it is a resumed one: that waits, new work does not."""
        if not self._calls and not resumed:
            raise unavailable("no process that could answer is connected; try again")
        if alone:
            call.strikes = SUSPECT_AT
        self._place(call)

    def abort(self, call: CallT) -> None:
        """Gives up the open choices of a call; their terminals, if they still come, are dropped."""
        for queue in (self._homeless, self._suspects):
            if call in queue:
                queue.remove(call)
        for handle in call.open:
            self._abort_handle(handle)
        call.open.clear()
        self._changed.set()

    def abort_choice(self, call: CallT, handle: int) -> None:
        """Gives up one choice, for its caller knows already how it ends."""
        call.end(handle)
        self._abort_handle(handle)
        self._changed.set()

    def find(self, link: Link[Any, Any], handle: int) -> CallT | None:
        """The call that has this handle open on this link; None for a message that nobody waits for."""
        return self._calls.get(link, {}).get(handle)

    def end(self, link: Link[Any, Any], handle: int) -> None:
        """The terminal message of a choice has come."""
        self._calls[link].pop(handle).end(handle)
        self._changed.set()

    def link_up(self, link: Link[Any, Any]) -> None:
        assert link.peer is not None
        if self._epochs.get(link) == link.peer.epoch:  # the same process: its stream was cut, and nobody died
            for call in self._struck.pop(link, []):
                call.strikes = max(0, call.strikes - 1)
        self._epochs[link] = link.peer.epoch
        self._calls[link] = {}
        self.peer = link.peer
        if not self.first_link.done():
            self.first_link.set_result(None)
        if self._trials is not None and self._on_trial is None:
            self._trial_link = link  # nobody is on it yet
        self._place_homeless()
        self._changed.set()

    def link_down(self, link: Link[Any, Any], *, died: bool) -> None:
        """Resumes the link's calls elsewhere, or as soon as a peer is back. A death is a strike against those that had
        brought no token yet; it is taken back where the same peer returns."""
        self._struck[link] = struck = []
        for call in dict.fromkeys(self._calls.pop(link).values()):
            if call is self._on_trial:
                self._on_trial, self._died = None, died
                continue
            if died and call.starting:
                call.strikes += 1
                struck.append(call)
            self._place(call)
        self._changed.set()

    def _place(self, call: CallT) -> None:
        if call.strikes >= SUSPECT_AT:
            self._suspects.append(call)
            self._trials = self._trials or asyncio.create_task(self._try_suspects())
            return
        open_links = [link for link in self._calls if link is not self._trial_link]
        if open_links:
            self._put(min(open_links, key=lambda link: len(self._calls[link])), call)
        else:
            self._homeless.append(call)

    def _place_homeless(self) -> None:
        homeless, self._homeless = self._homeless, []
        for call in homeless:
            if call.open:
                self._place(call)

    def _put(self, link: Link[Any, Any], call: CallT, *, alone: bool = False) -> None:
        self._calls[link].update(dict.fromkeys(call.open, call))
        link.put(self._submit_entry(call.next_submit(alone=alone, started=self._changed.set)))

    def _abort_handle(self, handle: int) -> None:
        for link, calls in self._calls.items():
            if calls.pop(handle, None) is not None:
                link.put(self._abort_entry(pb.Abort(handle=handle)))

    async def _try_suspects(self) -> None:
        """One after the other, as long as there are any; then everybody may start everywhere again."""
        try:
            while self._suspects:
                link = await self._quiet_link()
                if self._suspects and (call := self._suspects.popleft()).open:
                    await self._try(call, link)
        finally:
            self._trials = self._trial_link = None
        self._place_homeless()

    async def _quiet_link(self) -> Link[Any, Any]:
        """One that has no call which is just starting. From now on it gets none."""
        while True:
            if self._trial_link not in self._calls:
                self._trial_link = min(self._calls, key=self._num_starting, default=None)
            if self._trial_link is not None and not self._num_starting(self._trial_link):
                return self._trial_link
            await self._change()

    async def _try(self, call: CallT, link: Link[Any, Any]) -> None:
        """Lets a suspect start with nobody beside it. If that kills the peer, it ends with an error."""
        log.warning("request %s: %s processes died at it, so it starts alone", call.request_id, call.strikes)
        self._on_trial, self._died, epoch = call, False, 0
        try:
            async with link.floor():
                if link in self._calls and call.open:
                    epoch = link.peer.epoch if link.peer is not None else 0
                    self._put(link, call, alone=True)
                    while self._on_trial is call and call.starting and call.open:
                        await self._change()
        except StreamBroken:
            await asyncio.sleep(FLOOR_RETRY_SECONDS)
        lost, self._on_trial = self._on_trial is None or not epoch, None
        if self._died and call.starting and await self._is_another(link, epoch):
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
