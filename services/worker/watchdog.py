"""Ends this process when a step overruns its deadline, whatever it is stuck in: Python, a lock, C with the GIL held.

The kernel's interval timer raises SIGALRM; faulthandler's handler, which needs no GIL, writes every thread's stack to
stderr, and then the signal's own effect ends the process. Two system calls a step, about 2 µs.
"""

import faulthandler
import signal


class Watchdog:
    def __init__(self) -> None:
        faulthandler.register(signal.SIGALRM, chain=True)

    def watch(self, deadline_ms: int) -> None:
        """A step begins, and the one before it is over; 0: nothing runs, or it may take for ever."""
        signal.setitimer(signal.ITIMER_REAL, deadline_ms / 1000)
