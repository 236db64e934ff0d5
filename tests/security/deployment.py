"""The four roles over TCP with one secret, as compose.yaml starts them, but on the loopback address."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from tests.e2e.harness import PLAIN_HTTP, START_SECONDS, TANDEM, wait_for
from tests.security.peers import OURS, free_address

KV_CACHE = "--kv-cache-memory-bytes=32M"  # small, because its memory is allocated on first use


class Deployment:
    def __init__(
        self,
        folder: Path,
        model: str = "demo",
        *,
        lags: Path | None = None,
        tokenizer_options: Sequence[str] = (),
        engine_options: Sequence[str] = (),
        second_engine: bool = False,
    ) -> None:
        """`lags`: the shim measures its event loop into this file (probed_shim.py). `second_engine`: with a worker of
        its own; their roles are "engine-2" and "worker-2"."""
        self.secret = folder / "secret"
        self.secret.write_bytes(OURS.value)
        self.tokenizer, self.engine, self.worker = (free_address() for _ in range(3))
        self.front, self.gateway, *self.metrics_addresses = (free_address() for _ in range(5))
        self.url = f"http://{self.front}"
        tokenizer, engine, worker = (f"--metrics-listen={address}" for address in self.metrics_addresses)
        host, _, port = self.front.rpartition(":")
        gateway = [f"--grpc-host={host.strip('[]')}", f"--grpc-port={self.gateway.rpartition(':')[2]}"]
        self._commands = {
            "worker": ["worker", model, f"--engine=tcp://{self.worker}", KV_CACHE, "--cpu-threads=1", worker],
            "engine": [
                *("engine", f"--listen={self.engine}", f"--worker=tcp://{self.worker}", engine),
                *engine_options,
            ],
            "tokenizer": [
                *("tokenizer", model, f"--listen={self.tokenizer}", f"--engine={self.engine}", tokenizer),
                *tokenizer_options,
            ],
            "shim": ["shim", f"--tokenizer={self.tokenizer}", f"--host={host}", f"--port={port}", *gateway],
        }
        if second_engine:
            address, worker_address = free_address(), free_address()
            link = f"--engine=tcp://{worker_address}"
            self._commands["worker-2"] = ["worker", model, link, KV_CACHE, "--cpu-threads=1"]
            self._commands["engine-2"] = ["engine", f"--listen={address}", f"--worker=tcp://{worker_address}"]
            self._commands["tokenizer"].append(f"--engine={self.engine},{address}")
        self._env = os.environ | {"GRPC_VERBOSITY": "NONE"}
        self._shim = [sys.executable, "-m", "tests.security.probed_shim", str(lags)] if lags is not None else TANDEM
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.lines: dict[str, list[str]] = {role: [] for role in self._commands}

    @contextlib.contextmanager
    def running(self) -> "Iterator[Deployment]":
        with self.started():
            wait_for(lambda: self.ready or self.ended, "ready", START_SECONDS)
            assert not self.ended, self.log
            yield self

    @contextlib.contextmanager
    def started(self, **other_secrets: Path) -> "Iterator[Deployment]":
        """Starts all processes, without waiting until they are ready, and ends them at exit. `other_secrets` are secret
        files, by role, instead of the deployment's."""
        try:
            for role, command in self._commands.items():
                env = self._env | {"TANDEM_CLUSTER_SECRET_FILE": str(other_secrets.get(role, self.secret))}
                program = self._shim if role == "shim" else TANDEM
                process = subprocess.Popen([*program, *command], stderr=subprocess.PIPE, text=True, env=env)
                self.processes[role] = process
                threading.Thread(target=self._read, args=(role, process), daemon=True).start()
            yield self
        finally:
            for process in self.processes.values():
                process.terminate()
            for process in self.processes.values():
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    @property
    def ready(self) -> bool:
        return any("ready on http" in line for line in self.lines["shim"])

    @property
    def ended(self) -> list[str]:
        return [role for role, process in self.processes.items() if process.poll() is not None]

    @property
    def log(self) -> str:
        """All log lines except those of single requests."""
        return "".join(line for lines in self.lines.values() for line in lines if "request finished" not in line)

    def healthy(self) -> bool:
        answers = [httpx.get(f"http://{address}/health", timeout=5, **PLAIN_HTTP) for address in self.metrics_addresses]
        return all(answer.status_code == 200 for answer in answers)

    def memory(self) -> dict[str, int]:
        """Returns, by role, the resident bytes of the process that it shares with no other process."""
        return {
            role: 1024 * sum(
                int(line.split()[1]) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
                if line.startswith("RssAnon")
            )
            for role, process in self.processes.items()
        }  # fmt: skip

    def descriptors(self) -> dict[str, int]:
        return {role: len(list(Path(f"/proc/{process.pid}/fd").iterdir())) for role, process in self.processes.items()}

    def _read(self, role: str, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self.lines[role].append(line)
