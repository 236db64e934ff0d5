"""`tandem serve`: the four roles as one tree of processes on this machine, over Unix sockets.

Starts, watches, restarts, ends. Until the tree is ready, the death of any child ends it; from then on a child that
dies is started again, and whoever talked to it resumes. Every child holds one end of a pipe: however hard this process
dies, they see it and end as well.
"""

import contextlib
import http.client
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from services.errors import Fatal
from services.machine import authority, stopped_children, watch_ends
from services.machine.listen import listen
from services.model_files.resolve import resolve
from services.options.command_line import role_argv, role_environment
from services.options.declarations import DEMO_MODEL, ServeOptions, ShimOptions
from services.process.runtime_dir import runtime_dir
from services.process.shell import fail
from services.telemetry.logs import set_up_logging

log = logging.getLogger(__name__)
STOP_SECONDS = 3.0
READY_POLL_SECONDS = 0.05
ANSWER_SECONDS = 0.25
FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS = 0.5, 10.0
LOOK_SECONDS = 1.0
STOPPED_SECONDS = 10.0  # a child that was stopped for so long counts as dead
GROWN_UP_SECONDS = 60.0  # who lived so long starts again at once


class Stopped(Exception):
    """SIGTERM or SIGINT came."""


class ChildFailed(Exception):
    """A child gave up, and has said why on a line of its own: people need no second one."""


def main(options: ServeOptions) -> int:
    """Returns the exit status: 0 after SIGTERM or SIGINT, 1 when something failed."""
    values = options.role_values
    level, style = values.get("log_level", ShimOptions.log_level), values.get("log_format", ShimOptions.log_format)
    set_up_logging("serve", level, style)
    try:
        _serve(options)
    except Stopped:
        return 0
    except ChildFailed as error:
        log.error("%s", error)
        return 1
    except Fatal as error:
        return fail("serve", error)
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    """While there are no children: the threads of a download would hold up an orderly end until their file is there."""
    os._exit(0)


def _stop(number: int, frame: FrameType | None) -> None:
    for again in (signal.SIGTERM, signal.SIGINT):
        signal.signal(again, signal.SIG_IGN)  # one is enough: ending must not be interrupted
    raise Stopped


def _serve(options: ServeOptions) -> None:
    _on_signals(_leave)
    values = dict(options.role_values)
    front = listen(values.get("host", ShimOptions.host), values.get("port", ShimOptions.port))
    model = values.get("model", DEMO_MODEL)
    values.setdefault("served_model_name", (model,))
    # Resolved once, so that a download has one progress bar and a failure one line.
    path = resolve(model, values.get("revision"), weights=values.get("load_format") != "dummy")
    values["model"] = str(path)
    values.pop("revision", None)
    _on_signals(_stop)
    with runtime_dir(options.runtime_dir) as folder, Tree() as tree:
        _start_roles(tree, values, folder, options.tokenizer_replicas, front)
        tree.watch(lambda: answers(front))


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _start_roles(tree: "Tree", values: dict[str, Any], folder: Path, replicas: int, front: socket.socket) -> None:
    """The slowest first. `values` are the settings that the command line gave."""
    engine, worker = f"unix:{folder}/engine.sock", f"ipc://{folder}/worker.sock"
    tokenizers = [f"unix:{folder}/tokenizer-{index}.sock" for index in range(replicas)]
    tree.start_monitored("worker", values, f"--engine={worker}")
    tree.start_monitored("engine", values, f"--listen={engine}", f"--worker={worker}")
    for address in tokenizers:
        tree.start_monitored("tokenizer", values, f"--listen={address}", f"--engine={engine}")
    tree.start(
        "shim",
        values,
        f"--tokenizer={','.join(tokenizers)}",
        f"--metrics-peers={','.join(tree.monitored)}",
        f"--listen-fd={front.fileno()}",
        fds=[front.fileno()],
    )


def answers(front: socket.socket) -> bool:
    """The whole tree is ready, as its front says."""
    host, port = front.getsockname()[:2]
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@dataclass
class Child:
    """How to start one, and when it was started last; its sockets stay open here for the next one."""

    argv: list[str]
    env: dict[str, str]
    fds: list[int]
    process: "subprocess.Popen[bytes]"
    started: float
    delay: float = 0.0  # seconds before the next start
    stopped: float | None = None  # when it was first seen to be


@dataclass
class Tree:
    """The child processes. As a context manager it ends them all, whatever happens."""

    children: dict[str, Child] = field(default_factory=dict)
    monitored: list[str] = field(default_factory=list)  # NAME=host:port of their metrics

    def __enter__(self) -> "Tree":
        self._child_end, self._own_end = os.pipe()
        self._ports: list[socket.socket] = []  # of the children's metrics, which outlive them
        return self

    def __exit__(self, *exception: object) -> None:
        self._end_all()
        os.close(self._child_end)
        os.close(self._own_end)
        for port in self._ports:
            port.close()

    def start_monitored(self, role: str, values: dict[str, Any], *addresses: str, fds: Sequence[int] = ()) -> None:
        """Starts a role with a port for its metrics, on this machine only."""
        port = listen(None, 0)
        self._ports.append(port)
        name = self.start(role, values, *addresses, f"--metrics-fd={port.fileno()}", fds=[port.fileno(), *fds])
        self.monitored.append(f"{name}={authority(*port.getsockname()[:2])}")

    def start(self, role: str, values: dict[str, Any], *addresses: str, fds: list[int] | None = None) -> str:
        """Returns the name of the child. Raises Fatal when it cannot be started."""
        argv = ["services.cli", role, *role_argv(role, values), *addresses]
        return self.start_module(role, argv, role_environment(role, values), fds or [])

    def start_module(self, kind: str, argv: list[str], variables: dict[str, str], fds: list[int]) -> str:
        """`argv` begins with a module of ours that takes --lifeline-fd. Returns and raises as `start` does."""
        argv = [sys.executable, "-m", *argv, f"--lifeline-fd={self._child_end}"]
        env = {**os.environ, **variables}
        count = sum(name.startswith(kind) for name in self.children)
        name = f"{kind}-{count}" if count else kind
        passed = [self._child_end, *fds]
        self.children[name] = Child(argv, env, passed, _spawn(name, argv, env, passed), time.monotonic())
        return name

    def watch(self, ready: Callable[[], bool]) -> None:
        """Returns never. Until `ready`, raises what `check` does as soon as a child ends; then starts it again."""
        started = min(child.started for child in self.children.values())
        with contextlib.closing(watch_ends()) as ends:
            for name, child in self.children.items():
                ends.add(name, child.process)
            while not ready():
                ends.wait(READY_POLL_SECONDS)
                self.check()
            seconds = time.monotonic() - started
            log.info("all processes are ready after %.1f s; from now on a process that dies is started again", seconds)
            due: dict[str, float] = {}  # who starts again, and when
            while True:
                moment = min([time.monotonic() + LOOK_SECONDS, *due.values()])
                for name in ends.wait(moment - time.monotonic()):
                    due[name] = self._on_exit(name)
                self._kill_stopped()
                for name in [name for name, moment in due.items() if moment <= time.monotonic()]:
                    del due[name]
                    child = self.children[name]
                    child.process, child.started = _spawn(name, child.argv, child.env, child.fds), time.monotonic()
                    ends.add(name, child.process)

    def _kill_stopped(self) -> None:
        """A stopped process (SIGSTOP) takes no signal but SIGKILL, so its own watchdog cannot end it."""
        stopped = stopped_children([child.process.pid for child in self.children.values()])
        for name, child in self.children.items():
            if child.process.pid not in stopped:
                child.stopped = None
            elif child.stopped is None:
                child.stopped = time.monotonic()
            elif time.monotonic() - child.stopped >= STOPPED_SECONDS:
                log.error("the %s has been stopped for %.0f s: killed", name, STOPPED_SECONDS)
                child.process.kill()
                child.stopped = None

    def check(self) -> None:
        """Raises Fatal when a child was killed or just left, ChildFailed when it gave up."""
        ended = {name: code for name, child in self.children.items() if (code := child.process.poll()) is not None}
        if not ended:
            return
        # One that was killed comes first: the others may have given up because of it.
        name, code = min(ended.items(), key=lambda item: item[1])
        message = f"the {name} ended {_how(code)} before the server was ready; so ends the whole tree"
        raise ChildFailed(message) if code > 0 else Fatal(message)

    def _on_exit(self, name: str) -> float:
        """When it starts again: at once, or after a delay that doubles as long as it dies young."""
        child = self.children[name]
        code = child.process.wait()
        if time.monotonic() - child.started >= GROWN_UP_SECONDS:
            child.delay = 0.0
        delay = child.delay
        child.delay = min(max(2 * delay, FIRST_DELAY_SECONDS), LAST_DELAY_SECONDS)
        log.error("the %s ended %s; it starts again in %.1f s", name, _how(code), delay)
        return time.monotonic() + delay

    def _end_all(self) -> None:
        for child in self.children.values():
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for name, child in self.children.items():
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("the %s does not end, killed", name)
                child.process.kill()
                child.process.wait()


def _spawn(name: str, argv: list[str], env: dict[str, str], fds: list[int]) -> "subprocess.Popen[bytes]":
    """In a session of its own: Ctrl-C reaches the launcher alone, which ends them in order. Raises Fatal."""
    try:
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, pass_fds=fds, start_new_session=True)
    except (OSError, ValueError) as error:  # an option too long for a command line, or with a NUL in it
        raise Fatal(f"the {name} cannot be started: {error}") from error


def _how(returncode: int) -> str:
    return f"by signal {signal.Signals(-returncode).name}" if returncode < 0 else f"with status {returncode}"
