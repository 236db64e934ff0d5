"""The servers that docs/grpc.md starts: `tandem serve` on Unix sockets, and the roles on TCP, for the time of a `with`.

Types the commands of the page's section "Addresses", with free ports. Imports only the standard library.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.addresses import free_port
from tests.clients.environments import ROOT
from tests.clients.page import sections
from tests.clients.server import START_SECONDS, STOP_SECONDS, NotReady

PORTS = ("8001", "8002", "8003")  # as on the page


@contextlib.contextmanager
def running_edges(tandem: list[str], cwd: Path) -> Iterator[Path]:
    """Yields a folder with `run`, `credentials`, `protos` and ports.json (the page's port -> the one in use), once both
    servers answer. Raises NotReady."""
    commands = [command for command, _ in sections()["Addresses"].commands]
    with tempfile.TemporaryDirectory(prefix="tandem-grpc-", dir="/tmp") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "protos").symlink_to(ROOT / "protos")
        unix, tcp, *ports = (free_port() for _ in range(2 + len(PORTS)))
        mapping = dict(zip(PORTS, map(str, ports), strict=True))
        (folder / "ports.json").write_text(json.dumps(mapping))
        _write_command(folder, tandem, cwd, unix, tcp)
        script = "\n".join([*commands[1:], "wait"])
        for page_port, port in mapping.items():
            script = script.replace(f":{page_port}", f":{port}")
        log = stack.enter_context((folder / "log").open("w+"))
        for text, port in ((commands[0], unix), (script, tcp)):
            process = _start(stack, folder, text, log)
            _wait(process, port, folder)
        yield folder


def _write_command(folder: Path, tandem: list[str], cwd: Path, api_port: int, metrics_port: int) -> None:
    """Writes the command `tandem` of the page, with known ports for /health: of the API, and of a tokenizer alone."""
    (folder / "bin").mkdir()
    command = folder / "bin" / "tandem"
    command.write_text(
        f"""#!/bin/sh
export PYTHONPATH={shlex.quote(str(cwd))}
case "$1" in
serve) set -- "$@" --port={api_port} ;;
tokenizer) set -- "$@" --metrics-listen=127.0.0.1:{metrics_port} ;;
esac
exec {shlex.join(tandem)} "$@"
"""
    )
    command.chmod(0o755)


def _start(stack: contextlib.ExitStack, folder: Path, script: str, log: IO[str]) -> "subprocess.Popen[bytes]":
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    stack.callback(_stop, process)
    return process


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends the script and the processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while _group_runs(process) and time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _group_runs(process: "subprocess.Popen[bytes]") -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait(process: "subprocess.Popen[bytes]", port: int, folder: Path) -> None:
    """Waits until /health at a port answers 200. Raises NotReady."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), opener.open(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    raise NotReady((folder / "log").read_text()[-2000:])
