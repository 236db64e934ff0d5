"""Batch invariance: 32 requests, each alone, and again in a loaded server; tokens and logprobs are equal to the bit.

Loaded means: arrivals at random moments, steps of few tokens, prompts found in the prefix cache, requests preempted;
the engine's counters say that all of it happened.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from services.worker.checkpoint import read_checkpoint
from services.worker.kv_cache import block_bytes
from services.worker.models.describe import describe
from services.worker.models.kv_layout import kv_layout
from tests.checkpoints import DEMO_VOCAB_SIZE, make_gemma3, make_gpt_oss, make_qwen3, make_qwen3_moe
from tests.e2e.harness import Server
from tests.e2e.options import all_kernels

NUM_REQUESTS = 32
MAX_TOKENS = 40
BLOCK_SIZE, NUM_BLOCKS, MAX_LEN = 8, 48, 300
SEED = 11
# Seconds over which a crowd arrives. Dense ones preempt, sparse ones find prefixes; the machine decides which.
SPREADS = (0.5, 1.0, 0.25, 2.0, 0.125, 4.0, 0.06, 8.0)
SHAPES: dict[str, dict[str, Any]] = {
    "grouped-tied": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16},
    "odd-sizes": {
        "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24,
        "intermediate_size": 136, "tie_word_embeddings": False, "num_hidden_layers": 3,
    },
    "windowed": {},
    "experts": {},
    "sparse": {},
}  # fmt: skip
MORE_BLOCKS = {"windowed": 96, "experts": 64}  # of several KV groups
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.1, "top_p": 0.95},
    {"temperature": 0.8, "top_k": 50, "min_p": 0.01},
    {"temperature": 1.0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    {"temperature": 0.9, "logit_bias": {"7": 4.5, "300": -100, "40": 2}, "frequency_penalty": 0.5},
    {"temperature": 1.0, "allowed_token_ids": list(range(30, 400, 3)), "presence_penalty": 0.2},
    {"temperature": 0, "bad_words": ["e", "th", "the", "a b", "!!"], "logprob_token_ids": [5, 90, 1], "logprobs": 0},
    {"temperature": 1.0, "ignore_eos": False, "min_tokens": 8, "logit_bias": {"2": 6}, "stop_token_ids": [50]},
    {"temperature": 1.0, "guided_json": {"type": "array", "items": {"type": "integer"}, "minItems": 40}},
    {"temperature": 1.0, "guided_regex": "([a-z]{3,9}[.,!] ?){99}", "frequency_penalty": 0.5},
]
TRUNCATED = {"truncate_prompt_tokens": 50}  # of every fifth request


def requests(seed: int) -> list[dict[str, Any]]:
    """Every second prompt begins with the one before; sampling parameters alternate."""
    source = random.Random(seed)
    bodies = []
    for index in range(NUM_REQUESTS):
        prompt = [source.randrange(DEMO_VOCAB_SIZE) for _ in range(source.choice([1, 5, 20, 60, 120]))]
        if index % 2:
            prompt = bodies[-1]["prompt"] + prompt
        body = {
            "prompt": prompt, "max_tokens": source.randrange(10, MAX_TOKENS), "seed": index, "ignore_eos": True,
            "logprobs": 3, "return_token_ids": True, **SAMPLINGS[index % len(SAMPLINGS)],
        }  # fmt: skip
        body |= TRUNCATED if index % 5 == 4 else {}
        bodies.append(body)
    return bodies


async def ask(client: httpx.AsyncClient, body: dict[str, Any], delay: float = 0.0) -> dict[str, Any]:
    await asyncio.sleep(delay)
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


async def one_by_one(server: Server, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as client:
        return [await ask(client, body) for body in bodies]


async def at_random_moments(
    server: Server, bodies: list[dict[str, Any]], source: random.Random, seconds: float
) -> list[dict[str, Any]]:
    """Sends every second request when the one before, its prefix, has its answer."""

    async def both(client: httpx.AsyncClient, index: int) -> list[dict[str, Any]]:
        first = await ask(client, bodies[index], seconds * source.random())
        return [first, await ask(client, bodies[index + 1])]

    async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as client:
        pairs = await asyncio.gather(*(both(client, index) for index in range(0, len(bodies), 2)))
    return [answer for pair in pairs for answer in pair]


def is_crowded(server: Server) -> bool:
    """Checks that preemption, chunked prefill and prefix hits all happened more than once."""
    stats = server.stats()
    return bool(stats.num_preemptions > 3 and stats.num_chunked_rows > 10 and stats.prefix_cache_hits > 100)


def histogram(server: Server) -> dict[str, int]:
    """Returns the number of steps by the number of tokens computed in them."""
    families = text_string_to_metric_families(server.metrics().text)
    (family,) = (family for family in families if family.name == "vllm:iteration_tokens_total")
    counts = [(s.labels["le"], int(s.value)) for s in family.samples if s.name.endswith("_bucket")]
    return {le: count - before for (le, count), (_, before) in zip(counts, [("", 0), *counts], strict=False)}


def block_size_in_bytes(path: Path, dtype: str) -> int:
    description = describe(read_checkpoint(path, {}, "auto").config)
    return block_bytes(description, kv_layout(description, MAX_LEN), BLOCK_SIZE, getattr(torch, dtype))


@all_kernels
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ("grouped-tied", "bfloat16"),
        pytest.param("odd-sizes", "float32", marks=pytest.mark.long),
        pytest.param("windowed", "bfloat16", marks=pytest.mark.long),
        pytest.param("experts", "bfloat16", marks=pytest.mark.long),
        pytest.param("grouped-tied", "float32", marks=pytest.mark.long),
        pytest.param("odd-sizes", "bfloat16", marks=pytest.mark.long),
        pytest.param("windowed", "float32", marks=pytest.mark.long),
        pytest.param("experts", "float32", marks=pytest.mark.long),
        pytest.param("sparse", "bfloat16", marks=pytest.mark.long),
    ],
)
def test_a_request_gets_the_same_answer_alone_and_in_a_crowd(
    tmp_path: Path, shape: str, dtype: str, kernels: tuple[str, ...]
) -> None:
    make = {"windowed": make_gemma3, "experts": make_gpt_oss, "sparse": make_qwen3_moe}.get(shape, make_qwen3)
    path = make(tmp_path / "model", seed=SEED, **SHAPES[shape])
    bodies = requests(SEED)
    with Server(str(path), f"--dtype={dtype}", *kernels, "--no-enable-prefix-caching") as server:
        alone = asyncio.run(one_by_one(server, bodies))
        assert server.stats().prefix_cache_hits == server.stats().num_preemptions == 0
    num_blocks = MORE_BLOCKS.get(shape, NUM_BLOCKS)
    limits = (f"--block-size={BLOCK_SIZE}", f"--kv-cache-memory-bytes={num_blocks * block_size_in_bytes(path, dtype)}")
    steps = ("--max-num-batched-tokens=48", "--max-num-seqs=16", f"--max-model-len={MAX_LEN}")
    source, crowds = random.Random(SEED), []
    with Server(str(path), f"--dtype={dtype}", "--cpu-threads=2", *kernels, *limits, *steps) as server:
        while len(crowds) < len(SPREADS) and not (crowds and is_crowded(server)):
            crowds.append(asyncio.run(at_random_moments(server, bodies, source, SPREADS[len(crowds)])))
        assert is_crowded(server), f"{len(crowds)} crowds left it at peace: {server.stats()}"
        stats, sizes = server.stats(), histogram(server)
        assert stats.num_blocks == num_blocks
        assert sum(count > 0 for count in sizes.values()) >= 4, f"too few batch sizes were met: {sizes}"
        print(f"{shape}, {dtype}: {len(crowds)} crowds, {stats.num_preemptions} preemptions; tokens of a step: {sizes}")
    for crowd in crowds:
        for index, (mine, theirs) in enumerate(zip(crowd, alone, strict=True)):
            assert mine["token_ids"] == theirs["token_ids"], f"request {index}"
            assert mine["logprobs"] == theirs["logprobs"], f"request {index}"
