"""Kills this process if a step exceeds its deadline, whether it hangs in Python, on a lock, or in C with the GIL held.

setitimer raises SIGALRM. faulthandler's handler, which needs no GIL, writes every thread's stack to stderr; then the
signal's default action ends the process. Two system calls per step, about 2 µs.
"""

import faulthandler
import signal

from services.process.progress_page import Progress

GRACE_SECONDS = 2.0  # after the deadline, in which the signal ends the process before its launcher does


class Watchdog:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        faulthandler.register(signal.SIGALRM, chain=True)

    def watch(self, deadline_ms: int) -> None:
        """Replaces the deadline, in milliseconds from now, for the end of the running step. 0: no deadline."""
        seconds = deadline_ms / 1000
        self._progress.busy_for(seconds + GRACE_SECONDS if seconds else 0)
        signal.setitimer(signal.ITIMER_REAL, seconds)
