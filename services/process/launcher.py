"""`tandem serve`: the four roles as child processes on this machine, connected by Unix sockets.

In order: binds the HTTP port, finds the model's files, starts the roles, supervises them until SIGTERM or SIGINT, and
ends them from the top down.
Passes SIGHUP on to the shim, unless the terminal was closed: that ends the server. SIGUSR2 begins a reload.
How children are restarted and ended is in services/process/child_processes.py.
"""

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from services.errors import Fatal
from services.machine import has_terminal, unnamed_file
from services.machine.listen import listen, listen_unix
from services.model_files.resolve import resolve
from services.options.command_line import inherited_environment, role_argv, role_environment
from services.options.common import DEMO_MODEL
from services.options.declarations import ServeOptions, ShimOptions
from services.process.child_processes import STOP_SECONDS, ChildFailed, ChildProcesses
from services.process.control_file import ControlFile
from services.process.gateway_address import gateway_address
from services.process.out_of_memory import OutOfMemoryKills
from services.process.readiness import Readiness
from services.process.reload import reload
from services.process.runtime_dir import runtime_dir
from services.process.worker_record import RecordFile
from services.security.https import https_of
from services.security.secret import ROOT_KEY_BYTES
from services.telemetry.logs import fail, set_up_logging

log = logging.getLogger(__name__)
Handler = Callable[[int, FrameType | None], None]


def main(options: ServeOptions) -> int:
    """Runs all roles. Returns the exit status: 0 after SIGTERM or SIGINT, 1 after Fatal or ChildFailed."""
    values = options.role_values
    level, style = values.get("log_level", ShimOptions.log_level), values.get("log_format", ShimOptions.log_format)
    set_up_logging("serve", level, style)
    if options.without_effect:
        log.info("flags of vLLM that have no effect here: %s", ", ".join(options.without_effect))
    try:
        _serve(options)
    except ChildFailed as error:
        log.error("%s", error)
        return 1
    except Fatal as error:
        return fail("serve", error)
    return 0


def _serve(options: ServeOptions) -> None:
    closes = has_terminal() and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL  # ignored by nohup
    _on_signals(_exit_at_once)
    _on_hang_up(_no_shim_yet, _exit_at_once, closes)
    signal.signal(signal.SIGUSR2, _no_reload_yet)
    values = dict(options.role_values)
    with _front(values) as front:
        _check_gateway(values)
        https_of(values)
        _serve_on(front, options, values, closes)


@contextlib.contextmanager
def _front(values: dict[str, Any]) -> Iterator[socket.socket]:
    """Yields the listening HTTP socket. `values`: given settings by name. Raises Fatal if it cannot be bound."""
    uds = values.get("uds")
    if uds is not None:
        with listen_unix(uds) as front:
            yield front
    else:
        with listen(values.get("host", ShimOptions.host), values.get("port", ShimOptions.port)) as front:
            yield front


def _serve_on(front: socket.socket, options: ServeOptions, values: dict[str, Any], closes: bool) -> None:
    """Finds the model, then runs the roles behind `front`. `closes`: the server ends with its terminal."""
    model = values.get("model", DEMO_MODEL)
    values.setdefault("served_model_name", (model,))
    # Resolved here, so that a download has one progress bar and a failure one line.
    weights = values.get("load_format") != "dummy"
    path = resolve(model, values.get("revision"), weights=weights, check=lambda path: _check_model(path, values))
    values["model"] = str(path)
    values.pop("revision", None)
    children = ChildProcesses()
    stop = _stopping(children)
    _on_signals(stop)
    with runtime_dir(options.runtime_dir) as folder, ControlFile(folder) as control, Readiness() as readiness, children:
        _start_roles(children, values, folder, options, front, readiness)
        _on_hang_up(lambda: children.hang_up("shim"), stop, closes)
        signal.signal(signal.SIGUSR2, lambda *_: _reload(children, control))
        if children.supervise(readiness.is_set):
            _drain(children, values)


def _reload(children: ChildProcesses, control: ControlFile) -> None:
    tokenizers = [[name] for name, place in children.places.items() if place.role == "tokenizer"]
    if not children.in_background(reload(children, [*tokenizers, ["engine", "worker"]], control)):
        log.warning("SIGUSR2 has no effect: a reload is running, or the server starts or ends")


def _drain(children: ChildProcesses, values: dict[str, Any]) -> None:
    """Ends the roles from the top down: each lets its requests end, for which it needs those below."""
    deadline = time.monotonic() + values.get("shutdown_timeout", ShimOptions.shutdown_timeout) + STOP_SECONDS
    for role in ("shim", "tokenizer", "engine"):
        children.drain(role, deadline)


def _check_model(path: Path, values: dict[str, Any]) -> None:
    """Raises Fatal if a worker could not serve the model in `path`. `values`: given settings by name."""
    at_path = values | {"model": str(path), "revision": None}
    child_end, own_end = os.pipe()  # the parent-death pipe: a signal ends this process at once
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "services.worker.preflight", *role_argv("worker", at_path)),
            f"--parent-death-fd={child_end}",
        ],
        env={**inherited_environment(), **role_environment("worker", at_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=[child_end],
        text=True,
        check=False,
    )
    os.close(child_end)
    os.close(own_end)
    if ended.returncode != 0:
        raise Fatal(ended.stdout or f"the check of the model exited with status {ended.returncode}")


def _check_gateway(values: dict[str, Any]) -> None:
    """Replaces port 0 of the gateway by a free one, so that a restarted shim has the same port.

    Raises Fatal as gateway_address.
    """
    port = values.get("grpc_port", ShimOptions.grpc_port)
    if port is not None:
        no_key = values.get("grpc_no_key", ShimOptions.grpc_no_key)
        _, values["grpc_port"] = gateway_address(values.get("grpc_host"), port, no_key=no_key)


def _on_signals(handler: Handler) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    """Signal handler before any child runs: exits with status 0. An orderly exit would wait for download threads."""
    os._exit(0)


def _stopping(children: ChildProcesses) -> Handler:
    """Returns the signal handler that begins the shutdown. A further SIGTERM or SIGINT kills the children, and so ends
    it at once; it interrupts nothing else."""

    def kill(number: int, frame: FrameType | None) -> None:
        children.kill_all()

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _on_signals(kill)
        children.stop()

    return stop


def _on_hang_up(act: Callable[[], None], stop: Handler, closes: bool) -> None:
    """Calls `act` at SIGHUP; `stop` if the system sent it because the terminal was closed, and the server `closes` with
    its terminal."""

    def handle(number: int, frame: FrameType | None) -> None:
        if closes and not has_terminal():
            stop(number, frame)
        act()

    signal.signal(signal.SIGHUP, handle)


def _no_reload_yet(number: int, frame: FrameType | None) -> None:
    log.info("SIGUSR2 has no effect: the server is starting, with the code that is installed now")


def _no_shim_yet() -> None:
    log.info("SIGHUP has no effect: the server is starting, and reads --api-key-file at its start")


def _start_roles(
    children: ChildProcesses,
    values: dict[str, Any],
    folder: Path,
    options: ServeOptions,
    front: socket.socket,
    readiness: Readiness,
) -> None:
    """Starts all roles, the slowest first. `values`: given settings by name; `folder`: of the Unix sockets; `front`:
    the listening HTTP socket; `readiness`: set once the shim is ready, and thus all."""
    engine, worker = f"unix:{folder}/engine.sock", f"ipc://{folder}/worker.sock"
    tokenizers = [f"unix:{folder}/tokenizer-{index}.sock" for index in range(options.tokenizer_replicas)]
    record = unnamed_file("worker-record")  # stays open: it is what each worker learns of those before it
    children.explain = OutOfMemoryKills(RecordFile(record)).explain
    children.start_with_metrics("worker", values, f"--engine={worker}", f"--record-fd={record}", fds=[record])
    # Drawn once, so that an engine that is restarted starts its hashes from the same roots as the one before.
    keyed = {**values, "cache_root_key": secrets.token_hex(ROOT_KEY_BYTES)}
    children.start_with_metrics("engine", keyed, f"--worker={worker}", address=engine)
    for address in tokenizers:
        children.start_with_metrics("tokenizer", values, f"--engine={engine}", address=address)
    if options.spare_processes:
        children.keep_spare("tokenizer", values, f"--engine={engine}")
        children.keep_spare("engine", keyed, f"--worker={worker}")
        children.keep_spare("worker", values, f"--engine={worker}", f"--record-fd={record}", fds=[record])
    children.start(
        "shim",
        values,
        f"--tokenizer={','.join(tokenizers)}",
        f"--metrics-peers={','.join(children.metrics_peers)}",
        f"--listen-fd={front.fileno()}",
        f"--ready-fd={readiness.child_fd}",
        fds=[front.fileno(), readiness.child_fd],
    )
