"""One transport measurement: runs a load and turns samples and time stamps into numbers.

The measured interval begins when every stream has its first token and ends when the first stream is complete. After the
streams, short requests follow, for the CPU time that a request costs.
"""

import math
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from prometheus_client.parser import text_string_to_metric_families

from loadtest.transport.processes import Addresses, Files, Load, addresses, start, wait_until_ready
from loadtest.transport.stream_client import ENDING, RUNNING
from services.errors import Fatal
from services.machine import authority, cpu_seconds, loopback
from services.machine.listen import listen
from services.process.child_processes import ChildProcesses
from services.process.runtime_dir import runtime_dir

STEPS, TOKENIZER_MESSAGES, SHIM_MESSAGES = "steps", "tokenizer", "shim"
COUNTERS = {
    ("vllm:iteration_tokens_total_count", "engine"): STEPS,
    ("tandem:link_messages_total", "tokenizer"): TOKENIZER_MESSAGES,
    ("tandem:link_messages_total", "shim"): SHIM_MESSAGES,
}
PROCESSES = ("worker", "engine", "tokenizer", "shim", "client")
PER_REQUEST = ("engine", "tokenizer", "shim")

Times = npt.NDArray[np.int64]  # ns, CLOCK_MONOTONIC


@dataclass(frozen=True)
class Sample:
    """The state at one moment: CPU seconds used by each process (NaN: unknown), and the counters."""

    moment: int  # ns, CLOCK_MONOTONIC
    cpu: dict[str, float]
    counters: dict[str, float]


@dataclass(frozen=True)
class Measurement:
    """The numbers of the measured interval."""

    tokens_per_second: float
    tokens_per_chunk: float  # over the whole run
    latencies: npt.NDArray[np.float64]  # ms from the worker's socket to the client's, one for each token
    messages_per_step: tuple[float, float]  # from engine to tokenizer, from tokenizer to shim
    cpu_us_per_token: dict[str, float]
    cpu_us_per_request: dict[str, float]  # NaN without requests


def measure(load: Load) -> Measurement:
    """Starts the processes, streams `load`, and ends them. Returns the numbers. Raises Fatal or ChildFailed when a
    process fails, and Fatal when a stream is not complete."""
    with runtime_dir(None) as folder, listen(None, 0) as front:
        files = Files(folder)
        np.zeros(1, dtype=np.int64).tofile(files.count)
        with addresses(folder, load.tcp) as at, ChildProcesses() as children:
            start(children, load, files, front, at)
            wait_until_ready(children, front)
            port = front.getsockname()[1]
            samples = _stream(children, load, port, files, at)
            per_request = _requests(children, load.num_requests, port)
        with np.load(files.received) as found:
            return evaluate(samples, np.load(files.sent), found["received"], found["chunks"], per_request)


def _requests(children: ChildProcesses, num_requests: int, port: int) -> dict[str, float]:
    """Sends short requests over HTTP. Returns the CPU µs of each process per request. Raises Fatal if one fails."""
    if num_requests == 0:
        return dict.fromkeys(PER_REQUEST, math.nan)
    argv = [sys.executable, "-m", "loadtest.transport.request_client", str(port), str(num_requests)]
    pids = {name: children.children[name].process.pid for name in PER_REQUEST}
    samples = []
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None and client.stdout is not None
        for _ in client.stdout:
            samples.append(_cpu(pids))
            client.stdin.write("\n")
            client.stdin.flush()
    if client.returncode != 0:
        raise Fatal(f"the client of requests ended with status {client.returncode}")
    first, last = samples
    return {name: 1e6 * (last[name] - first[name]) / num_requests for name in PER_REQUEST}


def _client(load: Load, port: int, at: Addresses) -> list[str]:
    """Returns the client's module and its first arguments: where it sends its requests."""
    if load.client == "http":
        return ["loadtest.transport.stream_client", str(port)]
    target = at.tokenizer if load.client == "text" else at.engine
    secret = f"/dev/fd/{at.secret.fileno()}" if at.secret is not None else ""
    return ["loadtest.transport.program_client", load.client, target, secret]


def _stream(children: ChildProcesses, load: Load, port: int, files: Files, at: Addresses) -> tuple[Sample, Sample]:
    """Runs the client to its end. Returns the samples at both ends of the measured interval. Raises Fatal if the client
    ends with an error status."""
    argv = [sys.executable, "-m", *_client(load, port, at), str(files.received), str(files.count)]
    argv += [str(load.num_streams), str(load.num_tokens)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, pass_fds=at.fds) as client:
        assert client.stdout is not None
        pids = {name: child.process.pid for name, child in children.children.items()} | {"client": client.pid}
        take = {RUNNING: _first_sample, ENDING: _last_sample}
        samples = [take[line.strip()](pids, port) for line in client.stdout]
    if client.returncode != 0:
        raise Fatal(f"the client ended with status {client.returncode}")
    return samples[0], samples[1]


def _first_sample(pids: dict[str, int], port: int) -> Sample:
    """Returns the state now. Scrapes the metrics first: a scrape costs every process CPU time, which must lie outside
    the measured interval."""
    counters = _scrape(port)
    return Sample(time.monotonic_ns(), _cpu(pids), counters)


def _last_sample(pids: dict[str, int], port: int) -> Sample:
    """Returns the state now. Scrapes the metrics last, for the same reason."""
    moment, cpu = time.monotonic_ns(), _cpu(pids)
    return Sample(moment, cpu, _scrape(port))


def _cpu(pids: dict[str, int]) -> dict[str, float]:
    return {name: cpu_seconds(pid) for name, pid in pids.items()}


def _scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{authority(loopback(), port)}/metrics") as response:
        families = text_string_to_metric_families(response.read().decode())
    return {
        COUNTERS[key]: sample.value
        for family in families
        for sample in family.samples
        if (key := (sample.name, sample.labels["process"])) in COUNTERS
    }


def evaluate(
    samples: tuple[Sample, Sample], sent: Times, received: Times, chunks: Times, per_request: dict[str, float]
) -> Measurement:
    """Returns the numbers between the two samples. Raises Fatal when no token arrived in between.

    `sent` and `received` [streams, tokens]: when each token was sent and arrived, in ns. `chunks` [streams]: the number
    of chunks of the whole run.
    """
    first, last = samples
    counted = (first.moment <= received) & (received < last.moment)
    num_tokens = int(counted.sum())
    seconds = (last.moment - first.moment) * 1e-9
    counts = {name: last.counters[name] - first.counters[name] for name in COUNTERS.values()}
    if num_tokens == 0 or counts[STEPS] == 0:
        raise Fatal("no token arrived while all streams ran: raise --num-tokens")
    return Measurement(
        tokens_per_second=num_tokens / seconds,
        tokens_per_chunk=received.size / int(chunks.sum()),
        latencies=((received - sent)[counted] * 1e-6).astype(np.float64),
        messages_per_step=(counts[TOKENIZER_MESSAGES] / counts[STEPS], counts[SHIM_MESSAGES] / counts[STEPS]),
        cpu_us_per_token={name: 1e6 * (last.cpu[name] - first.cpu[name]) / num_tokens for name in PROCESSES},
        cpu_us_per_request=per_request,
    )
