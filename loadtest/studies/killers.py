"""`python -m loadtest.studies.killers [KIND...] [--killers 1 3]`: requests that kill a process, among 64 others.

The same requests run first without the killers, then with them. Prints for each kind of tests/e2e/faults and number of
killers: deaths of processes, seconds until all other requests had ended beside those without killers, tokens computed
more than without killers, other requests that were lost or differ in a byte, and how the killers ended.

Two tokenizers, the demo model, a step timeout of one second. Tokens that an engine has computed in its last
POLL_SECONDS before it died are not counted.
"""

import argparse
import asyncio
import collections
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx

from services.rpc.generated import engine_pb2, engine_pb2_grpc
from tests.e2e.api import CHAT, TEXT, Json, choices_of, fold
from tests.e2e.harness import ALL_READY, PLAIN_HTTP, SPARES, Server, wait_for

POISON, OTHERS, SPACING_SECONDS, POLL_SECONDS = 900, 64, 0.02, 0.02
KINDS = (
    *("worker", "worker-later", "worker-again", "worker-hangs", "engine", "engine-later"),
    *("tokenizer", "tokenizer-later", "tokenizer-hangs", "tokenizer-tokenize"),
)
FAULTS = str(Path(__file__).parents[2] / "tests/e2e/faults")
TOKENIZE = "/tokenize"
DEATH = re.compile(r"the (\S+) (exited with status 9|was killed by SIGALRM|has made no progress)")
Request = tuple[str, Json]


def others() -> list[Request]:
    """Chats, completions, streams and whole answers, some with two choices, and a few calls of /tokenize."""
    found: list[Request] = []
    for index in range(OTHERS):
        body: Json = {"max_tokens": 150 + 10 * (index % 8), "ignore_eos": True, "return_token_ids": True, "seed": index}
        body |= {"temperature": index % 3 / 2, "n": 1 + (index % 5 == 0), "stream": index % 2 == 0}
        if index % 16 == 15:
            found.append((TOKENIZE, {"prompt": f"Which way to number {index}?"}))
        elif index % 4 < 2:
            found.append((CHAT, {**body, "messages": [{"role": "user", "content": f"Which way to number {index}?"}]}))
        else:
            found.append((TEXT, {**body, "prompt": f"Once upon a time there were {index} cats"}))
    return found


def killer(kind: str, index: int) -> Request:
    if kind == "tokenizer-tokenize":
        return TOKENIZE, {"prompt": f"{POISON} {index}"}
    body: Json = {"prompt": [POISON, 5, 6, 7, 8 + index], "max_tokens": 300, "ignore_eos": True, "n": 1 + index % 2}
    return TEXT, {**body, "temperature": 1, "seed": index}


@dataclass
class Computed:
    """Counts the tokens that all incarnations of the engine compute."""

    address: str
    tokens: int = 0

    async def run(self) -> None:
        last = 0
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            while True:
                try:
                    now = (await stub.GetStats(engine_pb2.GetStatsRequest(), timeout=1)).num_scheduled_tokens
                except grpc.aio.AioRpcError:
                    now = last
                self.tokens += now - last if now >= last else now
                last = now
                await asyncio.sleep(POLL_SECONDS)


async def answer(client: httpx.AsyncClient, request: Request, delay: float) -> Any:
    """Returns what a client sees: the parts of the answer that must not change, or the status and error."""
    path, body = request
    await asyncio.sleep(delay)
    if not body.get("stream"):
        response = await client.post(path, json=body)
        whole = response.json()
        if response.status_code != 200:
            return f"{response.status_code} {whole['error']['message']}"
        return whole if path == TOKENIZE else choices_of(whole)
    events = []
    async with client.stream("POST", path, json=body) as response:
        if response.status_code != 200:
            return f"{response.status_code} {json.loads(await response.aread())['error']['message']}"
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
                if "error" in events[-1]:
                    return f"stream: {events[-1]['error']['message']}"
    return fold(events)


@dataclass
class Run:
    answers: list[Any]  # of the requests that kill nothing
    killers: list[Any]
    seconds: float  # until all `answers` were there
    tokens: int


async def run(server: Server, killers: list[Request]) -> Run:
    """Sends all requests, SPACING_SECONDS apart, the killers in the middle."""
    computed = Computed(f"unix:{server.runtime_dir}/engine.sock")
    async with httpx.AsyncClient(base_url=server.url, timeout=300, **PLAIN_HTTP) as client:
        (await client.post("/reset_prefix_cache")).raise_for_status()
        counting, began = asyncio.create_task(computed.run()), time.monotonic()
        sent = [answer(client, one, place * SPACING_SECONDS) for place, one in enumerate(others())]
        middle = OTHERS / 2 * SPACING_SECONDS
        ends = asyncio.gather(*(answer(client, one, middle) for one in killers))
        answers = await asyncio.gather(*sent)
        seconds = time.monotonic() - began
        killed = await ends
        await asyncio.sleep(2 * POLL_SECONDS)
        counting.cancel()
    return Run(answers, killed, seconds, computed.tokens)


def deaths(server: Server) -> "collections.Counter[str]":
    """Returns the deaths of processes by role."""
    return collections.Counter(name.split("-")[0] for name, _ in DEATH.findall(server.log))


@dataclass
class Comparison:
    before: Run  # without killers
    now: Run
    deaths: "collections.Counter[str]"  # of processes, by role

    @property
    def lost(self) -> list[str]:
        return [one for one in self.now.answers if isinstance(one, str)]

    @property
    def num_different(self) -> int:
        pairs = zip(self.now.answers, self.before.answers, strict=True)
        return sum(one != other for one, other in pairs) - len(self.lost)


def compare(kind: str, count: int, *options: str) -> Comparison:
    """Runs the load without and with `count` killers, on a server of its own with these options."""
    env = {"PYTHONPATH": f"{FAULTS}:{Path(__file__).parents[2]}", "TANDEM_TEST_POISON": f"{kind}:{POISON}"}
    with Server(SPARES, "--tokenizer-replicas=2", "--step-timeout=1", *options, env=env) as server:
        wait_for(lambda: ALL_READY in server.log, "all are ready")
        wait_for(lambda: server.post("/reset_prefix_cache", {}).is_success, "the shim is connected to both tokenizers")
        asyncio.run(run(server, []))  # warms up
        before = asyncio.run(run(server, []))
        now = asyncio.run(run(server, [killer(kind, index) for index in range(count)]))
        return Comparison(before, now, deaths(server))


def study(kind: str, count: int, options: list[str]) -> None:
    found = compare(kind, count, *options)
    before, now = found.before, found.now
    died = ", ".join(f"{number} {role}s" for role, number in found.deaths.items())
    print(
        f"{kind} x {count}: {died or 'none'} died; {before.seconds:.1f} -> {now.seconds:.1f} s;"
        f" tokens {before.tokens} + {now.tokens - before.tokens};"
        f" lost {len(found.lost)}, different {found.num_different}",
        flush=True,
    )
    for what, answers in (("killer", now.killers), ("LOST", found.lost)):
        for one, number in collections.Counter(map(str, answers)).items():
            print(f"    {what}: {number} x {one[:120]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--killers", nargs="*", type=int, default=(1, 3))
    args, options = parser.parse_known_args()
    for kind in args.kinds or KINDS:
        for count in args.killers:
            study(kind, count, options)


if __name__ == "__main__":
    main()
