"""Distributes a caller's calls over its links: a shim's over tokenizers, a tokenizer's over engines.

A call goes to the least loaded link. When a link goes down, its calls resume on other links. While no link is up, new
calls wait behind them, within the peer's limit on queued requests, as long as services/rpc/outage.py says; a call that
an engine has accepted waits without a limit.
If the peer died, each of its calls that was still starting there gets a *strike*: it had no new token of each choice
yet, or too few after earlier deaths (services/rpc/call.py). A call with SUSPECT_AT strikes is a *suspect*:
services/rpc/suspect_retries.py starts suspects one at a time, so that the next death has one possible cause.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from services.options.common import RESUME_WAIT
from services.rpc.call import Call
from services.rpc.errors import RETRY_AFTER_SECONDS, TandemError, other_numerics, too_much
from services.rpc.generated import common_pb2 as pb
from services.rpc.handles import Handles
from services.rpc.link import Link
from services.rpc.outage import Outage
from services.rpc.suspect_retries import SUSPECT_AT, SuspectRetries

CallT = TypeVar("CallT", bound=Call[Any])


class Dispatcher(Generic[CallT]):
    """The links of this process and the calls on them.

    `submit_entry` and `abort_entry` return a submit or an abort wrapped in the entry message of these links.
    `resume_wait`: seconds that new calls wait for a link.
    """

    def __init__(
        self,
        submit_entry: Callable[[Any], Any],
        abort_entry: Callable[[pb.Abort], Any],
        resume_wait: float = RESUME_WAIT,
    ) -> None:
        self._resume_wait = resume_wait
        self._submit_entry = submit_entry
        self._abort_entry = abort_entry
        self._handles = Handles(self)
        self._calls: dict[Link[Any, Any], dict[int, CallT]] = {}  # for each link that is up: handle -> call
        self._pending: list[CallT] = []  # calls that wait for a link
        self._epochs: dict[Link[Any, Any], int] = {}  # of each link's last peer
        self._struck: dict[Link[Any, Any], list[CallT]] = {}  # calls with a strike from the link's last loss
        self._retries = SuspectRetries(self._calls, self._submit_alone, self._place, self._place_pending)
        self.outage = Outage(resume_wait, "no process that could answer", self._fail_waiting)
        self.peer: pb.Hello | None = None  # the hello of the last peer that connected, with the model's facts
        self.first_link = asyncio.get_running_loop().create_future()  # done once a link has been up
        # Set when a link comes up or goes down, or its peer's readiness changes; its only reader clears it.
        self.links_changed = asyncio.Event()

    def new_handle(self) -> int:
        return self._handles.new()

    def __contains__(self, handle: object) -> bool:
        """Returns whether an open choice of a call has this handle: on a link, waiting for one, or a suspect."""
        placed = any(handle in calls for calls in self._calls.values())
        return placed or handle in self._retries or any(handle in call.open_choices for call in self._pending)

    @property
    def is_ready(self) -> bool:
        """Whether a token could be made now, by what the peers said last."""
        return any(link.is_ready for link in self._calls)

    @property
    def is_served(self) -> bool:
        """Whether new calls are accepted: by a peer, by what it said last, or because the next peer is waited for."""
        return self.outage.is_waiting or any(link.is_served for link in self._calls)

    def start(self, call: CallT, *, resumed: bool = False, alone: bool = False) -> None:
        """Submits a call, or lets it wait for a link; `alone` makes it a suspect.

        Raises TandemError for a call that is not `resumed` and must wait for a link: UNAVAILABLE when no link is up and
        none is expected soon, or no peer accepts calls, RESOURCE_EXHAUSTED when too many wait.
        """
        if not resumed and all(link is self._retries.reserved_link for link in self._calls):
            self._check_waiting(call)
        if alone:
            call.strikes = SUSPECT_AT
        self._place(call)

    def abort(self, call: CallT) -> None:
        """Aborts the open choices of a call. Their terminal messages, if any arrive, are dropped."""
        if call in self._pending:
            self._pending.remove(call)
        self._retries.remove(call)
        for handle in call.open_choices:
            self._abort_handle(handle)
        call.open_choices.clear()
        self._retries.notify()

    def abort_choice(self, call: CallT, handle: int) -> None:
        """Aborts one choice, because the caller needs no more of its tokens."""
        call.end(handle)
        self._abort_handle(handle)
        self._retries.notify()

    def find(self, link: Link[Any, Any], handle: int) -> CallT | None:
        """Returns the call that has this handle open on this link; None for a handle that ended or was aborted."""
        return self._calls.get(link, {}).get(handle)

    def end(self, link: Link[Any, Any], handle: int) -> None:
        """Closes a choice: its terminal message arrived on this link. Raises KeyError if it is not open there."""
        self._calls[link].pop(handle).end(handle)
        self._retries.notify()

    def link_up(self, link: Link[Any, Any]) -> None:
        """Adds a link that has a peer, and places the calls that wait for a link. If the peer's epoch is that of the
        link's last peer, only the stream was lost: the strikes of that loss are taken back."""
        assert link.peer is not None
        struck = self._struck.pop(link, [])
        if self._epochs.get(link) == link.peer.epoch:
            for call in struck:
                call.strikes = max(0, call.strikes - 1)
        self._epochs[link] = link.peer.epoch
        self._calls[link] = {}
        self.links_changed.set()
        self.outage.end()
        self.peer = link.peer
        if not self.first_link.done():
            self.first_link.set_result(None)
        self._retries.link_up(link)
        self._place_pending()
        self._retries.notify()

    def link_down(self, link: Link[Any, Any], *, died: bool) -> None:
        """Resumes the link's calls on other links, or after a reconnect. If the peer may have `died`, each call that
        was starting there gets a strike."""
        self._struck[link] = struck = []
        self.links_changed.set()
        was_alone = False
        for call in dict.fromkeys(self._calls.pop(link).values()):
            if self._retries.link_down(call, died=died):
                was_alone = True
                continue
            if died and call.record_death():
                struck.append(call)
            self._place(call)
        if died and not was_alone:
            self._retries.record_death()
        if not self._calls:
            self.outage.begin()
        self._retries.notify()

    async def peer_died(self, link: Link[Any, Any], epoch: int) -> bool:
        """Returns whether the link's peer with this epoch has died, as SuspectRetries.peer_died."""
        return await self._retries.peer_died(link, epoch)

    def _check_waiting(self, call: CallT) -> None:
        """Raises TandemError if a new call cannot wait for a link."""
        if not self.is_served:
            raise self.outage.error()
        assert self.peer is not None
        waiting = sum(len(other.open_choices) for other in self._pending)
        limit = self.peer.engine.limits.max_num_queued_reqs
        if limit and waiting + len(call.open_choices) > limit:
            raise too_much(
                f"{waiting} requests wait for a process that restarts: {len(call.open_choices)} more would exceed"
                f" max_num_queued_reqs ({limit})",
                RETRY_AFTER_SECONDS,
            )

    def readiness_changed(self) -> None:
        """A peer's readiness has changed. If no peer accepts calls, those that wait here because the only link is
        reserved for suspects end as they would there."""
        self.links_changed.set()
        if not self.is_served:
            self._fail_waiting(self.outage.error())

    def _fail_waiting(self, error: TandemError) -> None:
        """Ends the calls that wait for a link and that no engine has accepted."""
        for call in [*self._pending, *self._retries.queued]:
            if call.open_choices and not call.is_accepted:
                self._retries.remove(call)
                call.fail(error)
        self._pending = [call for call in self._pending if call.open_choices]

    def _place(self, call: CallT) -> None:
        """Submits a call on the least loaded link that can continue it, a ready one if there is one; else it waits, or
        ends if nothing new waits any more."""
        if self.outage.is_given_up and not call.is_accepted:
            call.fail(self.outage.error())
            return
        if call.strikes >= SUSPECT_AT:
            self._retries.add(call)
            return
        links = [link for link in self._calls if link is not self._retries.reserved_link and _fits(call, link)]
        if links:
            self._submit(min(links, key=lambda link: (not link.is_ready, len(self._calls[link]))), call)
            return
        self._pending.append(call)
        if any(not _fits(call, link) for link in self._calls):
            asyncio.get_running_loop().call_later(self._resume_wait, self._fail_unfit, call)

    def _fail_unfit(self, call: CallT) -> None:
        """Ends a call that still waits, while all peers would make other tokens than it began with."""
        if call in self._pending and self._calls and not any(_fits(call, link) for link in self._calls):
            self._pending.remove(call)
            call.fail(other_numerics(call.numerics_id))

    def _place_pending(self) -> None:
        pending, self._pending = self._pending, []
        for call in pending:
            if call.open_choices:
                self._place(call)

    def _submit(self, link: Link[Any, Any], call: CallT, *, alone: bool = False) -> None:
        self._calls[link].update(dict.fromkeys(call.open_choices, call))
        link.put(self._submit_entry(call.next_submit(alone=alone, on_cleared=self._retries.notify)))

    def _submit_alone(self, link: Link[Any, Any], call: CallT) -> None:
        self._submit(link, call, alone=True)

    def _abort_handle(self, handle: int) -> None:
        for link, calls in self._calls.items():
            if calls.pop(handle, None) is not None:
                link.put(self._abort_entry(pb.Abort(handle=handle)))


def _fits(call: Call[Any], link: Link[Any, Any]) -> bool:
    """Returns whether the link's peer makes the tokens that the call began with."""
    return not call.numerics_id or link.peer is None or call.numerics_id == link.peer.engine.numerics_id
