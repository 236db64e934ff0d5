"""A worker that runs out of memory says what to set, comes back with a smaller KV cache, and its streams go on."""

import os
import re
import resource
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from services.machine import available_bytes
from tests.checkpoints import make_qwen3
from tests.e2e.api import TEXT, Json
from tests.e2e.harness import ALL_READY, Server, pid_of, wait_for
from tests.memory_group import MemoryGroup, memory_group

VOCAB = 131072  # the logits of 64 rows take 32 MiB: the C library takes as much from the kernel, never from its heap
LONG: dict[str, Any] = {"prompt": [5, 6, 7], "temperature": 1, "seed": 5, "max_tokens": 400, "ignore_eos": True}
MANY: Json = {"prompt": [5] * 20, "max_tokens": 1, "seed": 3, "n": 64}
MB = 2**20
ROOM = 24 * MB  # what the group's processes may take beside what they have when the server is ready


def choices(server: Server, body: Json) -> Any:
    answer = server.post(TEXT, body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def data_bytes(pid: int) -> int:
    found = re.search(r"VmData:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024


def test_memory_that_runs_out_in_a_step(tmp_path: Path) -> None:
    """The limit is the kernel's: the allocation fails, and the weights stay loaded."""
    path = make_qwen3(tmp_path / "model", vocab_size=VOCAB)
    with Server(str(path), "--dtype=float32", "--kv-cache-memory-bytes=64M") as server, ThreadPoolExecutor(2) as pool:
        expected, worker, blocks = choices(server, LONG), pid_of(server, "worker"), server.stats().num_blocks
        running = pool.submit(choices, server, LONG)
        wait_for(lambda: server.stats().num_running == 1, "it runs")
        resource.prlimit(worker, resource.RLIMIT_DATA, (data_bytes(worker) + 12 * MB, resource.RLIM_INFINITY))
        many = pool.submit(choices, server, MANY)
        wait_for(lambda: "memory ran out (" in server.log, "memory runs out")
        resource.prlimit(worker, resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert running.result() == expected
        assert many.result() == choices(server, MANY)
        assert pid_of(server, "worker") == worker, server.log
        lines = [line for line in server.lines if "memory ran out (" in line]  # more than one until the limit is raised
        assert f"the next KV cache has {int(blocks * 0.85)} of {blocks} blocks; lower --kv-cache-memory" in lines[0]
        assert server.stats().num_blocks == int(blocks * 0.85 ** len(lines))
        assert "Traceback" not in server.log


def test_a_kv_cache_that_the_memory_limits_keeps_its_size(tmp_path: Path) -> None:
    """When the next worker loads, less memory is free: spare processes have loaded since the first."""
    layers = 16 * (1 + available_bytes() // 2**38)  # one request of full length fills at least 256 GiB
    heads = {"num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 128, "num_hidden_layers": layers}
    path = make_qwen3(tmp_path / "model", hidden_size=16, max_position_embeddings=2**18, **heads)
    with Server(str(path), "--dtype=float32", "--max-num-seqs=4") as server, ThreadPoolExecutor(1) as pool:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        body, blocks, models = {**LONG, "max_tokens": 100}, server.stats().num_blocks, server.get("/v1/models").json()
        expected = choices(server, body)
        assert models["data"][0]["max_model_len"] == 16 * blocks < 2**18, "one request may fill all that fits"
        answer = pool.submit(choices, server, body)
        wait_for(lambda: server.stats().num_running == 1, "it runs")
        os.kill(pid_of(server, "worker"), signal.SIGKILL)
        assert answer.result() == expected
        assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 16 * server.stats().num_blocks
        assert server.stats().num_blocks == blocks


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    with memory_group() as made:
        yield made


@pytest.fixture
def large(group: MemoryGroup, tmp_path: Path) -> Iterator[Server]:
    """A server in the group. A token's keys and values take 64 KiB; the cache's memory is taken when it is written."""
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128, "num_hidden_layers": 4}
    path = make_qwen3(tmp_path / "model", **heads)
    with group.entered():
        server = Server(str(path), "--dtype=float32", "--kv-cache-memory-bytes=1G", "--no-enable-prefix-caching")
        running = server.__enter__()
    try:
        wait_for(lambda: ALL_READY in running.log, "the launcher knows that all are ready")
        yield running
    finally:
        server.__exit__(None, None, None)


def kills(server: Server) -> list[str]:
    """The ends of workers that had been serving: until the limit is raised, one may end while it loads."""
    ends = (line for line in server.lines if "the worker was killed by SIGKILL by the kernel, because memory" in line)
    return [line for line in ends if "use a smaller model" not in line]


def fill(server: Server, pool: ThreadPoolExecutor, count: int) -> list[Any]:
    prompts = [{**LONG, "prompt": [seed] * 400, "max_tokens": 60, "seed": seed} for seed in range(3, count + 3)]
    return [pool.submit(choices, server, body) for body in prompts]


def test_a_worker_that_the_kernel_kills_for_its_memory_comes_back_smaller(large: Server, group: MemoryGroup) -> None:
    blocks = large.stats().num_blocks
    with ThreadPoolExecutor(20) as pool:
        expected = choices(large, LONG)
        group.limit(group.used() + ROOM)
        answers = [pool.submit(choices, large, LONG), *fill(large, pool, 12)]
        wait_for(lambda: kills(large), "the worker is killed", 60)
        group.limit(2**40)
        assert answers[0].result() == expected
        answered = [answer.result() for answer in answers]
        assert answered[1:] == [answer.result() for answer in fill(large, pool, 12)]
    (line,) = kills(large)
    smaller = int(blocks * 0.85)
    assert (
        f"the worker was killed by SIGKILL by the kernel, because memory ran out: the next KV cache has {smaller}"
        in line
    )
    assert large.stats().num_blocks == smaller


@pytest.mark.long
def test_the_kv_cache_shrinks_three_times_at_most(large: Server, group: MemoryGroup) -> None:
    blocks = large.stats().num_blocks
    with ThreadPoolExecutor(20) as pool:
        for count in range(1, 5):
            wait_for(lambda: large.stats().num_running == 0 and large.get("/health").status_code == 200, "idle", 60)
            group.limit(group.used() + ROOM)
            answers = fill(large, pool, 12)
            wait_for(lambda count=count: len(kills(large)) >= count, f"kill {count}", 120)
            group.limit(2**40)
            assert all(answer.result() for answer in answers)
    sizes = [re.search(r"the next KV cache has (\d+) of|gets no smaller", line) for line in kills(large)]
    assert [size and size.group(1) for size in sizes] == [
        *(str(int(blocks * 0.85**count)) for count in (1, 2, 3)),
        None,
    ]
    assert large.stats().num_blocks == int(blocks * 0.85**3)
