"""The processes of one transport benchmark: shim, tokenizer and engine with their own command lines, and the instant
worker. Starts them over Unix sockets, or over TCP with TLS and CURVE, and waits until they are ready."""

import contextlib
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from loadtest.transport.instant_worker import PROMPT_LEN
from loadtest.transport.stream_client import letter_ids
from services.errors import Fatal
from services.machine import authority
from services.machine.listen import listen
from services.options.declarations import EngineOptions
from services.process.child_processes import ChildProcesses
from services.process.launcher import is_ready

SECRET_BYTES = 32
READY_SECONDS = 30.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Load:
    num_streams: int
    num_tokens: int  # of each stream
    step_ms: float  # 0: no pace; the worker answers as soon as the client keeps up
    client: str = "http"  # which edge the client calls: the shim's, "text" (the tokenizer's) or "tokens" (the engine's)
    num_requests: int = 0  # short chats over HTTP after the streams
    tcp: bool = False  # TCP with TLS and CURVE, as between machines; else Unix sockets


@dataclass(frozen=True)
class Files:
    """The files through which the worker and the client of one measurement report."""

    folder: Path

    @property
    def sent(self) -> Path:
        return self.folder / "sent.npy"

    @property
    def received(self) -> Path:
        return self.folder / "received.npz"

    @property
    def count(self) -> Path:
        return self.folder / "count"


@dataclass(frozen=True)
class Addresses:
    """Where the processes listen, and the open file of their secret. The file has no name, only a descriptor."""

    engine: str
    worker: str  # where the engine listens for the worker
    tokenizer: str
    secret: IO[bytes] | None = None  # None for Unix sockets

    @property
    def arguments(self) -> list[str]:
        return [f"--cluster-secret-file=/dev/fd/{self.secret.fileno()}"] if self.secret is not None else []

    @property
    def fds(self) -> list[int]:
        return [self.secret.fileno()] if self.secret is not None else []


@contextlib.contextmanager
def addresses(folder: Path, tcp: bool) -> Iterator[Addresses]:
    """Yields free addresses: sockets in `folder`, or ports of the loopback device with a new secret."""
    if not tcp:
        yield Addresses(f"unix:{folder}/engine.sock", f"ipc://{folder}/worker.sock", f"unix:{folder}/tokenizer.sock")
        return
    with contextlib.ExitStack() as held, tempfile.TemporaryFile(dir=folder) as secret:
        sockets = [held.enter_context(listen(None, 0)) for _ in range(3)]  # held together, so that the ports differ
        engine, worker, tokenizer = (authority(*one.getsockname()[:2]) for one in sockets)
        held.close()
        secret.write(secrets.token_hex(SECRET_BYTES).encode())
        secret.flush()
        yield Addresses(engine, f"tcp://{worker}", tokenizer, secret)


def start(children: ChildProcesses, load: Load, files: Files, front: socket.socket, at: Addresses) -> None:
    """Starts worker, engine, tokenizer and shim in `children`; the shim serves HTTP on the listening socket `front`.
    Raises Fatal if one cannot start."""
    values = {
        "log_level": "error",
        "max_num_seqs": load.num_streams,
        "max_num_batched_tokens": max(EngineOptions.max_num_batched_tokens, load.num_streams * PROMPT_LEN),
    }
    worker = [
        "loadtest.transport.instant_worker",
        f"--engine={at.worker}",
        *at.arguments,
        f"--file={files.sent}",
        f"--received-file={files.count}",
        f"--num-streams={load.num_streams}",
        f"--num-tokens={load.num_tokens}",
        f"--step-ms={load.step_ms}",
        "--token-ids",
        *map(str, letter_ids()),
    ]
    children.start_module("worker", worker, {}, at.fds)
    children.start_with_metrics(
        "engine", values, f"--listen={at.engine}", f"--worker={at.worker}", *at.arguments, fds=at.fds
    )
    tokenizer = [f"--listen={at.tokenizer}", f"--engine={at.engine}"]
    children.start_with_metrics("tokenizer", values, *tokenizer, *at.arguments, fds=at.fds)
    shim = [
        f"--tokenizer={at.tokenizer}",
        f"--metrics-peers={','.join(children.metrics_peers)}",
        f"--listen-fd={front.fileno()}",
    ]
    children.start("shim", values, *shim, *at.arguments, fds=[front.fileno(), *at.fds])


def wait_until_ready(children: ChildProcesses, front: socket.socket) -> None:
    """Returns when the shim's /health answers 200. Raises Fatal after READY_SECONDS, and Fatal or ChildFailed when a
    process has ended."""
    deadline = time.monotonic() + READY_SECONDS
    while not is_ready(front):
        children.raise_if_ended()
        if time.monotonic() > deadline:
            raise Fatal(f"the processes are not ready within {READY_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
