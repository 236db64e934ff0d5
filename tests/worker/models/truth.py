"""Compares answers and log-probabilities with transformers'."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kernels.interface import AttentionInputs
from services.worker.models.decoder import Decoder
from tests.reference import TIE
from tests.worker.in_process import Answer
from tests.worker.models.parity_cases import BASE, Case

TOLERANCE = 1e-4
BLOCK_SIZE = 8


def prompts_of(case: Case, count: int, longest: int = 90, shared: int = 24, seed: int = 1) -> list[list[int]]:
    """Returns random prompts; every second one has `shared` common tokens before its own."""
    source = random.Random(seed)

    def tokens(size: int) -> list[int]:
        return [source.randrange(BASE["vocab_size"]) for _ in range(size)]

    beginning = tokens(shared)
    found = [tokens(source.randint(case.shortest, longest)) for _ in range(count)]
    return [beginning + own if index % 2 else own for index, own in enumerate(found)]


@torch.inference_mode()
def log_probs(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """Returns transformers' log-probabilities [tokens, vocab] float32 of the token after each."""
    logits = model(torch.tensor([token_ids])).logits[0]
    return logits.float().log_softmax(-1)


@torch.inference_mode()
def own_log_probs(decoder: Decoder, token_ids: Sequence[int]) -> Tensor:
    """Returns the decoder's log-probabilities [tokens, vocab] float32, computed in one step."""
    count = len(token_ids)
    num_blocks = -(-count // BLOCK_SIZE)
    every = torch.arange(count)
    inputs = AttentionInputs(
        slot_mapping=every,
        block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
        query_start_loc=torch.tensor([0, count], dtype=torch.int32),
        seq_lens=torch.tensor([count], dtype=torch.int32),
        num_decodes=int(count == 1),
        max_query_len=count,
        max_seq_len=count,
    )
    cache = decoder.allocate_kv_cache(num_blocks, BLOCK_SIZE)
    hidden = decoder.forward(torch.tensor(token_ids), every, cache, [inputs] * len(decoder.kv_layout.windows), every)
    return decoder.logits(hidden).log_softmax(-1)


def assert_greedy(model: PreTrainedModel, prompts: Sequence[list[int]], answers: Sequence[Answer], count: int) -> None:
    """Asserts that answers of `count` tokens, with their logprobs, are transformers' greedy ones.

    Each token is compared with transformers' best one after the same tokens. At most one may be another, at a tie.
    """
    ties = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer.token_ids) == len(answer.logprobs) == count
        expected = log_probs(model, prompt + answer.token_ids)[len(prompt) - 1 : -1]
        chosen = expected[torch.arange(count), answer.token_ids]
        gaps = expected.max(-1).values - chosen
        assert gaps.max() < TIE, f"token {int(gaps.argmax())} is not the best one: {gaps.max()} below it"
        ties += int((gaps > 0).sum())
        off = (torch.tensor(answer.logprobs) - chosen).abs().max()
        assert off <= TOLERANCE, f"logprobs are off by {off}"
    assert ties <= 1


def saved(case: Case, path: Path) -> tuple[Path, PreTrainedModel]:
    """Writes the case's checkpoint. Returns its path and transformers' model of it, in float32."""
    return case.save(path), case.reference(path)
