"""The child processes of `tandem serve`: spawns them, reports exits, restarts with a backoff, ends them all.

Until all are ready, the exit of one child ends all. From then on a child that exits is restarted, and its peers resume
their requests; one that makes no progress, or that a signal has stopped, is killed first (progress_watch.py). Every
child holds one end of the parent-death pipe: when this process dies, even by SIGKILL, the children exit as well. Knows
nothing of what the roles do.
"""

import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from services.errors import Fatal
from services.machine import authority, reap_orphans, stopped_children, watch_ends
from services.machine.listen import listen
from services.options.command_line import inherited_environment, role_argv, role_environment
from services.process.child import Child, how_it_ended
from services.process.progress_watch import LOOK_SECONDS
from services.process.shell import HAND_OVER
from services.process.spare import Place, Spare

log = logging.getLogger(__name__)
STOP_SECONDS = 3.0  # from SIGTERM to SIGKILL
READY_POLL_SECONDS = 0.05
SPARE_DELAY_SECONDS = 1.0  # from "all ready", or a restart, to the start of a spare: it must not delay the others
CALM_SECONDS = 60.0  # after a fault; then a spare loads at a low priority, because no death is expected soon
_ENDED = object()
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 10.0


class ChildFailed(Exception):
    """A child exited with an error status. The child has printed the reason, so this message is only logged."""


@dataclass
class ChildProcesses:
    """Child processes by name. As a context manager it ends them all at exit, also after an exception.

    `stop` may be called from a signal handler.
    """

    children: dict[str, Child] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)  # of children that a spare may replace, by name
    spares: dict[str, Spare] = field(default_factory=dict)  # by role
    metrics_peers: list[str] = field(default_factory=list)  # NAME=host:port of each metrics server
    explain: Callable[[str, int], str] = lambda name, returncode: ""  # what the log adds about an exit
    _is_ready: bool = False  # all children were
    _is_stopping: bool = False
    _background: Iterator[None] | None = None
    _last_fault: float = -math.inf  # time.monotonic() of the last exit that was a fault

    def __enter__(self) -> "ChildProcesses":
        self._child_end, self._own_end = os.pipe()  # the parent-death pipe
        self._metrics_sockets: list[socket.socket] = []  # stay open while a child restarts
        self._started = time.monotonic()
        self._ends = watch_ends()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end_all()
        self._ends.close()
        os.close(self._child_end)
        os.close(self._own_end)
        for metrics_socket in self._metrics_sockets:
            metrics_socket.close()
        for spare in self.spares.values():
            spare.close()
        for child in self._all_children():
            child.page.close()

    def start_with_metrics(
        self, role: str, values: dict[str, Any], *addresses: str, fds: Sequence[int] = (), address: str | None = None
    ) -> None:
        """Starts a role as `start` does, with a metrics server on a free port of the loopback address.

        `fds` are passed to the child. `address`: what the role listens on. A spare of the role may take the place. Adds
        the server to `metrics_peers`. Raises Fatal if no port can be bound or the role cannot start.
        """
        front = listen(None, 0)
        self._metrics_sockets.append(front)
        own = {"listen": address} if address is not None else {}
        flags = [*(f"--{option}={value}" for option, value in own.items()), f"--metrics-fd={front.fileno()}"]
        name = self.start(role, values, *flags, *addresses, fds=[front.fileno(), *fds])
        self.metrics_peers.append(f"{name}={authority(*front.getsockname()[:2])}")
        self.places[name] = Place(role, own, front.fileno())

    def keep_spare(self, role: str, values: dict[str, Any], *addresses: str, fds: Sequence[int] = ()) -> None:
        """Keeps a spare process of a role while this object supervises. Arguments as those of `start`, without the
        address to listen on."""
        argv = ["services.cli", role, *role_argv(role, values), *addresses]
        self.spares[role] = Spare(self._new_child(f"spare {role}", argv, role_environment(role, values), list(fds)))

    def start(self, role: str, values: dict[str, Any], *addresses: str, fds: list[int] | None = None) -> str:
        """Starts a role and returns the child's name. `values`: settings by name; `addresses`: more flags, as they are.

        Raises Fatal if the role cannot start.
        """
        argv = ["services.cli", role, *role_argv(role, values), *addresses]
        return self.start_module(role, argv, role_environment(role, values), fds or [])

    def start_module(self, kind: str, argv: list[str], variables: dict[str, str], fds: list[int]) -> str:
        """Starts `python -m ARGV` and returns the child's name: `kind`, or `kind`-1, -2, ...

        `variables` are added to the environment; `fds` are passed to the child. The module must accept
        --parent-death-fd and --progress-fd. Raises as `start` does.
        """
        count = sum(name.startswith(kind) for name in self.children)
        name = f"{kind}-{count}" if count else kind
        child = self._new_child(name, argv, variables, fds)
        child.spawn()
        self.children[name] = child
        return name

    def _new_child(self, name: str, argv: list[str], variables: dict[str, str], fds: list[int]) -> Child:
        argv = [sys.executable, "-m", *argv, f"--parent-death-fd={self._child_end}"]
        return Child(name, argv, {**inherited_environment(), **variables}, [self._child_end, *fds])

    def _all_children(self) -> list[Child]:
        return [*self.children.values(), *(spare.child for spare in self.spares.values())]

    def _started_children(self) -> list[Child]:
        """Returns every child that has a process, spares included; it may have ended."""
        return [*self.children.values(), *(spare.child for spare in self.spares.values() if spare.is_started)]

    def stop(self) -> None:
        """Lets `supervise` return."""
        self._is_stopping = True

    def supervise(self, ready: Callable[[], bool]) -> bool:
        """Returns after `stop`: True if `ready()` was before. Raises as `raise_if_ended` until it is; then restarts
        children that exit."""
        for child in self.children.values():
            self._watch(child)
        looked = time.monotonic()
        while not ready():
            if self._is_stopping:
                return False
            self._ends.wait(READY_POLL_SECONDS)
            self.raise_if_ended()
            before, looked = looked, time.monotonic()
            self._kill_dead(
                [child for child in self.children.values() if child.process.poll() is None], looked - before
            )
        seconds = time.monotonic() - self._started
        log.info("all processes are ready after %.1f s; from now on a process that exits is restarted", seconds)
        self._put_spares_off()
        self._is_ready = True
        self._restart_until(lambda: self._is_stopping)
        return True

    def drain(self, kind: str, deadline: float) -> None:
        """Ends the children of this kind by SIGTERM, and returns when they have exited, or at the deadline, of
        time.monotonic(). The others are supervised meanwhile."""
        self._background = None
        ending = [child for name, child in self.children.items() if name == kind or name.startswith(f"{kind}-")]
        for child in ending:
            child.is_ending = True
            if child.restart_at is None:
                child.process.terminate()
        self._restart_until(
            lambda: time.monotonic() >= deadline or all(child.process.poll() is not None for child in ending)
        )

    def in_background(self, work: Iterator[None]) -> bool:
        """Takes one step of `work` in each turn of `supervise`, until it ends or `drain` begins. Returns False if other
        work is not done, before all children are ready, or after `stop`. A signal handler may call it."""
        if self._background is not None or self._is_stopping or not self._is_ready:
            return False
        self._background = work
        return True

    def is_replaceable(self, name: str) -> bool:
        """Returns False while the child is being restarted or its spare is still loading."""
        spare = self.spares.get(self.places[name].role) if name in self.places else None
        return self.children[name].restart_at is None and (spare is None or spare.is_loaded)

    def replace(self, name: str) -> None:
        """Makes a child hand over and exit; its spare, else a new process, takes its place."""
        child = self.children[name]
        child.is_replaced = True
        child.process.send_signal(HAND_OVER if name in self.places else signal.SIGTERM)

    def renew_spare(self, role: str) -> None:
        """Ends a role's spare, if it has one, so that a new one is started: it has loaded the code of its start."""
        spare = self.spares.get(role)
        if spare is not None and spare.is_started and spare.child.restart_at is None:
            spare.child.is_replaced = True
            spare.child.process.kill()
            spare.child.page.clear()

    def role_of(self, name: str) -> str:
        """Returns the role of a child that was started with a metrics server."""
        return self.places[name].role

    def metrics_address(self, name: str) -> str:
        """Returns host:port of a child's metrics server."""
        peers = dict(peer.split("=", 1) for peer in self.metrics_peers)
        return peers[name]

    def _restart_until(self, over: Callable[[], bool]) -> None:
        looked = time.monotonic()
        while not over():
            if self._background is not None and next(self._background, _ENDED) is _ENDED:
                self._background = None
            due = [child.restart_at for child in self._all_children() if child.restart_at is not None]
            ended = self._ends.wait(min([looked + LOOK_SECONDS, *due]) - time.monotonic())
            for child in [child for child in self._started_children() if str(child.process.pid) in ended]:
                if not child.is_ending:
                    child.restart_at = time.monotonic() + self._report_exit(child)
            before, looked = looked, time.monotonic()
            running = [child for child in self._started_children() if child.restart_at is None]
            self._kill_dead([child for child in running if child.process.poll() is None], looked - before)
            self._restart_due()
            if os.getpid() == 1:  # of a container
                reap_orphans([child.process.pid for child in self._started_children()])

    def _restart_due(self) -> None:
        now = time.monotonic()
        for child in [one for one in self.children.values() if one.restart_at is not None and one.restart_at <= now]:
            if child.is_ending:
                child.restart_at = None
                continue
            place = self.places.get(child.name)
            spare = self.spares.get(place.role) if place is not None else None
            if place is not None and spare is not None and spare.become(child, place):
                log.info("the %s takes over as the %s", spare.child.name, child.name)
            else:
                self._start_again(child, child.spawn)
            self._put_spares_off()
        for spare in self.spares.values():
            if spare.child.restart_at is not None and spare.child.restart_at <= now:
                gently = time.monotonic() - self._last_fault > CALM_SECONDS
                self._start_again(spare.child, partial(spare.start, gently=gently))

    def _start_again(self, child: Child, start: Callable[[], None]) -> None:
        """Starts the child's process by `start`. If that fails, for lack of memory or because a limit of processes or
        open files is reached, the server goes on, and it is tried again."""
        try:
            start()
            self._watch(child)
        except Fatal as error:
            log.warning("%s; trying again in %.0f s", error, MAX_BACKOFF_SECONDS)
            child.restart_at = time.monotonic() + MAX_BACKOFF_SECONDS

    def _watch(self, child: Child) -> None:
        """Has the end of the child's process reported. If that fails, kills the process and raises Fatal."""
        try:
            self._ends.add(str(child.process.pid), child.process)
        except OSError as error:
            child.process.kill()
            child.process.wait()
            raise Fatal(f"the {child.name} cannot be watched: {error}") from error

    def _put_spares_off(self) -> None:
        """No spare that does not run starts within SPARE_DELAY_SECONDS."""
        earliest = time.monotonic() + SPARE_DELAY_SECONDS
        for spare in self.spares.values():
            if not spare.is_started or spare.child.restart_at is not None:
                spare.child.restart_at = max(spare.child.restart_at or 0.0, earliest)

    def _report_exit(self, child: Child) -> float:
        """Logs the exit of a child and returns the seconds until its restart.

        0 if work had reached the child: if that was why it ended, its peers find the request after a few deaths. It
        doubles with each other exit, from FIRST_BACKOFF_SECONDS to MAX_BACKOFF_SECONDS.
        """
        returncode = child.process.wait()
        if child.is_replaced:
            child.is_replaced = False
            return 0.0
        self._last_fault = time.monotonic()
        if child.page.has_worked():
            child.backoff = 0.0
        backoff = child.backoff
        child.backoff = min(max(2 * backoff, FIRST_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)
        what = f"{child.fault} and was killed" if child.fault else how_it_ended(returncode)
        what += self._explanation(child, returncode)
        log.error("the %s %s; it is restarted in %.1f s", child.name, what, backoff)
        return backoff

    def _explanation(self, child: Child, returncode: int) -> str:
        """Returns what `explain` adds; nothing about a child that this process has killed."""
        return self.explain(child.name, 0 if child.fault else returncode)

    def _kill_dead(self, running: list[Child], seconds: float) -> None:
        """Kills children that are stopped or make no progress. `seconds`: since the last call."""
        stopped = stopped_children([child.process.pid for child in running])
        for child in running:
            fault = child.watch.look(seconds, is_stopped=child.process.pid in stopped)
            if fault and not child.fault:
                child.fault = fault
                child.process.kill()  # a stopped process gets no other signal
                if child.is_ending:  # else its exit is told
                    log.error("the %s %s and is killed", child.name, fault)

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
        child = self.children[name]
        how = f"{child.fault} and was killed" if child.fault else how_it_ended(code)
        ended = f"{how} before the server was ready{self._explanation(child, code)}"
        message = f"the {name} {ended}; all processes are stopped"
        raise ChildFailed(message) if code > 0 else Fatal(message)

    def kill_all(self) -> None:
        """Kills every child that runs. A signal handler may call it while the context ends the children."""
        for child in self._started_children():
            child.is_ending = True
            child.process.kill()

    def _end_all(self) -> None:
        for child in self._started_children():
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for child in self._started_children():
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("the %s did not exit within %.0f s of SIGTERM; it is killed", child.name, STOP_SECONDS)
                child.process.kill()
                child.process.wait()
