"""Token for token equal to transformers, over real processes, 32 prompts sent at once.

Each run asserts from the engine's own counters that what it names did happen: chunks, prefix hits, preemptions.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import reference
from tests.checkpoints import PARITY_CONFIGS, make_qwen3
from tests.e2e.harness import Server
from tests.e2e.options import all_kernels
from tests.reference import ReferenceAnswer, mixed_prompts

NUM_PROMPTS = 32
MAX_TOKENS = 32
BLOCK_SIZE = 8

SHORT = "grouped-tied"
CONFIGS = [pytest.param(name, marks=[pytest.mark.long] * (name != SHORT)) for name in PARITY_CONFIGS]


@dataclass(frozen=True)
class Case:
    path: Path
    prompts: list[list[int]]
    expected: list[ReferenceAnswer]
    max_tokens: int = MAX_TOKENS


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    path = make_qwen3(tmp_path_factory.mktemp("model"), seed=3, **PARITY_CONFIGS[request.param])
    prompts = mixed_prompts(seed=len(request.param), count=NUM_PROMPTS)
    expected = reference.generate(path, prompts, MAX_TOKENS)
    distinct = {token_id for answer in expected for token_id in answer.token_ids}
    assert len(distinct) > 100, "the model answers much the same for ever: position bugs would hide"
    yield Case(path, prompts, expected)


async def complete_all(server: Server, prompts: list[list[int]], max_tokens: int) -> list[dict[str, Any]]:
    """Sends all prompts at once. Returns the choices in order."""
    async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as client:
        bodies = [
            {
                "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0,
                "return_token_ids": True,
            }
            for prompt in prompts
        ]  # fmt: skip
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
    assert all(answer.status_code == 200 for answer in answers), [answer.text for answer in answers][:1]
    return [answer.json()["choices"][0] for answer in answers]


def check(server: Server, case: Case) -> None:
    choices = asyncio.run(complete_all(server, case.prompts, case.max_tokens))
    ties = sum(
        reference.assert_equal_but_for_ties(expected, choice["token_ids"], choice["logprobs"]["token_logprobs"])
        for expected, choice in zip(case.expected, choices, strict=True)
    )
    print(f"{len(choices)} answers of {case.max_tokens} tokens equal, {ties} parted at a tie")
    assert ties <= 1


def serve(case: Case, *args: str) -> Server:
    return Server(str(case.path), "--dtype=float32", f"--block-size={BLOCK_SIZE}", *args)


@all_kernels
def test_all_at_once_and_again_with_prefix_hits(case: Case, kernels: tuple[str, ...]) -> None:
    with serve(case, *kernels) as server:
        check(server, case)
        first = server.stats()
        assert first.num_preemptions == 0
        check(server, case)
        hits = server.stats().prefix_cache_hits - first.prefix_cache_hits
        whole_blocks = sum((len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE for prompt in case.prompts)
        assert hits == whole_blocks > 1000


@all_kernels
def test_with_chunked_prefill_at_a_small_budget(case: Case, kernels: tuple[str, ...]) -> None:
    limits = ("--max-num-batched-tokens=24", "--max-num-seqs=12", "--no-enable-prefix-caching")
    with serve(case, *limits, *kernels) as server:
        check(server, case)
        stats = server.stats()
        assert stats.num_chunked_rows > NUM_PROMPTS
        assert stats.prefix_cache_hits == 0


@pytest.mark.parametrize("caching", ["--enable-prefix-caching", "--no-enable-prefix-caching"])
@all_kernels
def test_with_so_few_blocks_that_requests_are_preempted(case: Case, caching: str, kernels: tuple[str, ...]) -> None:
    limits = ("--max-model-len=240", f"--kv-cache-memory-bytes={few_blocks(case.path)}")
    with serve(case, *limits, caching, *kernels) as server:
        check(server, case)
        stats = server.stats()
        assert stats.num_blocks == 40
        assert stats.num_preemptions > 5
        assert stats.num_free_blocks == stats.num_blocks


def few_blocks(path: Path) -> int:
    """Returns the size of 40 blocks in float32, in bytes."""
    import json

    config = json.loads((path / "config.json").read_text())
    per_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 4
    return int(40 * BLOCK_SIZE * per_token)
