"""`python -m loadtest.studies.structured_hostile`: hostile forms of answers beside 16 seeded requests on a real server.

Each form of tests/structured/hostile.py must be served or refused within a second (16 tokens), by HTTP 200 or 400. The
16 requests must keep their tokens, and 80% of their tokens per second over all passes; no process may grow from the
third pass over all forms to the last. The exit status is 1 otherwise. The model has the demo vocabulary and 50 million
random weights, so that a step takes milliseconds, as with a real one. Takes a few minutes; `make structured-test` runs
it.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import demo
from tests.checkpoints import TOKENIZER_FILES
from tests.e2e.harness import PLAIN_HTTP, Server, role_of
from tests.structured.hostile import forms

NEIGHBOURS, NEIGHBOUR_TOKENS = 16, 100
HOSTILE_TOKENS = 16
MAX_SECONDS = 1.0
MIN_SPEED = 0.8
ROUNDS_ALONE = 4  # before each pass, and after it
PASSES = 6
SETTLED_PASS = 3  # by then the allocators have their reserves, and the caches are full
WIDER: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 8, "num_attention_heads": 24,
    "layer_types": None,
}  # fmt: skip
# Bytes of one process, from SETTLED_PASS to the last. The worker takes 16 MiB more at a time, at one pass in five; in
# 45 passes it was flat from the 27th on.
MAX_GROWTH = 48 * 2**20


@dataclass
class Findings:
    """`slowest`: seconds and name of the slowest form. `statuses`: HTTP status -> number."""

    slowest: tuple[float, str] = (0.0, "")
    statuses: dict[int, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def write_model(folder: Path) -> None:
    """Writes config and tokenizer of a model with random weights; WIDER: its sizes."""
    for name in TOKENIZER_FILES:
        shutil.copyfile(demo.CHECKPOINT / name, folder / name)
    config = json.loads((demo.CHECKPOINT / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **WIDER}))


async def neighbour(client: httpx.AsyncClient, number: int) -> list[int]:
    """Returns the token ids of one seeded request."""
    body = {
        "prompt": [100 + number] * 16,
        "max_tokens": NEIGHBOUR_TOKENS,
        "temperature": 1,
        "seed": number,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    response = await client.post("/v1/completions", json=body)
    response.raise_for_status()
    ids: list[int] = response.json()["choices"][0]["token_ids"]
    return ids


async def round_of_neighbours(client: httpx.AsyncClient) -> tuple[list[list[int]], float]:
    """Returns the answers of NEIGHBOURS requests at once, and their tokens per second."""
    began = time.monotonic()
    answers = await asyncio.gather(*(neighbour(client, number) for number in range(NEIGHBOURS)))
    return list(answers), NEIGHBOURS * NEIGHBOUR_TOKENS / (time.monotonic() - began)


async def attack(client: httpx.AsyncClient, findings: Findings, name: str, fields: dict[str, Any]) -> None:
    """Sends one form and judges the answer to it."""
    body = {"prompt": "abc", "max_tokens": HOSTILE_TOKENS, "temperature": 1, "seed": 1, **fields}
    data = json.dumps(body).encode()
    began = time.monotonic()
    response = await client.post("/v1/completions", content=data, headers={"Content-Type": "application/json"})
    seconds = time.monotonic() - began
    findings.slowest = max(findings.slowest, (seconds, name))
    findings.statuses[response.status_code] = findings.statuses.get(response.status_code, 0) + 1
    if response.status_code not in (200, 400):
        findings.failures.append(f"{name}: HTTP {response.status_code}: {response.text[:200]}")
    if seconds > MAX_SECONDS:
        findings.failures.append(f"{name}: {seconds:.2f} s ({response.status_code}: {response.text[:100]})")


async def attack_all(client: httpx.AsyncClient, findings: Findings) -> None:
    for name, fields in forms():
        await attack(client, findings, name, fields)


async def under_attack(client: httpx.AsyncClient, findings: Findings) -> tuple[list[list[list[int]]], list[float]]:
    """Runs rounds of neighbours while all forms are sent, one at a time. Returns their answers and speeds."""
    attacking = asyncio.create_task(attack_all(client, findings))
    answers, speeds = [], []
    while not attacking.done():
        found, speed = await round_of_neighbours(client)
        answers.append(found)
        if not attacking.done():
            speeds.append(speed)
    await attacking
    return answers, speeds


async def study(server: Server, passes: int, verbose: bool) -> Findings:
    findings = Findings()
    beside, alone = [], []
    settled: dict[int, int] = {}
    async with httpx.AsyncClient(base_url=server.url, timeout=120, **PLAIN_HTTP) as client:
        if verbose:
            for name, fields in forms():
                began = time.monotonic()
                await attack(client, findings, name, fields)
                print(f"{time.monotonic() - began:6.3f} s  {name}", flush=True)
        await round_of_neighbours(client)
        expected, _ = await round_of_neighbours(client)
        for number in range(1, passes + 1):
            alone += [(await round_of_neighbours(client))[1] for _ in range(ROUNDS_ALONE)]
            answers, speeds = await under_attack(client, findings)
            alone += [(await round_of_neighbours(client))[1] for _ in range(ROUNDS_ALONE)]
            beside += speeds
            if any(answer != expected for answer in answers):
                findings.failures.append(f"pass {number}: the neighbours' tokens changed")
            if number == SETTLED_PASS:
                settled = {pid: resident_bytes(pid) for pid in server.pids}
    judge_speed(findings, beside, alone)
    judge_memory(findings, settled)
    return findings


def judge_speed(findings: Findings, beside: list[float], alone: list[float]) -> None:
    """`beside`, `alone`: tokens per second of each round with and without hostile forms."""
    speed, full = statistics.mean(beside), statistics.mean(alone)
    print(f"{speed:.0f} tokens/s in {len(beside)} rounds beside hostile forms, {full:.0f} in {len(alone)} without")
    if speed < MIN_SPEED * full:
        findings.failures.append(f"{speed / full:.0%} of the speed without hostile forms")


def judge_memory(findings: Findings, settled: dict[int, int]) -> None:
    """`settled`: process id -> resident bytes after SETTLED_PASS."""
    for pid, before in settled.items():
        more = resident_bytes(pid) - before
        print(f"{role_of(pid)}: {before / 2**20:.0f} MiB, {more / 2**20:+.1f} MiB since pass {SETTLED_PASS}")
        if more > MAX_GROWTH:
            findings.failures.append(f"{role_of(pid)} has grown by {more / 2**20:.0f} MiB")


def run(model: str, passes: int, verbose: bool) -> Findings:
    with Server(model, "--load-format=dummy", "--max-num-seqs=24") as server:
        return asyncio.run(study(server, passes, verbose))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=PASSES, help=f"over all forms; more than {SETTLED_PASS}")
    parser.add_argument("--verbose", action="store_true", help="first send each form alone and print its time")
    args = parser.parse_args()
    if args.passes <= SETTLED_PASS:
        parser.error(f"--passes must be more than {SETTLED_PASS}")
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        findings = run(folder, args.passes, args.verbose)
    seconds, name = findings.slowest
    print(f"{len(forms())} forms, {findings.statuses}, the slowest in {seconds:.2f} s ({name})")
    for failure in findings.failures:
        print(f"  {failure}")
    return 1 if findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())
