"""`python -m loadtest.studies.observability`: the CPU time per request that metrics and traces cost.

Measures three servers in turn and prints medians of the rounds. "bare" has prometheus_client's methods replaced by
no-ops, through a sitecustomize on its path (tandem has no such option). "default" has metrics. "traced" also exports a
trace of every request to a collector. Takes a few minutes; run nothing else meanwhile.
"""

import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.e2e.collector import Collector
from tests.e2e.harness import PLAIN_HTTP, Server, wait_for

ROUNDS, REQUESTS, CONCURRENCY, TOKENS = 15, 100, 8, 16
ROLES = ("worker", "engine", "tokenizer", "shim")
NO_METRICS = """
import prometheus_client as p
for kind, methods in ((p.Counter, ("inc",)), (p.Gauge, ("set",)), (p.Histogram, ("observe",))):
    for method in methods:
        setattr(kind, method, lambda self, *args, **kwargs: None)
"""


def cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds of a process's current threads, in ns resolution; /proc/PID/stat has 10 ms."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) * 1e-9


async def send_all(server: Server) -> None:
    """Sends REQUESTS requests, CONCURRENCY at a time."""
    numbers = iter(range(REQUESTS))

    async def send() -> None:
        for number in numbers:
            body = {"prompt": [number % 900 + 100] * 8, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
            (await client.post("/v1/completions", json=body)).raise_for_status()

    async with httpx.AsyncClient(base_url=server.url, timeout=60, **PLAIN_HTTP) as client:
        await asyncio.gather(*(send() for _ in range(CONCURRENCY)))


def one_round(server: Server) -> dict[str, float]:
    """Sends REQUESTS requests and waits until the engine is idle. Returns the µs of CPU time per request, by role."""
    before = [cpu_seconds(pid) for pid in server.pids]
    asyncio.run(send_all(server))
    wait_for(lambda: server.stats().num_running == 0, "idle")
    after = [cpu_seconds(pid) for pid in server.pids]
    spent = [1e6 * (b - a) / REQUESTS for a, b in zip(before, after, strict=True)]
    return dict(zip(ROLES, spent, strict=True))


@contextlib.contextmanager
def servers() -> Iterator[dict[str, Server]]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        (Path(folder) / "sitecustomize.py").write_text(NO_METRICS)
        collector = stack.enter_context(Collector())
        yield {
            "bare": stack.enter_context(Server(env={"PYTHONPATH": folder})),
            "default": stack.enter_context(Server()),
            "traced": stack.enter_context(Server(f"--otlp-traces-endpoint={collector.endpoint}")),
        }


def main() -> None:
    with servers() as running:
        for server in running.values():
            one_round(server)  # warm-up
        rounds = [{name: one_round(server) for name, server in running.items()} for _ in range(ROUNDS)]
    print(f"CPU time per request in µs, medians of {ROUNDS} rounds of {REQUESTS} requests, {TOKENS} tokens each")
    print(f"{'':10}" + "".join(f"{role:>12}" for role in ROLES) + f"{'without worker':>18}")
    for name in running:
        medians = {role: statistics.median(each[name][role] for each in rounds) for role in ROLES}
        others = statistics.median(sum(each[name][role] for role in ROLES[1:]) for each in rounds)
        print(f"{name:10}" + "".join(f"{medians[role]:12.0f}" for role in ROLES) + f"{others:18.0f}")
    for name, base in (("default", "bare"), ("traced", "default")):
        differences = [sum(each[name][role] - each[base][role] for role in ROLES[1:]) for each in rounds]
        print(f"{name} minus {base}, without worker: {statistics.median(differences):.0f} µs (median of the rounds)")


if __name__ == "__main__":
    main()
