"""A dispatcher over fake links: the test says when a peer connects, is lost or dies, and reads what was submitted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from services.options.common import RESUME_WAIT
from services.rpc.call import Call, StreamBroken
from services.rpc.columns import ITEM_BYTES, pack_u32
from services.rpc.dispatcher import Dispatcher
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2


class FakeCall(Call[engine_pb2.Submit]):
    """A call with one choice."""

    def __init__(self, name: str, dispatcher: "Dispatcher[FakeCall]") -> None:
        self.handle = dispatcher.new_handle()
        super().__init__(engine_pb2.Submit(request_id=name, choices=[pb.Choice(handle=self.handle)]))
        self.error: TandemError | None = None
        self.failed = asyncio.Event()

    def fail(self, error: TandemError) -> None:
        self.end(self.handle)
        self.error = error
        self.failed.set()

    def accept(self, numerics_id: str = "") -> None:
        """An engine accepts the call's choice."""
        self.record_accepted(engine_pb2.Accepted(handle=self.handle, numerics_id=numerics_id))

    def token(self) -> None:
        """Receives the next token of the call's choice."""
        num_tokens = len(self.open_choices[self.handle].token_ids) // ITEM_BYTES
        self.record_tokens(self.handle, num_tokens, pack_u32([7]))


class FakeLink:
    """A link to an engine. `submits` are the requests that the present peer has: name -> whether submitted alone."""

    peer_role = "engine"

    def __init__(self, dispatcher: Dispatcher[FakeCall]) -> None:
        self.dispatcher = dispatcher
        self.start_lock_held = self.start_lock_broken = False
        self.start_lock_ends_early = False  # the peer ends the grant before the caller does
        self.submits: dict[str, bool] = {}
        self.last_submit = engine_pb2.Submit()
        self.aborts: list[int] = []  # handles
        self.epoch = 0
        self.is_ready = self.is_served = True

    async def up(self, *, same: bool = False, numerics_id: str = "", **limits: int) -> None:
        """A peer connects: the `same` as before, or a new one."""
        self.epoch += not same
        facts = pb.EngineFacts(limits=pb.RequestLimits(**limits), numerics_id=numerics_id)
        self.peer = pb.Hello(epoch=self.epoch, engine=facts)
        self.dispatcher.link_up(self)  # type: ignore[arg-type]
        await settle()

    async def down(self, *, died: bool = True) -> None:
        self.submits = {}
        self.dispatcher.link_down(self, died=died)  # type: ignore[arg-type]
        await settle()

    async def restart(self, **limits: int) -> None:
        """The peer dies, and a new one connects."""
        await self.down()
        await self.up(**limits)

    def put(self, entry: Any) -> None:
        if isinstance(entry, engine_pb2.Submit):
            assert entry.alone == self.start_lock_held, "submitted alone without the start lock"
            self.submits[entry.request_id] = entry.alone
            self.last_submit = entry
        else:
            self.aborts.append(entry.handle)

    @contextlib.asynccontextmanager
    async def hold_start_lock(self) -> AsyncIterator[Callable[[], bool]]:
        if self.start_lock_broken:
            raise StreamBroken("the peer is gone")
        self.start_lock_held = True
        try:
            yield lambda: not self.start_lock_ends_early
        finally:
            self.start_lock_held = False


async def settle() -> None:
    """Runs all tasks until they wait for an event of the test."""
    for _ in range(20):
        await asyncio.sleep(0)


class FakeEdge:
    """A dispatcher over fake links, which are all down."""

    def __init__(self, num_links: int = 1, resume_wait: float = RESUME_WAIT) -> None:
        self.dispatcher: Dispatcher[FakeCall] = Dispatcher(lambda submit: submit, lambda abort: abort, resume_wait)
        self.links = [FakeLink(self.dispatcher) for _ in range(num_links)]

    def start(self, name: str) -> FakeCall:
        call = FakeCall(name, self.dispatcher)
        self.dispatcher.start(call)
        return call
