"""Batch invariance of whole answers in bf16: resumed at every token, chunked prefill, prefix cache, other requests."""

from pathlib import Path
from typing import Any

import pytest

from engine_core.request_check import NewChoice, make_request
from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from tests.checkpoints import DEMO_VOCAB_SIZE, make_gemma3, make_gpt_oss, make_qwen3
from tests.fakes import ROOT_KEY
from tests.reference import mixed_prompts
from tests.worker.in_process import Answer, InProcess

SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "dtype": "bfloat16"},
    "odd": {
        "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24,
        "intermediate_size": 136, "tie_word_embeddings": False, "dtype": "bfloat16",
    },
    "windowed": {"dtype": "bfloat16"},
    "experts": {"dtype": "bfloat16"},
}  # fmt: skip
PROMPT = [token_id % DEMO_VOCAB_SIZE for token_id in range(3, 3000, 71)]
NUM_TOKENS = 48
SAMPLED = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.9, top_p=0.98, frequency_penalty=0.3, logprobs=2)


@pytest.fixture(params=[None, "int8"], ids=["plain", "int8"])
def quantization(request: pytest.FixtureRequest) -> str | None:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=list(SHAPES))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make = {"windowed": make_gemma3, "experts": make_gpt_oss}.get(request.param, make_qwen3)
    return make(tmp_path_factory.mktemp("model"), seed=2, **SHAPES[request.param])


def start(path: Path, quantization: str | None, budget: int = 512, seqs: int = 8, caching: bool = False) -> InProcess:
    options = WorkerOptions(
        model=str(path), device="cpu", dtype="bfloat16", max_model_len=256, block_size=8, quantization=quantization
    )
    return InProcess(path, options, BatchLimits(1, seqs, budget), caching)


def resume(engine: InProcess, done: list[int]) -> Answer:
    """Returns the rest of the answer after the tokens `done`."""
    handle = len(engine.answers)
    engine.answers[handle] = answer = Answer()
    new = NewChoice(handle, 0, PROMPT, done, SAMPLED, 7, "", None)
    assert engine.scheduler.add(make_request(new, engine.facts, ROOT_KEY)) is None
    while engine.step():
        pass
    return answer


def test_a_request_resumed_at_every_token_goes_on_with_the_same_bits(path: Path, quantization: str | None) -> None:
    engine = start(path, quantization)
    (whole,) = engine.complete([PROMPT], SAMPLED, [7])
    assert len(whole.token_ids) == NUM_TOKENS and len(set(whole.token_ids)) > 10
    for index in range(1, NUM_TOKENS):
        rest = resume(engine, whole.token_ids[:index])
        assert rest.token_ids == whole.token_ids[index:], f"resumed at {index}"
        assert rest.logprobs == whole.logprobs[index:], f"resumed at {index}"


@pytest.mark.parametrize("budget", [8, 13, 64])
def test_chunks_and_neighbours_change_no_bit(path: Path, quantization: str | None, budget: int) -> None:
    prompts = mixed_prompts(seed=budget, count=8, lengths=(1, 17, 40, 90))
    seeds = list(range(len(prompts)))
    alone = [
        start(path, quantization).complete([prompt], SAMPLED, [seed])[0]
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    engine = start(path, quantization, budget, caching=True)
    together = engine.complete(prompts, SAMPLED, seeds)
    assert engine.stats.num_chunked_rows > 3
    assert together == alone
    assert engine.complete(prompts, SAMPLED, seeds) == alone
    assert engine.stats.prefix_cache_hits > 200
