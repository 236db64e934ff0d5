"""The callee's start lock: while one caller holds it, no request of another caller starts in this process.

A caller takes it to start one suspect alone (services/rpc/suspect_retries.py). The grant ends with the caller's
HoldStartLock call, or when none of the caller's requests has been starting alone for IDLE_SECONDS. If a request of
another caller waited for that, there is a pause before the next grant, as long as the last one took, at most
MAX_PAUSE_SECONDS: the others' requests start. Without, many suspects of one caller start one right after the other.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc

from services.rpc.generated import common_pb2 as pb

log = logging.getLogger(__name__)
IDLE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 0.5
Caller = tuple[str, int]  # instance and epoch
CallerKey = tuple[str, int, int]  # instance, epoch and handle


class StartLock:
    def __init__(self) -> None:
        self._queue = asyncio.Lock()  # of the callers that ask for a grant, in order of arrival
        self._next_grant = 0.0  # earliest time of the next grant, on the event loop's clock
        self._holder: Caller | None = None
        self._released = asyncio.Event()
        self._used = False  # a request has started alone under this grant
        self._has_delayed = False  # another caller's request has waited for the end of this grant
        self._alone: set[CallerKey] = set()  # choices of that request that have no token yet
        self._changed = asyncio.Event()

    async def hold(
        self,
        caller: pb.Hello,
        context: grpc.aio.ServicerContext[Any, Any],
        before_grant: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        """Grants the lock to callers in order of arrival. Returns when the grant or the call ends. `before_grant` is
        awaited when other callers' requests no longer start, before the StartLockGranted message."""
        with contextlib.suppress(asyncio.CancelledError):  # the call ended; grpc would print a traceback
            clock = asyncio.get_running_loop().time
            async with self._queue:
                await asyncio.sleep(self._next_grant - clock())
                began = clock()
                self._holder, self._used, self._has_delayed = (caller.instance, caller.epoch), False, False
                self._released.clear()
                try:
                    if before_grant is not None:
                        await before_grant()
                    await context.write(pb.StartLockGranted())
                    await self._grant_ends()
                finally:
                    self._holder = None
                    self._alone.clear()
                    self._released.set()
                    self._next_grant = clock() + min(clock() - began, MAX_PAUSE_SECONDS) * self._has_delayed

    async def may_start(self, caller: pb.Hello) -> None:
        """Waits until no caller but this one holds the lock."""
        while self._holder is not None and self._holder != (caller.instance, caller.epoch):
            self._has_delayed = True
            await self._released.wait()

    def start_alone(self, caller: pb.Hello, handles: Iterable[int]) -> bool:
        """Registers the request and returns True if it is the caller's first one under its grant; else returns False.

        A registered request starts alone. `handles` are those of its choices.
        """
        if self._holder != (caller.instance, caller.epoch) or self._used:
            return False
        self._used = True
        self._alone = {(caller.instance, caller.epoch, handle) for handle in handles}
        self._changed.set()
        return True

    def on_start(self, key: CallerKey) -> None:
        """Removes a choice that has its first token, has ended or was aborted, from the request that starts alone."""
        if key in self._alone:
            self._alone.discard(key)
            self._changed.set()

    async def _grant_ends(self) -> None:
        """Returns when no request has been starting alone for IDLE_SECONDS."""
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(None if self._alone else IDLE_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                log.info(
                    "start lock released: no request of %s was starting alone for %g s", self._holder, IDLE_SECONDS
                )
                return
