"""One child process of the launcher: how it is started, again and again, and how its exit reads in the log."""

import signal
import subprocess
from dataclasses import dataclass, field

from services.errors import Fatal
from services.process.progress_page import ProgressPage
from services.process.progress_watch import ProgressWatch


@dataclass
class Child:
    """How to start one child, and its present process. `fds` are passed to each process and stay open here."""

    name: str
    argv: list[str]
    env: dict[str, str]
    fds: list[int]
    backoff: float = 0.0  # seconds from its next exit to the restart
    restart_at: float | None = None  # time.monotonic() of the next start, after an exit; None: a process runs
    is_ending: bool = False  # the launcher ends it: its exit is no fault, and it is not restarted
    is_replaced: bool = False  # a reload ends it: its exit is no fault
    fault: str = ""  # why the launcher has killed the present process
    page: ProgressPage = field(default_factory=ProgressPage)

    def __post_init__(self) -> None:
        self.watch = ProgressWatch(self.page)
        self.process: subprocess.Popen[bytes]  # set by `spawn`

    def spawn(self) -> None:
        """Starts a process in its own session: Ctrl-C reaches the launcher only. Raises Fatal if it cannot start.

        SIGHUP is blocked in it until it unblocks it: one that comes before the child has a handler must not end it.
        """
        self.page.clear()
        self.watch.reset()
        self.fault, self.restart_at, self.is_replaced = "", None, False
        argv, fds = [*self.argv, f"--progress-fd={self.page.fd}"], [*self.fds, self.page.fd]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            self.process = subprocess.Popen(
                argv, env=self.env, stdin=subprocess.DEVNULL, pass_fds=fds, start_new_session=True
            )
        except (OSError, ValueError) as error:  # an option too long for a command line, or with a NUL in it
            raise Fatal(f"the {self.name} cannot be started: {error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def swap(self, other: "Child") -> None:
        """Exchanges the processes of both, with their progress."""
        self.process, other.process = other.process, self.process
        self.page, other.page = other.page, self.page
        self.watch, other.watch = other.watch, self.watch
        self.fault, other.fault = other.fault, self.fault
        self.restart_at, other.restart_at = other.restart_at, self.restart_at


def how_it_ended(returncode: int) -> str:
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"exited with status {returncode}"
