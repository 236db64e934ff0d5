"""`tandem serve` with the demo model, or the roles with a worker that plays given tokens, on a free port, for the time
of a `with`. Imports only the standard library.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.addresses import free_port
from tests.clients.environments import ROOT

MODEL = "demo"
FOLDER = ROOT / "demo" / "checkpoint"
START_SECONDS = 120.0
STOP_SECONDS = 20.0


class NotReady(Exception):
    """The server ended before it was ready, or was not ready in time. The text has the end of its log."""


@dataclass(frozen=True)
class Server:
    """`gateway` is host:port of its gateway API, `pid` that of `tandem serve`; None: not known."""

    url: str
    gateway: str | None = None
    pid: int | None = None


@contextlib.contextmanager
def running(tandem: list[str], cwd: Path, *, gateway: bool, options: tuple[str, ...] = ()) -> Iterator[Server]:
    """Starts `TANDEM serve` in `cwd` with these options, with its gateway API if `gateway`, and yields it once /health
    answers 200; then ends it. Raises NotReady."""
    port, grpc_port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = ["serve", str(FOLDER), "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    arguments += options
    if gateway:
        arguments += ["--grpc-host", "127.0.0.1", "--grpc-port", str(grpc_port)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([*tandem, *arguments], cwd=cwd, stdout=log, stderr=log)
        try:
            if not _ready(process, url):
                log.seek(0)
                raise NotReady(log.read()[-2000:])
            yield Server(url, f"127.0.0.1:{grpc_port}" if gateway else None, process.pid)
        finally:
            _stop(process)


@contextlib.contextmanager
def running_played(tandem: list[str], cwd: Path) -> Iterator[Server]:
    """Starts shim, tokenizer and engine of TANDEM in `cwd` beside the worker of player.py, and yields the server once
    /health answers 200; then ends them. Raises NotReady."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="tandem-played-", dir="/tmp") as folder, contextlib.ExitStack() as stack:
        worker = f"ipc://{folder}/worker.sock"
        engine, tokenizer = (f"unix:{folder}/{name}.sock" for name in ("engine", "tokenizer"))
        shim = ["shim", "--host", "127.0.0.1", "--port", str(port), "--tokenizer", tokenizer]
        log = stack.enter_context(Path(folder, "log").open("w+"))
        for command, where in (
            ([sys.executable, "-m", "tests.clients.player", "--engine", worker], ROOT),
            ([*tandem, "engine", "--listen", engine, "--worker", worker], cwd),
            ([*tandem, "tokenizer", str(FOLDER), "--listen", tokenizer, "--engine", engine], cwd),
            ([*tandem, *shim], cwd),
        ):
            process = subprocess.Popen(command, cwd=where, stdout=log, stderr=log)
            stack.callback(_stop, process)
        if not _ready(process, url):
            raise NotReady(Path(folder, "log").read_text()[-2000:])
        yield Server(url)


def _ready(process: "subprocess.Popen[bytes]", url: str) -> bool:
    deadline = time.monotonic() + START_SECONDS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), opener.open(f"{url}/health", timeout=5):
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
