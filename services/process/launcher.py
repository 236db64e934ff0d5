"""`tandem serve`: the four roles as child processes on this machine, connected by Unix sockets.

In order: binds the HTTP port, finds the model's files, starts the roles, supervises them until SIGTERM or SIGINT.
How children are restarted and ended is in services/process/child_processes.py.
"""

import http.client
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from services.errors import Fatal
from services.machine.listen import listen
from services.model_files.resolve import resolve
from services.options.command_line import role_argv, role_environment
from services.options.common import DEMO_MODEL
from services.options.declarations import ServeOptions, ShimOptions
from services.process.child_processes import ChildFailed, ChildProcesses
from services.process.gateway_address import gateway_address
from services.process.runtime_dir import runtime_dir
from services.security.secret import ROOT_KEY_BYTES
from services.telemetry.logs import fail, set_up_logging

log = logging.getLogger(__name__)
HEALTH_TIMEOUT_SECONDS = 0.25


class Stopped(Exception):
    """This process received SIGTERM or SIGINT."""


def main(options: ServeOptions) -> int:
    """Runs all roles. Returns the exit status: 0 after SIGTERM or SIGINT, 1 after Fatal or ChildFailed."""
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


def _serve(options: ServeOptions) -> None:
    _on_signals(_exit_at_once)
    values = dict(options.role_values)
    front = listen(values.get("host", ShimOptions.host), values.get("port", ShimOptions.port))
    _check_gateway(values)
    model = values.get("model", DEMO_MODEL)
    values.setdefault("served_model_name", (model,))
    # Resolved here, so that a download has one progress bar and a failure one line.
    weights = values.get("load_format") != "dummy"
    path = resolve(model, values.get("revision"), weights=weights, check=lambda path: _check_model(path, values))
    values["model"] = str(path)
    values.pop("revision", None)
    _on_signals(_raise_stopped)
    with runtime_dir(options.runtime_dir) as folder, ChildProcesses() as children:
        _start_roles(children, values, folder, options.tokenizer_replicas, front)
        children.supervise(lambda: is_ready(front))


def _check_model(path: Path, values: dict[str, Any]) -> None:
    """Raises Fatal if a worker could not serve the model in `path`. `values`: given settings by name."""
    at_path = values | {"model": str(path), "revision": None}
    child_end, own_end = os.pipe()  # the parent-death pipe: a signal ends this process at once
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "services.worker.preflight", *role_argv("worker", at_path)),
            f"--parent-death-fd={child_end}",
        ],
        env={**os.environ, **role_environment("worker", at_path)},
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


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    """Signal handler before any child runs: exits with status 0. An orderly exit would wait for download threads."""
    os._exit(0)


def _raise_stopped(number: int, frame: FrameType | None) -> None:
    for further in (signal.SIGTERM, signal.SIGINT):
        signal.signal(further, signal.SIG_IGN)  # a second signal must not interrupt the shutdown
    raise Stopped


def _start_roles(
    children: ChildProcesses, values: dict[str, Any], folder: Path, replicas: int, front: socket.socket
) -> None:
    """Starts all roles, the slowest first. `values`: given settings by name; `folder`: of the Unix sockets; `replicas`:
    number of tokenizers; `front`: the listening HTTP socket."""
    engine, worker = f"unix:{folder}/engine.sock", f"ipc://{folder}/worker.sock"
    tokenizers = [f"unix:{folder}/tokenizer-{index}.sock" for index in range(replicas)]
    children.start_with_metrics("worker", values, f"--engine={worker}")
    # Drawn once, so that an engine that is restarted starts its hashes from the same roots as the one before.
    children.start_with_metrics(
        "engine",
        {**values, "cache_root_key": secrets.token_hex(ROOT_KEY_BYTES)},
        f"--listen={engine}",
        f"--worker={worker}",
    )
    for address in tokenizers:
        children.start_with_metrics("tokenizer", values, f"--listen={address}", f"--engine={engine}")
    children.start(
        "shim",
        values,
        f"--tokenizer={','.join(tokenizers)}",
        f"--metrics-peers={','.join(children.metrics_peers)}",
        f"--listen-fd={front.fileno()}",
        fds=[front.fileno()],
    )


def is_ready(front: socket.socket) -> bool:
    """Returns whether the shim behind `front` answers GET /health with 200: then all roles are ready."""
    host, port = front.getsockname()[:2]
    connection = http.client.HTTPConnection(host, port, timeout=HEALTH_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
