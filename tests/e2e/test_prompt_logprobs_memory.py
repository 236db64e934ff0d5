"""Sixteen prompts of the largest length with twenty logprobs per token, at once: the worker keeps to its memory plan,
the shim to its limit, and neighbours keep their tokens."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import DEMO_VOCAB_SIZE, make_qwen3
from tests.e2e.api import MAX_LEN, TEXT, Json
from tests.e2e.harness import Server, children_of, pid_of, role_of, wait_for

COUNT = 16
KV_CACHE = 300_000_000
OTHERS = 200_000_000  # bytes by which another process may grow; the shim's limit on what it holds is 512 MiB
PLAN = re.compile(r"peak of a step (\d+\.\d+) GB, KV cache (\d+\.\d+) GB")
NEIGHBOURS: list[Json] = [
    {"prompt": f"Number {seed}:", "temperature": 1, "seed": seed, "max_tokens": 100, "ignore_eos": True, "logprobs": 1}
    for seed in range(COUNT)
]


def memory(pid: int, name: str = "VmRSS") -> int:
    """Returns a process's memory, or its peak (VmHWM), in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def ask(server: Server, body: Json) -> Any:
    response = server.post(TEXT, body)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


@pytest.mark.long
def test_large_scores_keep_to_the_plan(tmp_path: Path) -> None:
    flags = ("--dtype=float32", f"--kv-cache-memory-bytes={KV_CACHE}", "--cpu-threads=1", "--max-num-seqs=32")
    with Server(str(make_qwen3(tmp_path, max_position_embeddings=MAX_LEN)), *flags) as server:
        alone = [ask(server, body) for body in NEIGHBOURS]
        before = {pid: memory(pid) for pid in children_of(server.process.pid)}
        prompts = [[token_id * (29 + row) % DEMO_VOCAB_SIZE for token_id in range(MAX_LEN - 1)] for row in range(COUNT)]
        bodies = [{"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 20} for prompt in prompts]
        with ThreadPoolExecutor(2 * COUNT) as pool:
            large = [pool.submit(ask, server, body) for body in bodies]
            wait_for(lambda: server.stats().num_running > 0, "they run")
            assert [*pool.map(lambda body: ask(server, body), NEIGHBOURS)] == alone
            for answer, prompt in zip(large, prompts, strict=True):
                (choice,) = answer.result()
                found = choice["prompt_logprobs"]
                assert len(found) == len(prompt) and found[0] is None
                assert all(str(own) in entry for own, entry in zip(prompt[1:], found[1:], strict=True))
        plan = PLAN.search(server.log)
        assert plan is not None
        planned = sum(map(float, plan.groups())) * 1e9
        worker = pid_of(server, "worker")
        assert memory(worker, "VmHWM") - before[worker] < planned
        for pid, size in before.items():
            assert pid == worker or memory(pid, "VmHWM") - size < OTHERS, role_of(pid)
