"""The compiled mixtures of experts equal their twins and are batch-invariant, in every runnable variant."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.cpu.library import Library
from kernels.cpu.ops import CpuOps
from kernels.program import Mix
from kernels.torch_ops import TorchOps
from tests.kernels.cpu_cases import CPU, every_dtype, few
from tests.kernels.expert_cases import check_experts, check_tokens_alone, expert_case

GROUPS = st.sampled_from([(1, 1), (1, 1), (2, 1), (4, 2), (4, 4)])
SHAPE: dict[str, st.SearchStrategy[Any]] = {
    "tokens": st.sampled_from([0, 1, 2, 7, 40, 300]),
    "experts": st.sampled_from([8, 12, 64]),
    "top_k": st.integers(1, 4),
    "hidden": st.sampled_from([2, 64, 96, 130]),
    "size": st.sampled_from([2, 34, 64]),
    "sigmoid": st.booleans(),
    "with_bias": st.booleans(),
    "adds": st.booleans(),
    "kind": st.sampled_from(["silu", "gelu", "clamped_silu"]),
    "gated": st.booleans(),
    "seed": st.integers(0, 99),
}


@every_dtype
@few
@given(shape=st.fixed_dictionaries(SHAPE), groups=GROUPS)
def test_experts(ops: CpuOps, dtype: torch.dtype, shape: dict[str, Any], groups: tuple[int, int]) -> None:
    if shape["tokens"]:
        check_experts(ops, CPU, dtype, **shape, groups=groups[0], kept_groups=groups[1])


@every_dtype
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("top_k", [1, 8])
def test_a_token_has_the_same_bits_alone(library: Library, dtype: torch.dtype, int8: bool, top_k: int) -> None:
    """Experts with none, one and more than BLOCK_ROWS tokens. In the crowd with top_k 8 a thread has whole blocks."""
    ops = CpuOps(library, 3, int8)
    check_tokens_alone(ops, CPU, dtype, tokens=600, experts=16, top_k=top_k, hidden=66, size=34, adds=True)


@every_dtype
def test_no_tokens_are_no_work(ops: CpuOps, dtype: torch.dtype) -> None:
    case = expert_case(CPU, dtype, 0, 8, 2, 64, 34)
    assert case.result(ops).shape == (0, 64)


def test_all_experts_of_a_token_count_once_and_uneven_ones_too(ops: CpuOps) -> None:
    """One expert has all tokens, the others none; then every token has all experts."""
    for top_k in (1, 8):
        case = expert_case(CPU, torch.float32, 30, 8, top_k, 64, 34)
        case.logits[:] = torch.arange(8.0)
        twin = case.result(TorchOps())
        assert (case.result(ops) - twin).abs().max() < 1e-5
        ids, weights = ops.route(case.logits.clone(), case.route)
        assert ids.tolist() == [[7 - slot for slot in range(top_k)]] * 30
        assert torch.allclose(weights.sum(-1), torch.tensor(case.route.scale))


class InOrderOfArrival(CpuOps):
    """Adds a token's experts up as they end: those with fewer rows end earlier."""

    def mix(self, x: Tensor, chosen: tuple[Tensor, Tensor], how: Mix, added: Tensor | None) -> Tensor:
        ids, weights = chosen
        ids = ids.long()
        arrival = ids.flatten().bincount()[ids].argsort(dim=-1, stable=True)
        return super().mix(x, (ids.gather(-1, arrival).int(), weights.gather(-1, arrival)), how, added)


@every_dtype
def test_a_planted_order_of_arrival_is_noticed(library: Library, dtype: torch.dtype) -> None:
    with pytest.raises(AssertionError, match="tokens from"):
        check_tokens_alone(
            InOrderOfArrival(library, 3), CPU, dtype, tokens=450, experts=12, top_k=8, hidden=66, size=34
        )
