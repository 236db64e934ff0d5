"""A caller's calls, over all the links it has: places each on the least loaded link, moves them when a link dies.

Shim (to tokenizers) and tokenizer (to engines) use the same one. Handles count up within this process and are never
used again.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from services.rpc.call import Call
from services.rpc.errors import unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.link import Link

CallT = TypeVar("CallT", bound=Call[Any])


class Dispatcher(Generic[CallT]):
    """`submit_entry` and `abort_entry` build the edge's entry around a submit or an abort."""

    def __init__(self, submit_entry: Callable[[Any], Any], abort_entry: Callable[[pb.Abort], Any]) -> None:
        self._submit_entry = submit_entry
        self._abort_entry = abort_entry
        self._handles = itertools.count(1)
        self._calls: dict[Link[Any, Any], dict[int, CallT]] = {}
        self._homeless: list[CallT] = []
        self.peer: pb.Hello | None = None  # the last one that connected: what it said of the model
        self.first_link = asyncio.get_running_loop().create_future()

    def new_handle(self) -> int:
        return next(self._handles)

    @property
    def connected(self) -> bool:
        return bool(self._calls)

    def start(self, call: CallT, *, resumed: bool = False) -> None:
        """Submits a call. Raises TandemError (UNAVAILABLE) when no peer is connected, unless it is a resumed one:
        that waits, new work does not."""
        if not self._calls and not resumed:
            raise unavailable("no process that could answer is connected; try again")
        self._place(call)

    def abort(self, call: CallT) -> None:
        """Gives up the open choices of a call; their terminals, if they still come, are dropped."""
        if call in self._homeless:
            self._homeless.remove(call)
        for link, calls in self._calls.items():
            for handle in [handle for handle in call.open if calls.pop(handle, None) is not None]:
                link.put(self._abort_entry(pb.Abort(handle=handle)))

    def abort_choice(self, call: CallT, handle: int) -> None:
        """Gives up one choice, for its caller knows already how it ends."""
        call.end(handle)
        for link, calls in self._calls.items():
            if calls.pop(handle, None) is not None:
                link.put(self._abort_entry(pb.Abort(handle=handle)))

    def find(self, link: Link[Any, Any], handle: int) -> CallT | None:
        """The call that has this handle open on this link; None for a message that nobody waits for."""
        return self._calls.get(link, {}).get(handle)

    def end(self, link: Link[Any, Any], handle: int) -> None:
        """The terminal message of a choice has come."""
        self._calls[link].pop(handle).end(handle)

    def link_up(self, link: Link[Any, Any]) -> None:
        self._calls[link] = {}
        self.peer = link.peer
        if not self.first_link.done():
            self.first_link.set_result(None)
        homeless, self._homeless = self._homeless, []
        for call in homeless:
            if call.open:
                self._place(call)

    def link_down(self, link: Link[Any, Any]) -> None:
        """Resumes the link's calls elsewhere, or as soon as a peer is back."""
        for call in dict.fromkeys(self._calls.pop(link).values()):
            self._place(call)

    def _place(self, call: CallT) -> None:
        if not self._calls:
            self._homeless.append(call)
            return
        link = min(self._calls, key=lambda link: len(self._calls[link]))
        self._calls[link].update(dict.fromkeys(call.open, call))
        link.put(self._submit_entry(call.next_submit()))
