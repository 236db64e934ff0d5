"""Spare processes: a role's process that has loaded what it can and waits until another one of its role has ended.

The launcher keeps one spare per role (`Spare`). When a child ends, it tells the spare the options of its place and
passes the socket of the metrics server, in one message over a socket pair (--spare-fd); from then on the process is
that child. In the spare, `take_over` waits for the message, or `take_over_in_thread` in one without an event loop.
"""

import asyncio
import dataclasses
import json
import select
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from services.errors import Fatal
from services.machine import name_process
from services.options.common import SpareOptions
from services.process.child import Child
from services.process.progress_page import BEAT_SECONDS, Progress

WAITING_NAME, RUNNING_NAME = "tandem-spare", "tandem"  # what `ps -o comm` and `top` show
MAX_MESSAGE_BYTES = 8192
OptionsT = TypeVar("OptionsT", bound=SpareOptions)


async def take_over(options: OptionsT) -> OptionsT:
    """Waits in a spare process until it is needed; returns its options with the place that it takes. Returns other
    processes' options at once, unchanged.

    Raises Fatal if the launcher closes the socket pair instead.
    """
    if options.spare_fd is None:
        return options
    name_process(WAITING_NAME)
    with socket.socket(fileno=options.spare_fd) as told:
        await _readable(told)
        return _at_its_place(options, told)


def take_over_in_thread(options: OptionsT, progress: Progress) -> OptionsT:
    """As `take_over`, with beats of the calling thread instead of an event loop's while it waits."""
    if options.spare_fd is None:
        return options
    name_process(WAITING_NAME)
    with socket.socket(fileno=options.spare_fd) as told:
        progress.thread.beat()
        while not select.select([told], [], [], BEAT_SECONDS)[0]:
            progress.thread.beat()
        progress.thread.pause()
        return _at_its_place(options, told)


def _at_its_place(options: OptionsT, told: socket.socket) -> OptionsT:
    message, fds, *_ = socket.recv_fds(told, MAX_MESSAGE_BYTES, 1)
    if not fds:
        raise Fatal("the launcher needs this spare process no more")
    name_process(RUNNING_NAME)
    return dataclasses.replace(options, metrics_fd=fds[0], **json.loads(message))


async def _readable(waited: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(waited.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(waited.fileno())


@dataclass(frozen=True)
class Place:
    """Where a child of a role serves: the options that it alone has, and the listening socket of its metrics server."""

    role: str
    options: Mapping[str, str]
    metrics_fd: int


class Spare:
    """The launcher's end of one role's spare. `child` has its process once `start` was called."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.is_started = False
        self._argv, self._fds = child.argv, child.fds
        self._told: socket.socket | None = None

    @property
    def is_loaded(self) -> bool:
        child = self.child
        return self.is_started and child.restart_at is None and not child.watch.is_stopped and any(child.page.beats())

    def start(self, gently: bool = False) -> None:
        """Starts a new process; `gently`: it loads at a low priority. Raises Fatal if it cannot start."""
        self.close()
        try:
            self._told, end = socket.socketpair()
        except OSError as error:
            raise Fatal(f"the {self.child.name} cannot be started: {error}") from error
        with end:
            self.child.argv = [*self._argv, f"--spare-fd={end.fileno()}", *(["--load-gently"] if gently else [])]
            self.child.fds = [*self._fds, end.fileno()]
            self.child.spawn()
        self.is_started = True

    def become(self, child: Child, place: Place) -> bool:
        """Makes the process `child`'s, at its place, if it is ready: it has loaded what it can, for a loop of it has
        begun to beat. Returns False if it isn't."""
        if self._told is None or not self.is_loaded:
            return False
        try:
            socket.send_fds(self._told, [json.dumps(place.options).encode()], [place.metrics_fd])
        except OSError:  # it has ended just now
            return False
        child.swap(self.child)
        self.child.backoff = 0.0
        return True

    def close(self) -> None:
        if self._told is not None:
            self._told.close()
