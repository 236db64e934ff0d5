"""What a request has made is freed when it ends: nothing of it waits for the garbage collector in a cycle."""

import asyncio
import time
from pathlib import Path

from tests.chaos.cases import make_cases
from tests.chaos.load import Load
from tests.chaos.part import VARIANTS
from tests.chaos.snapshots import probe_environment, probed
from tests.e2e.harness import Server

NUM_REQUESTS = 150
SECONDS = 120.0


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
        before = {one.pid: one for one in await asyncio.to_thread(probed, server, tmp_path)}
        await _ask(load, NUM_REQUESTS)
        after = await asyncio.to_thread(probed, server, tmp_path)
    assert {one.role for one in after} == {"shim", "tokenizer", "engine", "worker"}
    garbage = {one.name: one.collected - before[one.pid].collected for one in after}
    assert all(count < NUM_REQUESTS for count in garbage.values()), garbage
    assert not load.failures and load.counts["hung up"], load.counts
