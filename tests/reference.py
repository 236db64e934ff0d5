"""Reference answers of transformers: greedy, unpadded, one prompt at a time, with the logits of every step."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.checkpoints import DEMO_VOCAB_SIZE

TIE = 1e-5  # a smaller gap between transformers' own best two logits counts as a tie


@dataclass(frozen=True)
class ReferenceAnswer:
    token_ids: list[int]
    logprobs: list[float]  # of each chosen token
    gaps: list[float]  # between the best two logits of each step


def mixed_prompts(
    seed: int, count: int = 32, lengths: Sequence[int] = (1, 3, 17, 40, 64, 90, 160), shared: int = 40
) -> list[list[int]]:
    """Returns `count` random prompts with lengths from `lengths`; half of them have `shared` common tokens before."""
    source = random.Random(seed)
    beginning = [source.randrange(DEMO_VOCAB_SIZE) for _ in range(shared)]
    prompts = []
    for index in range(count):
        own = [source.randrange(DEMO_VOCAB_SIZE) for _ in range(source.choice(lengths))]
        prompts.append(beginning + own if index % 2 else own)
    return prompts


def generate(path: Path, prompts: list[list[int]], max_tokens: int, device: str = "cpu") -> list[ReferenceAnswer]:
    """Returns the greedy answers of transformers, in float32: exactly `max_tokens` tokens for each prompt."""
    # On a GPU plain matrix products: fused attention may compute float32 in lower precision.
    attention = {} if device == "cpu" else {"attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **attention).eval().to(device)
    model.generation_config.eos_token_id = None
    return [_generate_one(model, prompt, max_tokens) for prompt in prompts]


def _generate_one(model: torch.nn.Module, prompt: list[int], max_tokens: int) -> ReferenceAnswer:
    ids = torch.tensor([prompt], device=model.device)
    out = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    token_ids = out.sequences[0, len(prompt) :].tolist()
    logits = torch.cat(out.logits).cpu()
    best = logits.topk(2).values
    chosen = torch.log_softmax(logits, dim=-1)[torch.arange(len(token_ids)), token_ids]
    return ReferenceAnswer(token_ids, chosen.tolist(), (best[:, 0] - best[:, 1]).tolist())


def assert_equal_but_for_ties(
    expected: ReferenceAnswer, token_ids: list[int], logprobs: list[float], tolerance: float = 1e-4
) -> int:
    """Compares token by token, and logprobs within `tolerance`. Returns 1 if the answers differ from a tie of
    transformers' logits on, else 0. Raises AssertionError for any other difference."""
    assert len(token_ids) == len(logprobs) == len(expected.token_ids)
    for index, (ours, theirs) in enumerate(zip(token_ids, expected.token_ids, strict=True)):
        if ours != theirs:
            gap = expected.gaps[index]
            assert gap < TIE, f"token {index}: {ours}, transformers says {theirs} with a gap of {gap}"
            return 1
        difference = abs(logprobs[index] - expected.logprobs[index])
        assert difference <= tolerance, f"token {index}: logprob off by {difference}"
    return 0
