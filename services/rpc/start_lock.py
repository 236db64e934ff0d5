"""The floor: a lock under which one request of one caller starts alone. Meanwhile no request of another caller starts.

The grant ends with the request's first token or its end, or after IDLE_SECONDS without such a request, however long the
caller keeps its call open. Between two grants lies a pause as long as the first one, REST_SECONDS at most, in which the
other callers' requests start.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc

from services.rpc.generated import common_pb2 as pb

log = logging.getLogger(__name__)
IDLE_SECONDS = 0.5  # a grant ends after this time without a request that starts alone
REST_SECONDS = 0.5
Caller = tuple[str, int]  # instance and epoch
CallerKey = tuple[str, int, int]  # and its handle


class StartLock:
    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next = 0.0  # no grant before this moment, on the event loop's clock
        self._holder: Caller | None = None
        self._free = asyncio.Event()
        self._used = False  # a request has started alone under this grant
        self._alone: set[CallerKey] = set()  # choices of that request, until one has a token
        self._moved = asyncio.Event()

    async def hold(
        self,
        caller: pb.Hello,
        context: grpc.aio.ServicerContext[Any, Any],
        quiet: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        """Grants the lock in order of arrival, after `quiet` returns. Returns when the grant or the call ends."""
        with contextlib.suppress(asyncio.CancelledError):  # the call ended; grpc would print a traceback
            clock = asyncio.get_running_loop().time
            async with self._turn:
                await asyncio.sleep(self._next - clock())
                began = clock()
                self._holder, self._used = (caller.instance, caller.epoch), False
                self._free.clear()
                try:
                    if quiet is not None:
                        await quiet()
                    await context.write(pb.StartLockGranted())
                    await self._until_idle()
                finally:
                    self._holder = None
                    self._alone.clear()
                    self._free.set()
                    self._next = clock() + min(clock() - began, REST_SECONDS)

    async def may_start(self, caller: pb.Hello) -> None:
        """Waits until no other caller holds it."""
        while self._holder is not None and self._holder != (caller.instance, caller.epoch):
            await self._free.wait()

    def start_alone(self, caller: pb.Hello, handles: Iterable[int]) -> bool:
        """Returns whether a request of this caller starts alone: the first one under its grant does."""
        if self._holder != (caller.instance, caller.epoch) or self._used:
            return False
        self._used = True
        self._alone = {(caller.instance, caller.epoch, handle) for handle in handles}
        self._moved.set()
        return True

    def on_first_token(self, key: CallerKey) -> None:
        """A choice has its first token, so its request has started."""
        if key in self._alone:
            self._alone.clear()
            self._moved.set()

    def on_end(self, key: CallerKey) -> None:
        """A choice ended or was aborted."""
        if key in self._alone:
            self._alone.discard(key)
            self._moved.set()

    async def _until_idle(self) -> None:
        while True:
            self._moved.clear()
            try:
                async with asyncio.timeout(None if self._alone else IDLE_SECONDS):
                    await self._moved.wait()
            except TimeoutError:
                log.info("%s held the start lock for %g s without using it: released", self._holder, IDLE_SECONDS)
                return
