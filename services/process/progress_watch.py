"""Finds a child that makes no progress: one whose loop has stopped to beat, or that a signal has stopped.

Counts only time in which the launcher itself ran: a machine that stood still says nothing about its processes.
"""

import contextlib
import os
import threading
import time

from services.process.progress_page import LIMIT_SECONDS, PageReader

TELL_SECONDS = 0.5  # that a line may take which nothing may read
LOOK_SECONDS = 0.25  # between two looks
MAX_COUNTED_SECONDS = 2 * LOOK_SECONDS  # of the time since the last look: the launcher has not run for the rest
# A child is found out within LIMIT_SECONDS of its last beat: between them pass up to a look until the count begins, and
# one until it is read.
COUNTED_SECONDS = LIMIT_SECONDS - 2 * LOOK_SECONDS


class ProgressWatch:
    """Watches the process that has `page`. One `look` follows the other; `reset` is called when a new child starts."""

    def __init__(self, page: PageReader) -> None:
        self._page = page
        self.reset()

    def reset(self) -> None:
        self._seen = self._page.beats()
        self._silent = [0.0] * len(self._seen)  # seconds without a beat, of each loop
        self._stopped: float | None = None  # seconds since the child was found stopped; None: it runs

    @property
    def is_stopped(self) -> bool:
        """Whether the child was stopped by a signal at the last look."""
        return self._stopped is not None

    @property
    def stopped_seconds(self) -> float:
        """Seconds for which the child has been seen stopped; 0 if it runs."""
        return self._stopped or 0.0

    def look(self, seconds: float, *, is_stopped: bool) -> str:
        """Returns what has been wrong with the child for COUNTED_SECONDS, or "".

        `seconds`: since the last look. `is_stopped`: a signal has stopped the child.
        """
        seconds = min(seconds, MAX_COUNTED_SECONDS)
        self._count_stopped(seconds, is_stopped)
        self._count_silence(seconds)
        found = max(self.stopped_seconds, *self._silent)
        if found < COUNTED_SECONDS:
            return ""
        return f"has {'been stopped by a signal' if is_stopped else 'made no progress'} for {found:.1f} s"

    def _count_stopped(self, seconds: float, is_stopped: bool) -> None:
        if not is_stopped:
            self._stopped = None
        else:
            self._stopped = 0.0 if self._stopped is None else self._stopped + seconds

    def _count_silence(self, seconds: float) -> None:
        seen, is_busy = self._page.beats(), self._page.is_busy()
        for loop, (beats, before) in enumerate(zip(seen, self._seen, strict=True)):
            is_silent = beats == before and beats != 0 and not is_busy
            self._silent[loop] = self._silent[loop] + seconds if is_silent else 0.0
        self._seen = seen


def _write(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, line.encode())


def end_if_hung(page: PageReader) -> None:
    """Starts a thread that ends this process, with status 1, when a loop of it has not run for COUNTED_SECONDS: as a
    launcher would. For a process that was started alone, by a container's runtime for example, which restarts what
    ends, not what hangs. A thread that holds Python's global lock keeps it from looking."""

    def run() -> None:
        watch, looked = ProgressWatch(page), time.monotonic()
        while True:
            time.sleep(LOOK_SECONDS)
            before, looked = looked, time.monotonic()
            if fault := watch.look(looked - before, is_stopped=False):
                # A lock of the log, or stderr itself, may be what hangs.
                tell = threading.Thread(target=_write, args=(f"this process {fault} and ends\n",), daemon=True)
                tell.start()
                tell.join(TELL_SECONDS)
                os._exit(1)

    threading.Thread(target=run, name="progress-watch", daemon=True).start()
