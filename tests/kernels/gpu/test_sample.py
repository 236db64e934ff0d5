"""The Triton draw gives the twin's tokens: all combinations of filters, ties, masks, rows with NaN or infinity."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kernels.gpu import sample
from kernels.interface import DRAW
from kernels.sampling import apply_min_p_top_k_top_p
from tests.kernels.draw_cases import FILTERS, HOT, check_draw, draws_of, logits_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
few = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


@pytest.mark.parametrize(
    ("vocab", "levels", "masked"),
    [(1, None, False), (2, 1, False), (63, None, True), (2049, 1, False), (4099, 40, True), (5003, None, False)],
)
def test_every_filter_draws_what_the_twin_draws(vocab: int, levels: int | None, masked: bool) -> None:
    logits, raw = logits_of(len(FILTERS), vocab, levels, masked, seed=vocab)
    check_draw(DEVICE, logits, raw, draws_of(FILTERS))


@pytest.mark.parametrize("kind", HOT)
def test_every_kept_token_can_be_drawn(kind: tuple[float, float, float, int]) -> None:
    logits = logits_of(1, 2600, None, False, seed=6)[0].expand(8, -1).contiguous()
    check_draw(DEVICE, logits, logits, draws_of([kind] * 8))


@few
@given(
    vocab=st.integers(1, 4200),
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 5.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 20, 299, 4000]),
    top_p=st.sampled_from([1e-9, 0.3031, 0.9077, 0.9999999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 1.0]),
    levels=st.sampled_from([None, 1, 3, 1000]),
    masked=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_any_row_draws_what_the_twin_draws(
    vocab: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    levels: int | None,
    masked: bool,
    seed: int,
) -> None:
    logits, raw = logits_of(3, vocab, levels, masked, seed)
    check_draw(DEVICE, logits, raw, draws_of([(temperature, top_p, min_p, top_k)] * 3, seed))


def kept(logits: torch.Tensor, kind: tuple[float, float, float, int], count: int) -> set[int]:
    """The set of tokens in `count` draws from logits [vocab]."""
    found, _ = sample.draw(
        *[logits.expand(count, -1).contiguous().to(DEVICE)] * 2, draws_of([kind] * count, seed=11)
    )  # fmt: skip
    return set(found.tolist())


@pytest.mark.parametrize("kind", [(1.0, 0.5, 0.0, 0), (1.0, 1.0, 0.0, 3), (1.0, 0.55, 0.0, 6), (1.0, 0.53, 0.5, 0)])
def test_of_equal_logits_the_lowest_ids_are_kept(kind: tuple[float, float, float, int]) -> None:
    """Seven equal logits and two much smaller ones."""
    logits = torch.zeros(9)
    logits[[1, 4]] = -20.0
    scores = logits.double()
    apply_min_p_top_k_top_p(scores, draws_of([kind])[0])
    expected = torch.isfinite(scores).nonzero().flatten().tolist()
    assert 2 < len(expected) < 7
    assert kept(logits, kind, 24) == set(expected)


def test_greedy_takes_the_first_of_the_largest_and_minus_zero_is_zero() -> None:
    logits = torch.full((2, 4100), -1.0)
    logits[0, [4099, 70, 2050]] = 2.0
    logits[1, [9, 8]], logits[1, 7] = 0.0, -0.0
    draws = draws_of([(0.0, 1.0, 0.0, 0), (1.0, 1.0, 0.0, 1)])
    assert sample.draw(logits.to(DEVICE), logits.to(DEVICE), draws)[0].tolist() == [70, 7]


@pytest.mark.parametrize("kind", [FILTERS[row] for row in (0, 2, 5, 9, 14, 21)])
def test_rows_that_are_not_finite_are_reported(kind: tuple[float, float, float, int]) -> None:
    """Also if only a masked logit is not finite. Other rows are unchanged."""
    logits, raw = logits_of(6, 2500, None, False, seed=3)
    for row, value in ((1, float("nan")), (2, float("inf")), (3, float("-inf"))):
        logits[row, 2100] = raw[row, 2100] = value
    raw[4, 2499], logits[4, 2499] = float("nan"), float("-inf")
    logits[5] = raw[5] = float("nan")
    draws = draws_of([kind] * 6)
    check_draw(DEVICE, logits, raw, draws)
    assert sample.draw(logits.to(DEVICE), raw.to(DEVICE), draws)[1].tolist() == [True] + [False] * 5


def test_a_row_draws_the_same_alone() -> None:
    kinds = FILTERS[::2]
    logits, raw = logits_of(len(kinds), 3001, None, False, seed=8)
    draws = draws_of(kinds)
    together, _ = sample.draw(logits.to(DEVICE), raw.to(DEVICE), draws)
    for row in range(len(kinds)):
        own = slice(row, row + 1)
        assert sample.draw(logits[own].to(DEVICE), raw[own].to(DEVICE), draws[own])[0].item() == together[row]


def test_an_empty_batch_draws_nothing() -> None:
    empty = torch.empty(0, 97, device=DEVICE)
    tokens, healthy = sample.draw(empty, empty, np.empty(0, dtype=DRAW))
    assert tokens.shape == healthy.shape == (0,)


def test_at_the_edge_of_top_p_only_a_rounding_decides() -> None:
    """Probabilities that add up to exactly top_p: rounding of the twin's cumulative sum may go either way."""
    logits, kind = torch.zeros(10), (1.0, 0.3, 0.0, 0)
    tokens, scores = kept(logits, kind, 30), logits.double()
    apply_min_p_top_k_top_p(scores, draws_of([kind])[0])
    assert tokens == set(range(len(tokens))) and abs(len(tokens) - 3) <= 1
    assert abs(int(torch.isfinite(scores).sum()) - 3) <= 1


def test_among_equal_logits_the_noise_decides() -> None:
    logits = torch.zeros(12, 2501)
    check_draw(DEVICE, logits, logits, draws_of([(1.0, 1.0, 0.0, 0)] * 12, seed=5))


def test_scratch_is_more_than_what_is_allocated() -> None:
    """The allocator's rounding is not counted; a margin covers it (services/worker/memory.py)."""
    sizes: list[int] = []
    empty = torch.empty

    def counted(*args: int, **kwargs: object) -> torch.Tensor:
        made: torch.Tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        sizes.append(made.nbytes)
        return made

    logits, raw = logits_of(len(FILTERS), 5003, None, False, seed=1)
    draws = draws_of(FILTERS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sample.torch, "empty", counted)
        sample.draw(logits.to(DEVICE), raw.to(DEVICE), draws)
    assert sizes and sum(sizes) + draws.nbytes - 9 * len(draws) <= sample.draw_scratch_bytes(len(draws), 5003)
