"""Real processes for end-to-end tests: starts `tandem`, waits for conditions with deadlines, ends every process."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import httpx
import openai

from services.process.runtime_dir import runtime_dir
from services.process.spare import RUNNING_NAME
from services.rpc.generated import engine_pb2, engine_pb2_grpc
from services.shim.scrape import CACHE_SECONDS
from tests.cores import give_all_cores

TANDEM = [sys.executable, "-m", "services.cli"]
READY = re.compile(r"ready on (https?://\S+|unix:\S+)")
ALL_READY = "all processes are ready after"  # logged by the launcher: from then on it restarts processes that exit
START_SECONDS = 60.0
# No proxy, and no TLS context: httpx makes one for each request that has a client of its own.
PLAIN_HTTP: dict[str, Any] = {"trust_env": False, "verify": False}
JSON_TYPE = {"Content-Type": "application/json"}  # of a body that is given as bytes


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """Returns the first true value of `condition`. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        threading.Event().wait(0.02)
    return value


def run_tandem(
    *args: str, seconds: float = 60.0, env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Runs `tandem ARGS` until it ends. Returns its status and output. Raises TimeoutExpired after `seconds`."""
    merged = {**os.environ, **(env or {})}
    return subprocess.run([*TANDEM, *args], capture_output=True, text=True, timeout=seconds, env=merged, check=False)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def argv_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def role_of(pid: int) -> str:
    """Returns ROLE of a process `python -m services.cli ROLE ...`; empty between fork and exec, and for a spare process
    that has not taken over."""
    argv = argv_of(pid)
    if any(word.startswith("--spare-fd=") for word in argv) and name_of(pid) != RUNNING_NAME:
        return ""
    return "".join(argv[3:4])


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().rstrip()


def error_lines(log: str) -> list[str]:
    """Returns the lines of `log` that report why a process ends; they are not in the format of the log."""
    return [line for line in log.splitlines() if re.match(r"tandem( \w+)?: error: ", line)]


def alive(pid: int) -> bool:
    """Returns whether the process runs; False for a zombie, which has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


SPARES = "--spare-processes"


class Server:
    """`tandem serve` on a free port, as a context manager, which waits until the server is ready. `args` are its
    command line without --port. It has spare processes only with --spare-processes: they cost a second of CPU time.

    `cwd`: a checkout of tandem; the server runs the code in it.
    """

    def __init__(self, *args: str, env: dict[str, str] | None = None, cwd: str | None = None) -> None:
        self._args = args if SPARES in args or cwd is not None else (*args, "--no-spare-processes")
        self._cwd = cwd
        self._env = env or {}
        self.url = ""
        self._scraped = float("-inf")  # time.monotonic() of the last scrape
        self.lines: list[str] = []

    def __enter__(self) -> "Server":
        self._folder = runtime_dir(None)
        self.runtime_dir = self._folder.__enter__()
        started = time.monotonic()
        self.process = subprocess.Popen(
            [*TANDEM, "serve", *self._args, "--port=0", f"--runtime-dir={self.runtime_dir}"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._env},
            cwd=self._cwd,
        )
        give_all_cores(self.process.pid)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            wait_for(lambda: self.url or self.process.poll() is not None, "ready", START_SECONDS)
            assert self.url, "tandem serve ended:\n" + "".join(self.lines)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.start_seconds = time.monotonic() - started
        self.pids = children_of(self.process.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)
        if self.process.stderr is not None:
            self.process.stderr.close()
        self._folder.__exit__(None, None, None)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := READY.search(line):
                self.url = found.group(1)

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def post(self, path: str, body: dict[str, Any], **kwargs: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=120, **PLAIN_HTTP, **kwargs)

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, **PLAIN_HTTP, **kwargs)

    def metrics(self) -> httpx.Response:
        """Returns /metrics as it is now: waits until the answer to the last call is not kept any more."""
        wait_for(lambda: time.monotonic() - self._scraped > CACHE_SECONDS, "the last scrape is too old")
        response = self.get("/metrics")
        self._scraped = time.monotonic()
        return response

    def openai(self, **kwargs: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key=kwargs.pop("api_key", "none"), max_retries=0, **kwargs)

    def complete(self, prompt: Any, **kwargs: Any) -> dict[str, Any]:
        """Sends a completion request with one choice. Returns this choice, with its token_ids."""
        body = {"prompt": prompt, "return_token_ids": True, **kwargs}
        response = self.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        choice: dict[str, Any] = response.json()["choices"][0]
        return choice

    def stats(self) -> engine_pb2.EngineStats:
        """Returns the engine's counters, read over its gRPC socket."""
        return asyncio.run(self._stats())

    async def _stats(self) -> engine_pb2.EngineStats:
        async with grpc.aio.insecure_channel(f"unix:{self.runtime_dir}/engine.sock") as channel:
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            return await stub.GetStats(engine_pb2.GetStatsRequest(), timeout=10)


def pid_of(server: Server, role: str) -> int:
    """Returns the process of a role that has one, or the first of several."""
    return next(pid for pid in children_of(server.process.pid) if role_of(pid) == role)
