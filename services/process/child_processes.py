"""The child processes of `tandem serve`: spawns them, reports exits, restarts with a backoff, ends them all.

Until all are ready, the exit of one child ends all. From then on a child that exits is restarted, and its peers resume
their requests. Every child holds one end of the parent-death pipe: when this process dies, even by SIGKILL, the
children exit as well. Knows nothing of what the roles do.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.errors import Fatal
from services.machine import authority, stopped_children, watch_ends
from services.machine.child_ends import ChildEnds
from services.machine.listen import listen
from services.options.command_line import inherited_environment, role_argv, role_environment

log = logging.getLogger(__name__)
STOP_SECONDS = 3.0  # from SIGTERM to SIGKILL
READY_POLL_SECONDS = 0.05
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 10.0
STABLE_SECONDS = 60.0  # a child that ran for so long is restarted without a backoff
STOPPED_POLL_SECONDS = 1.0
STOPPED_SECONDS = 10.0  # a child that a signal has stopped for so long is killed


class ChildFailed(Exception):
    """A child exited with an error status. The child has printed the reason, so this message is only logged."""


@dataclass
class Child:
    """How to start one child, and its present process. `fds` are passed to each process and stay open here."""

    argv: list[str]
    env: dict[str, str]
    fds: list[int]
    process: "subprocess.Popen[bytes]"
    started: float  # time.monotonic() of the last start
    backoff: float = 0.0  # seconds from its next exit to the restart
    stopped_since: float | None = None  # time.monotonic() when it was first found stopped


@dataclass
class ChildProcesses:
    """Child processes by name. As a context manager it ends them all at exit, also after an exception."""

    children: dict[str, Child] = field(default_factory=dict)
    metrics_peers: list[str] = field(default_factory=list)  # NAME=host:port of each metrics server
    explain: Callable[[str, int], str] = lambda name, returncode: ""  # what the log adds about an exit

    def __enter__(self) -> "ChildProcesses":
        self._child_end, self._own_end = os.pipe()  # the parent-death pipe
        self._metrics_sockets: list[socket.socket] = []  # stay open while a child restarts
        return self

    def __exit__(self, *exception: object) -> None:
        self._end_all()
        os.close(self._child_end)
        os.close(self._own_end)
        for metrics_socket in self._metrics_sockets:
            metrics_socket.close()

    def start_with_metrics(self, role: str, values: dict[str, Any], *addresses: str, fds: Sequence[int] = ()) -> None:
        """Starts a role as `start` does, with a metrics server on a free port of the loopback address.

        `fds` are passed to the child. Adds the server to `metrics_peers`. Raises Fatal if no port can be bound or the
        role cannot start.
        """
        front = listen(None, 0)
        self._metrics_sockets.append(front)
        name = self.start(role, values, *addresses, f"--metrics-fd={front.fileno()}", fds=[front.fileno(), *fds])
        self.metrics_peers.append(f"{name}={authority(*front.getsockname()[:2])}")

    def start(self, role: str, values: dict[str, Any], *addresses: str, fds: list[int] | None = None) -> str:
        """Starts a role and returns the child's name. `values`: settings by name; `addresses`: more flags, as they are.

        Raises Fatal if the role cannot start.
        """
        argv = ["services.cli", role, *role_argv(role, values), *addresses]
        return self.start_module(role, argv, role_environment(role, values), fds or [])

    def start_module(self, kind: str, argv: list[str], variables: dict[str, str], fds: list[int]) -> str:
        """Starts `python -m ARGV` and returns the child's name: `kind`, or `kind`-1, -2, ...

        `variables` are added to the environment; `fds` are passed to the child. The module must accept
        --parent-death-fd. Raises as `start` does.
        """
        argv = [sys.executable, "-m", *argv, f"--parent-death-fd={self._child_end}"]
        env = {**inherited_environment(), **variables}
        count = sum(name.startswith(kind) for name in self.children)
        name = f"{kind}-{count}" if count else kind
        passed = [self._child_end, *fds]
        self.children[name] = Child(argv, env, passed, _spawn(name, argv, env, passed), time.monotonic())
        return name

    def supervise(self, ready: Callable[[], bool]) -> None:
        """Never returns. Raises as `raise_if_ended` until `ready()` is True; then restarts children that exit, and
        raises Fatal if one cannot be started."""
        started = min(child.started for child in self.children.values())
        with contextlib.closing(watch_ends()) as ends:
            for name, child in self.children.items():
                ends.add(name, child.process)
            while not ready():
                ends.wait(READY_POLL_SECONDS)
                self.raise_if_ended()
            seconds = time.monotonic() - started
            log.info("all processes are ready after %.1f s; from now on a process that exits is restarted", seconds)
            self._restart_forever(ends)

    def _restart_forever(self, ends: ChildEnds) -> None:
        restart_at: dict[str, float] = {}  # time.monotonic() of the restart, by name of the exited child
        while True:
            wake_up = min([time.monotonic() + STOPPED_POLL_SECONDS, *restart_at.values()])
            for name in ends.wait(wake_up - time.monotonic()):
                restart_at[name] = time.monotonic() + self._report_exit(name)
            self._kill_stopped()
            for name in [name for name, moment in restart_at.items() if moment <= time.monotonic()]:
                del restart_at[name]
                child = self.children[name]
                child.process, child.started = _spawn(name, child.argv, child.env, child.fds), time.monotonic()
                ends.add(name, child.process)

    def _report_exit(self, name: str) -> float:
        """Logs the exit of a child and returns the seconds until its restart.

        0 for the first exit, and after the child ran for STABLE_SECONDS. It doubles with each other exit, from
        FIRST_BACKOFF_SECONDS to MAX_BACKOFF_SECONDS.
        """
        child = self.children[name]
        returncode = child.process.wait()
        if time.monotonic() - child.started >= STABLE_SECONDS:
            child.backoff = 0.0
        backoff = child.backoff
        child.backoff = min(max(2 * backoff, FIRST_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)
        ended = _how_it_ended(returncode) + self.explain(name, returncode)
        log.error("the %s %s; it is restarted in %.1f s", name, ended, backoff)
        return backoff

    def _kill_stopped(self) -> None:
        """Kills children that have been stopped (SIGSTOP) for STOPPED_SECONDS: only SIGKILL can end them."""
        stopped = stopped_children([child.process.pid for child in self.children.values()])
        for name, child in self.children.items():
            if child.process.pid not in stopped:
                child.stopped_since = None
            elif child.stopped_since is None:
                child.stopped_since = time.monotonic()
            elif time.monotonic() - child.stopped_since >= STOPPED_SECONDS:
                log.error("the %s has been stopped by a signal for %.0f s; it is killed", name, STOPPED_SECONDS)
                child.process.kill()
                child.stopped_since = None

    def hang_up(self, name: str) -> None:
        """Sends SIGHUP to a child, if it runs."""
        self.children[name].process.send_signal(signal.SIGHUP)

    def raise_if_ended(self) -> None:
        """Raises ChildFailed if a child exited with an error status, Fatal if it was killed or exited with status 0."""
        exited = {name: code for name, child in self.children.items() if (code := child.process.poll()) is not None}
        if not exited:
            return
        # A killed child (negative code) is reported first: the others may have failed because of it.
        name, code = min(exited.items(), key=lambda item: item[1])
        ended = f"{_how_it_ended(code)} before the server was ready{self.explain(name, code)}"
        message = f"the {name} {ended}; all processes are stopped"
        raise ChildFailed(message) if code > 0 else Fatal(message)

    def _end_all(self) -> None:
        for child in self.children.values():
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for name, child in self.children.items():
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("the %s did not exit within %.0f s of SIGTERM; it is killed", name, STOP_SECONDS)
                child.process.kill()
                child.process.wait()


def _spawn(name: str, argv: list[str], env: dict[str, str], fds: list[int]) -> "subprocess.Popen[bytes]":
    """Starts a process in its own session: Ctrl-C reaches the launcher only. Raises Fatal if it cannot start.

    SIGHUP is blocked in it until it unblocks it: one that comes before the child has a handler must not end it.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, pass_fds=fds, start_new_session=True)
    except (OSError, ValueError) as error:  # an option too long for a command line, or with a NUL in it
        raise Fatal(f"the {name} cannot be started: {error}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _how_it_ended(returncode: int) -> str:
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"exited with status {returncode}"
