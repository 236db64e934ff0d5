"""What a request has made is freed when it ends: nothing of it waits for the garbage collector in a cycle."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.cases import make_cases
from tests.chaos.load import Load
from tests.chaos.part import VARIANTS
from tests.chaos.snapshots import probe_environment, probed
from tests.e2e.harness import Server

NUM_REQUESTS = 150
SECONDS = 120.0
MOST = 60  # objects: fewer than there are requests of any kind, refused ones too
REFUSED: list[dict[str, Any]] = [{"prompt": [10**6]}, {"prompt": "a", "guided_regex": "(["}, {"prompt": "a", "n": -1}]


async def _be_refused(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        for body in REFUSED * (MOST + 1):
            assert (await client.post("/v1/completions", json=body)).status_code == 400


async def _ask(load: Load, number: int) -> None:
    """Sends requests, some of which their clients give up, until `number` have ended."""
    load.start()
    end, deadline = load.counts.total() + number, time.monotonic() + SECONDS
    while load.counts.total() < end or load.in_flight:
        assert time.monotonic() < deadline, load.counts
        if load.counts.total() >= end:
            load.close()
        await asyncio.sleep(0.05)
    await load.stop()


async def test_requests_of_all_kinds_leave_no_garbage(tmp_path: Path) -> None:
    with Server(*VARIANTS["two tokenizers"], env=probe_environment(tmp_path)) as server:
        load = Load(server.url, make_cases(24, 80), SECONDS)
        await load.learn()
        await _ask(load, NUM_REQUESTS)
        await _be_refused(server.url)
        before = {one.pid: one for one in await asyncio.to_thread(probed, server, tmp_path)}
        await _ask(load, NUM_REQUESTS)
        await _be_refused(server.url)
        after = await asyncio.to_thread(probed, server, tmp_path)
    assert {one.role for one in after} == {"shim", "tokenizer", "engine", "worker"}
    garbage = {one.name: one.collected - before[one.pid].collected for one in after}
    assert all(count < MOST for count in garbage.values()), garbage
    assert not load.failures and load.counts["hung up"], load.counts
