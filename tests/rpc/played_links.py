"""A dispatcher over links that a test plays: their peers come, go and die as it says, and note what they are asked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from services.rpc.call import Call, StreamBroken
from services.rpc.columns import ITEM_BYTES, pack_u32
from services.rpc.dispatcher import Dispatcher
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2


class FakeCall(Call[engine_pb2.Submit]):
    def __init__(self, name: str, dispatcher: "Dispatcher[FakeCall]") -> None:
        self.handle = dispatcher.new_handle()
        super().__init__(engine_pb2.Submit(request_id=name, choices=[pb.Choice(handle=self.handle)]))
        self.error: TandemError | None = None

    def fail(self, error: TandemError) -> None:
        self.end(self.handle)
        self.error = error

    def token(self) -> None:
        self.record_tokens(self.handle, len(self.open_choices[self.handle].token_ids) // ITEM_BYTES, pack_u32([7]))


class FakeLink:
    """A peer that notes what it is asked to do. `start_lock_held` is whether this caller has the start lock."""

    peer_role = "engine"

    def __init__(self, dispatcher: Dispatcher[FakeCall]) -> None:
        self.dispatcher = dispatcher
        self.start_lock_held = self.start_lock_broken = False
        self.has: dict[str, bool] = {}  # name -> alone
        self.epoch = 0

    async def up(self, *, same: bool = False) -> None:
        self.epoch += not same
        self.peer = pb.Hello(epoch=self.epoch)
        self.dispatcher.link_up(self)  # type: ignore[arg-type]
        await settle()

    async def down(self, *, died: bool = True) -> None:
        self.has = {}
        self.dispatcher.link_down(self, died=died)  # type: ignore[arg-type]
        await settle()

    async def dies(self) -> None:
        await self.down()
        await self.up()

    def put(self, entry: Any) -> None:
        if isinstance(entry, engine_pb2.Submit):
            assert entry.alone == self.start_lock_held, "whoever starts alone has the start lock"
            self.has[entry.request_id] = entry.alone

    @contextlib.asynccontextmanager
    async def hold_start_lock(self) -> AsyncIterator[Callable[[], bool]]:
        if self.start_lock_broken:
            raise StreamBroken("the peer is gone")
        self.start_lock_held = True
        try:
            yield lambda: True
        finally:
            self.start_lock_held = False


async def settle() -> None:
    """Whatever can go on without news has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


class Bench:
    """A dispatcher over fake links, the first of them up."""

    def __init__(self, num_links: int = 1) -> None:
        self.dispatcher: Dispatcher[FakeCall] = Dispatcher(lambda submit: submit, lambda abort: abort)
        self.links = [FakeLink(self.dispatcher) for _ in range(num_links)]

    def start(self, name: str) -> FakeCall:
        call = FakeCall(name, self.dispatcher)
        self.dispatcher.start(call)
        return call
