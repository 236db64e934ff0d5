"""`tandem bench transport`: what a token costs on its way from worker to client, over the real processes and sockets.

Shim, tokenizer and engine run with their own command lines; the worker answers without a model, and the client reads
what came only when all is over. Counted is the time in which all streams run. Without a step time (0), tokens per
second are what the machine can carry: the worker is never more than a few tokens ahead of the client. With one, each
token has its way for itself, and the time from the worker's socket to the client's is worth reading.
"""

import argparse
import contextlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

import demo
from loadtest.engine.command import count
from loadtest.transport.instant_worker import PROMPT_LEN
from loadtest.transport.stream_client import ALPHABET, ENDING, RUNNING
from services.errors import Fatal
from services.machine import authority, cpu_seconds, loopback
from services.machine.listen import listen
from services.options.declarations import EngineOptions
from services.process.child_processes import ChildFailed, ChildProcesses
from services.process.launcher import is_ready
from services.process.runtime_dir import runtime_dir

NUM_STREAMS = (16, 64, 256)
STEP_MS = (50.0, 20.0, 0.0)
MAX_STEP_MS = 1000
SECRET_BYTES = 32
READY_SECONDS = 30.0
POLL_SECONDS = 0.05
STEPS, TOKENIZER_MESSAGES, SHIM_MESSAGES = "steps", "tokenizer", "shim"
COUNTERS = {
    ("vllm:iteration_tokens_total_count", "engine"): STEPS,
    ("tandem:link_messages_total", "tokenizer"): TOKENIZER_MESSAGES,
    ("tandem:link_messages_total", "shim"): SHIM_MESSAGES,
}
PROCESSES = ("worker", "engine", "tokenizer", "shim", "client")
COLUMNS = ("streams", "step ms", "tokens/s", "per chunk", "p50 ms", "p99 ms", "engine→tok", "tok→shim", *PROCESSES)


Times = npt.NDArray[np.int64]  # ns, CLOCK_MONOTONIC


@dataclass(frozen=True)
class Load:
    num_streams: int
    num_tokens: int  # of each stream
    step_ms: float  # 0: as fast as it goes
    tcp: bool = False  # with TLS and CURVE, as between machines; else Unix sockets


@dataclass(frozen=True)
class Files:
    """What the processes of one measurement leave in its folder."""

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
class Edges:
    """Where the processes listen, and the file of their secret, which its descriptor alone leads to."""

    engine: str
    worker: str
    tokenizer: str
    secret: IO[bytes] | None = None

    @property
    def arguments(self) -> list[str]:
        return [f"--cluster-secret-file=/dev/fd/{self.secret.fileno()}"] if self.secret is not None else []

    @property
    def fds(self) -> list[int]:
        return [self.secret.fileno()] if self.secret is not None else []


@contextlib.contextmanager
def edges(folder: Path, tcp: bool) -> Iterator[Edges]:
    if not tcp:
        yield Edges(f"unix:{folder}/engine.sock", f"ipc://{folder}/worker.sock", f"unix:{folder}/tokenizer.sock")
        return
    with contextlib.ExitStack() as held, tempfile.TemporaryFile(dir=folder) as secret:
        fronts = [held.enter_context(listen(None, 0)) for _ in range(3)]  # all at once, so that they are different
        engine, worker, tokenizer = (authority(*front.getsockname()[:2]) for front in fronts)
        held.close()
        secret.write(secrets.token_hex(SECRET_BYTES).encode())
        secret.flush()
        yield Edges(engine, f"tcp://{worker}", tokenizer, secret)


@dataclass(frozen=True)
class Sample:
    """At one moment: CPU seconds that each process has used (NaN: not told), and its counters."""

    moment: int  # ns, CLOCK_MONOTONIC
    cpu: dict[str, float]
    counters: dict[str, float]


@dataclass(frozen=True)
class Measured:
    """Between two samples."""

    tokens_per_second: float
    tokens_per_chunk: float
    latencies: npt.NDArray[np.float64]  # ms, one for each token
    messages_per_step: tuple[float, float]  # from engine to tokenizer, from tokenizer to shim
    cpu_us_per_token: dict[str, float]


def letter_ids() -> list[int]:
    """The token of each letter; an answer of them tells how many tokens it has, and which."""
    tokenizer = Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[letter] for letter in ALPHABET]


def measure(load: Load) -> Measured:
    """Starts everything, streams, ends everything. Raises Fatal when a process fails or a stream is not whole."""
    with runtime_dir(None) as folder, listen(None, 0) as front:
        files = Files(folder)
        np.zeros(1, dtype=np.int64).tofile(files.count)
        with edges(folder, load.tcp) as addresses, ChildProcesses() as tree:
            _start_roles(tree, load, files, front, addresses)
            _wait_until_ready(tree, front)
            samples = _stream(tree, load, front, files)
        with np.load(files.received) as found:
            return _evaluate(samples, np.load(files.sent), found["received"], found["chunks"])


def _start_roles(tree: ChildProcesses, load: Load, files: Files, front: socket.socket, at: Edges) -> None:
    values = {
        "log_level": "error",
        "max_num_seqs": load.num_streams,
        "max_num_batched_tokens": max(EngineOptions.max_num_batched_tokens, load.num_streams * PROMPT_LEN),
    }
    shape = [f"--num-streams={load.num_streams}", f"--num-tokens={load.num_tokens}", f"--step-ms={load.step_ms}"]
    letters = ["--token-ids", *map(str, letter_ids())]
    argv = [
        "loadtest.transport.instant_worker",
        f"--engine={at.worker}",
        *at.arguments,
        f"--file={files.sent}",
        f"--received-file={files.count}",
        *shape,
        *letters,
    ]
    tree.start_module("worker", argv, {}, at.fds)
    tree.start_with_metrics(
        "engine", values, f"--listen={at.engine}", f"--worker={at.worker}", *at.arguments, fds=at.fds
    )
    tokenizer = [f"--listen={at.tokenizer}", f"--engine={at.engine}"]
    tree.start_with_metrics("tokenizer", values, *tokenizer, *at.arguments, fds=at.fds)
    shim = [
        f"--tokenizer={at.tokenizer}",
        f"--metrics-peers={','.join(tree.metrics_peers)}",
        f"--listen-fd={front.fileno()}",
    ]
    tree.start("shim", values, *shim, *at.arguments, fds=[front.fileno(), *at.fds])


def _wait_until_ready(tree: ChildProcesses, front: socket.socket) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not is_ready(front):
        tree.raise_if_ended()
        if time.monotonic() > deadline:
            raise Fatal(f"the processes are not ready within {READY_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def _stream(tree: ChildProcesses, load: Load, front: socket.socket, files: Files) -> tuple[Sample, Sample]:
    """Runs the client to its end; samples when all streams run, and when the first one ends."""
    port = front.getsockname()[1]
    argv = [sys.executable, "-m", "loadtest.transport.stream_client", str(port), str(files.received), str(files.count)]
    argv += [str(load.num_streams), str(load.num_tokens)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        pids = {name: child.process.pid for name, child in tree.children.items()} | {"client": client.pid}
        take = {RUNNING: _first_sample, ENDING: _last_sample}
        samples = [take[line.strip()](pids, port) for line in client.stdout]
    if client.returncode != 0:
        raise Fatal(f"the client ended with status {client.returncode}")
    return samples[0], samples[1]


def _first_sample(pids: dict[str, int], port: int) -> Sample:
    """A scrape is work for all of them: it is over before the measured time begins, and comes after its end."""
    counters = _scrape(port)
    return Sample(time.monotonic_ns(), _cpu(pids), counters)


def _last_sample(pids: dict[str, int], port: int) -> Sample:
    moment, cpu = time.monotonic_ns(), _cpu(pids)
    return Sample(moment, cpu, _scrape(port))


def _cpu(pids: dict[str, int]) -> dict[str, float]:
    return {name: cpu_seconds(pid) for name, pid in pids.items()}


def _scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{authority(loopback(), port)}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        COUNTERS[key]: sample.value
        for family in families
        for sample in family.samples
        if (key := (sample.name, sample.labels["process"])) in COUNTERS
    }


def _evaluate(samples: tuple[Sample, Sample], sent: Times, received: Times, chunks: Times) -> Measured:
    """`sent` and `received` [streams, tokens]. Raises Fatal when the streams were over too soon to be measured."""
    first, last = samples
    counted = (first.moment <= received) & (received < last.moment)
    num_tokens = int(counted.sum())
    seconds = (last.moment - first.moment) * 1e-9
    gone = {name: last.counters[name] - first.counters[name] for name in COUNTERS.values()}
    if num_tokens == 0 or gone[STEPS] == 0:
        raise Fatal("no token came while all streams ran: raise --num-tokens")
    return Measured(
        tokens_per_second=num_tokens / seconds,
        tokens_per_chunk=received.size / int(chunks.sum()),
        latencies=((received - sent)[counted] * 1e-6).astype(np.float64),
        messages_per_step=(gone[TOKENIZER_MESSAGES] / gone[STEPS], gone[SHIM_MESSAGES] / gone[STEPS]),
        cpu_us_per_token={name: 1e6 * (last.cpu[name] - first.cpu[name]) / num_tokens for name in PROCESSES},
    )


def _row(load: Load, found: Measured) -> str:
    p50, p99 = np.percentile(found.latencies, [50, 99])
    to_tokenizer, to_shim = found.messages_per_step
    cells = [
        str(load.num_streams),
        f"{load.step_ms:g}",
        f"{found.tokens_per_second:,.0f}",
        f"{found.tokens_per_chunk:.2f}",
        f"{p50:.2f}",
        f"{p99:.2f}",
        f"{to_tokenizer:.2f}",
        f"{to_shim:.2f}",
        *(f"{found.cpu_us_per_token[name]:.1f}" for name in PROCESSES),
    ]
    return _line(cells)


def _line(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>{max(8, len(column))}}" for cell, column in zip(cells, COLUMNS, strict=True))


def _milliseconds(text: str) -> float:
    if not 0 <= (value := float(text)) <= MAX_STEP_MS:
        raise argparse.ArgumentTypeError(f"{text} must be from 0 to {MAX_STEP_MS}")
    return value


def main(argv: Sequence[str]) -> int:
    """Prints a line per load as it comes. Returns the exit status; a wrong command line exits with 2."""
    parser = argparse.ArgumentParser(
        prog="tandem bench transport", description="What a token costs on its way from worker to client."
    )
    parser.add_argument("--num-streams", type=count, nargs="+", default=NUM_STREAMS, help="streams at once")
    parser.add_argument("--num-tokens", type=count, default=200, help="tokens of each stream")
    parser.add_argument("--step-ms", type=_milliseconds, nargs="+", default=STEP_MS, help="time of a step; 0: none")
    parser.add_argument("--tcp", action="store_true", help="TCP with TLS and CURVE between the processes")
    args = parser.parse_args(argv)
    sys.stdout.write(f"{_line(COLUMNS)}\n")
    try:
        for step_ms in args.step_ms:
            for num_streams in args.num_streams:
                load = Load(num_streams, args.num_tokens, step_ms, args.tcp)
                sys.stdout.write(f"{_row(load, measure(load))}\n")
                sys.stdout.flush()
    except (Fatal, ChildFailed) as error:
        sys.stderr.write(f"tandem bench transport: error: {error}\n")
        return 1
    return 0
