"""The progress page: numbers in shared memory by which a process shows its launcher that it still works.

The process writes them, each from one thread, and waits for nothing. *Beats* count the turns of a loop: 0 while none
are expected (before the loop runs, or while it waits for what may take any time). *Work* counts requests, plans
or tokens that reached the process. *Busy until* is the time, in ns of the monotonic clock, up to which a step may keep
the worker from beating.
"""

import asyncio
import mmap
import os
import time

from services.machine import unnamed_file

BEAT_SECONDS = 0.5  # between two beats of an event loop, and the longest between two of another loop
LIMIT_SECONDS = 3.0  # without a beat or stopped by a signal for so long, a process counts as dead
_EVENT_LOOP, _THREAD, _WORK, _BUSY_UNTIL = range(4)  # places of the numbers, 8 bytes each
_LOOPS = (_EVENT_LOOP, _THREAD)
_BYTES = 32


class Beats:
    """The beats of one loop. `beat` and `pause` belong to the loop's thread, `is_alive` to any."""

    def __init__(self, page: "memoryview[int]", place: int) -> None:
        self._page = page
        self._place = place
        self._count = 0
        self._last = 0.0  # time.monotonic() of the last beat

    def beat(self) -> None:
        self._count += 1
        self._last = time.monotonic()
        self._page[self._place] = self._count

    def pause(self) -> None:
        """From now until the next beat, none is expected."""
        self._page[self._place] = 0

    def is_alive(self) -> bool:
        """Returns whether the last beat is younger than LIMIT_SECONDS, or none is expected."""
        return self._page[self._place] == 0 or time.monotonic() - self._last < LIMIT_SECONDS


class PageReader:
    """What a page says, to any of its readers."""

    def __init__(self, page: "memoryview[int]") -> None:
        self._page = page

    def beats(self) -> tuple[int, ...]:
        """Returns the beats of each loop; 0 where none are expected."""
        return tuple(self._page[place] for place in _LOOPS)

    def is_busy(self) -> bool:
        """Returns whether a step may keep the process from beating."""
        return self._page[_BUSY_UNTIL] > time.monotonic_ns()


class Progress(PageReader):
    """A process's own page: the one that it shares with its launcher, else one that it alone sees.

    `event_loop` has the beats of the role's event loop, `thread` those of another loop: the engine's busy loop, the
    worker's steps.
    """

    def __init__(self, fd: int | None = None) -> None:
        """`fd`: of the launcher's page (--progress-fd), which is closed; None: the process was started alone."""
        page = _mapped(fd) if fd is not None else memoryview(bytearray(_BYTES)).cast("Q")
        if fd is not None:
            os.close(fd)
        super().__init__(page)
        self.event_loop = Beats(page, _EVENT_LOOP)
        self.thread = Beats(page, _THREAD)

    def beat_in_event_loop(self) -> None:
        """Beats now and every BEAT_SECONDS while the running event loop runs."""
        self.event_loop.beat()
        asyncio.get_running_loop().call_later(BEAT_SECONDS, self.beat_in_event_loop)

    def worked(self) -> None:
        """Counts work: a request, plan or token has reached this process. Called from one thread only."""
        self._page[_WORK] += 1

    def busy_for(self, seconds: float) -> None:
        """No beat is expected for so long; 0: from now on they are."""
        self._page[_BUSY_UNTIL] = time.monotonic_ns() + int(seconds * 1e9) if seconds else 0

    def is_alive(self) -> bool:
        """Returns whether each loop of this process makes progress. May be called from any thread."""
        return self.is_busy() or (self.event_loop.is_alive() and self.thread.is_alive())


class ProgressPage(PageReader):
    """The launcher's end of the page of one child at a time. `fd` is what the child inherits."""

    def __init__(self) -> None:
        self.fd = unnamed_file("progress-page")
        os.truncate(self.fd, _BYTES)
        super().__init__(_mapped(self.fd))

    def clear(self) -> None:
        """Zeroes the page, for the next child. None may be using it."""
        for place in range(len(self._page)):
            self._page[place] = 0

    def has_worked(self) -> bool:
        return self._page[_WORK] > 0

    def close(self) -> None:
        os.close(self.fd)


def _mapped(fd: int) -> "memoryview[int]":
    return memoryview(mmap.mmap(fd, _BYTES)).cast("Q")
