"""A caller's calls, over all the links it has: places each on the least loaded link, moves them when a link dies.

Shim (to tokenizers) and tokenizer (to engines) use the same one. A call whose callees keep dying goes to the trials
(services/rpc/suspect_retries.py), which take a link of their own.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from services.rpc.call import Call
from services.rpc.errors import unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.handles import Handles
from services.rpc.link import Link
from services.rpc.suspect_retries import SUSPECT_AT, SuspectRetries

CallT = TypeVar("CallT", bound=Call[Any])


class Dispatcher(Generic[CallT]):
    """`submit_entry` and `abort_entry` build the edge's entry around a submit or an abort."""

    def __init__(self, submit_entry: Callable[[Any], Any], abort_entry: Callable[[pb.Abort], Any]) -> None:
        self._submit_entry = submit_entry
        self._abort_entry = abort_entry
        self._handles = Handles(self)
        self._calls: dict[Link[Any, Any], dict[int, CallT]] = {}
        self._unplaced: list[CallT] = []  # that no link takes now
        self._epochs: dict[Link[Any, Any], int] = {}  # of the peer that each link had last
        self._struck: dict[Link[Any, Any], list[CallT]] = {}  # when it went down: if that was a death, as it seems
        self._retries = SuspectRetries(self._calls, self._put_alone, self._place, self._place_unplaced)
        self.peer: pb.Hello | None = None  # the last one that connected: what it said of the model
        self.first_link = asyncio.get_running_loop().create_future()

    def new_handle(self) -> int:
        return self._handles.new()

    def __contains__(self, handle: object) -> bool:
        """Whether a call has this handle open."""
        placed = any(handle in calls for calls in self._calls.values())
        return placed or any(handle in call.open_choices for call in self._unplaced)

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
        if call in self._unplaced:
            self._unplaced.remove(call)
        self._retries.remove(call)
        for handle in call.open_choices:
            self._abort_handle(handle)
        call.open_choices.clear()
        self._retries.news()

    def abort_choice(self, call: CallT, handle: int) -> None:
        """Gives up one choice, for its caller knows already how it ends."""
        call.end(handle)
        self._abort_handle(handle)
        self._retries.news()

    def find(self, link: Link[Any, Any], handle: int) -> CallT | None:
        """The call that has this handle open on this link; None for a message that nobody waits for."""
        return self._calls.get(link, {}).get(handle)

    def end(self, link: Link[Any, Any], handle: int) -> None:
        """The terminal message of a choice has come."""
        self._calls[link].pop(handle).end(handle)
        self._retries.news()

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
        self._retries.link_up(link)
        self._place_unplaced()
        self._retries.news()

    def link_down(self, link: Link[Any, Any], *, died: bool) -> None:
        """Resumes the link's calls elsewhere, or as soon as a peer is back. A death is a strike against those that had
        brought no token yet; it is taken back where the same peer returns."""
        self._struck[link] = struck = []
        for call in dict.fromkeys(self._calls.pop(link).values()):
            if self._retries.lost(call, died=died):
                continue
            if died and call.starting:
                call.strikes += 1
                struck.append(call)
            self._place(call)
        self._retries.news()

    def _place(self, call: CallT) -> None:
        if call.strikes >= SUSPECT_AT:
            self._retries.add(call)
            return
        open_links = [link for link in self._calls if link is not self._retries.link]
        if open_links:
            self._put(min(open_links, key=lambda link: len(self._calls[link])), call)
        else:
            self._unplaced.append(call)

    def _place_unplaced(self) -> None:
        unplaced, self._unplaced = self._unplaced, []
        for call in unplaced:
            if call.open_choices:
                self._place(call)

    def _put(self, link: Link[Any, Any], call: CallT, *, alone: bool = False) -> None:
        self._calls[link].update(dict.fromkeys(call.open_choices, call))
        link.put(self._submit_entry(call.next_submit(alone=alone, started=self._retries.news)))

    def _put_alone(self, link: Link[Any, Any], call: CallT) -> None:
        self._put(link, call, alone=True)

    def _abort_handle(self, handle: int) -> None:
        for link, calls in self._calls.items():
            if calls.pop(handle, None) is not None:
                link.put(self._abort_entry(pb.Abort(handle=handle)))
