"""All logits processors together: their order, each row alone and among others, and what a slot keeps."""

import pytest
import torch

from engine_core.step_plan import NewRequest
from kernels.torch_ops import TorchOps
from services.worker import row_groups
from services.worker.logits.pipeline import PROCESSORS, LogitsPipeline
from tests.worker.sample_rows import Row, adjusted, logits_rows, pipeline_of, row

VOCAB = 50
INF = float("inf")
ROWS = [
    row(),
    row(bias={3: 2.0, 4: -1.5}, output=[3, 3], repetition_penalty=1.7, frequency_penalty=0.4),
    row(allowed=[3, 8, 9], bad_words=[[8], [5, 9]], output=[5], presence_penalty=-0.5),
    row(allowed=list(range(2, 50)), bias={0: 5.0, 9: 1.0}, min_tokens=3, eos_token_ids=(9,), output=[4]),
    row(bad_words=[[1, 2], [7]], output=[6, 1], min_tokens=9, stop_token_ids=(11,), ignore_eos=True),
    row([2, 3], [4], repetition_penalty=0.5, bias={2: 3.0}),
    row(output=[20], thinking=(1, [20], [8, 30]), allowed=[3, 9, 20], bias={8: -9.0}, bad_words=[[8]], min_tokens=9,
        eos_token_ids=(8,), repetition_penalty=1.3),
    row(output=[20, 7], thinking=(1, [20], [8, 30]), allowed=[3, 9, 20], bias={8: -9.0}, bad_words=[[8]], min_tokens=9,
        eos_token_ids=(8,), repetition_penalty=1.3),
]  # fmt: skip


def logits_of(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(4)) * 3


def plain(logits: torch.Tensor, one: Row, ends: set[int], allowed: set[int], bias: dict[int, float]) -> torch.Tensor:
    """Returns one row's logits [vocab] after all processors in vLLM's order, computed id by id."""
    logits = logits.clone()
    counts = torch.bincount(torch.tensor(one.output, dtype=torch.int64), minlength=VOCAB)
    for token_id in range(VOCAB):
        if token_id not in allowed or token_id in ends:
            logits[token_id] = -INF
        logits[token_id] += bias.get(token_id, 0.0)
        value, penalty = logits[token_id], one.sampling.repetition_penalty
        if token_id in one.prompt or token_id in one.output:
            value = value / penalty if value > 0 else value * penalty
        value = value - one.sampling.frequency_penalty * counts[token_id]
        logits[token_id] = value - one.sampling.presence_penalty * (counts[token_id] > 0)
    return logits


EVERY = set(range(VOCAB))
PLAIN: list[tuple[set[int], set[int], dict[int, float]]] = [
    (set(), EVERY, {}),
    (set(), EVERY, {3: 2.0, 4: -1.5}),
    ({8, 9}, {3, 8, 9}, {}),
    ({9}, set(range(2, 50)), {0: 5.0, 9: 1.0}),
    ({2, 7, 11}, EVERY, {}),
    (set(), EVERY, {2: 3.0}),
    (set(), {3, 9, 20}, {}),
    (set(), EVERY, {}),  # forced
]


def test_every_row_is_what_a_plain_reference_computes() -> None:
    logits = logits_of(len(ROWS))
    before = logits.clone()
    expected = torch.stack([plain(logits[i], one, *PLAIN[i]) for i, one in enumerate(ROWS)])
    expected[-1] = -INF
    expected[-1, 8] = 0.0
    torch.testing.assert_close(adjusted(logits, ROWS), expected)
    assert torch.equal(logits, before), "logprobs need the raw logits"


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_row_has_the_same_bits_alone_and_among_others(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    logits = logits_of(len(ROWS))
    alone = [adjusted(logits[i : i + 1], [one]) for i, one in enumerate(ROWS)]
    monkeypatch.setattr(row_groups, "group_size", lambda width: size)
    order = [3, 0, 5, 7, 2, 4, 6, 1]
    together = adjusted(logits[order], [ROWS[index] for index in order])
    assert torch.equal(together, torch.cat([alone[index] for index in order]))


def test_a_bias_is_added_before_a_penalty_divides() -> None:
    """(1 + 3) / 2, not 1 / 2 + 3."""
    changed = adjusted(torch.ones(1, 5), [row([1], [], bias={1: 3.0}, repetition_penalty=2.0)])
    assert changed[0].tolist() == [1.0, 2.0, 1.0, 1.0, 1.0]


def test_no_bias_brings_a_masked_id_back() -> None:
    rows = [row(bias={1: 100.0, 2: 100.0, 3: 100.0}, allowed=[0, 2, 3], bad_words=[[2]], min_tokens=1,
                eos_token_ids=(3,))]  # fmt: skip
    assert adjusted(torch.zeros(1, 5), rows)[0].tolist() == [0.0, -INF, -INF, -INF, -INF]


def test_without_an_option_the_logits_are_not_copied() -> None:
    logits = logits_of(2)
    assert adjusted(logits, [row(), row(output=[1], min_tokens=1)]) is logits


def test_larger_batches_use_the_same_memory() -> None:
    rows = [row(bias={3: 2.0}, output=[3])] * 3
    pipeline = pipeline_of(rows, VOCAB, torch.device("cpu"))
    addresses = {
        pipeline.adjust(logits_of(count), logits_rows(rows[:count], torch.device("cpu"))).data_ptr()
        for count in (1, 2, 3)
    }
    assert len(addresses) == 1


def test_a_slot_forgets_its_last_request() -> None:
    pipeline, logits, plain_row = (
        LogitsPipeline(4, VOCAB, torch.device("cpu"), TorchOps()),
        logits_of(1),
        row(output=[1, 6, 1]),
    )
    for one in (*ROWS[1:], plain_row):
        pipeline.add(NewRequest(0, 3, b"", b"", [], one.sampling, 0, 0))
    assert pipeline.adjust(logits, logits_rows([plain_row])) is logits


def test_the_order_is_vllms() -> None:
    names = [made.__name__ for made in PROCESSORS]  # type: ignore[attr-defined]
    assert names == ["AllowedTokenIds", "BadWords", "MinTokens", "LogitBias", "Penalties", "ThinkingBudgets"]
