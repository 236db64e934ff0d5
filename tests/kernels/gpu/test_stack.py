"""Programs on the Triton kernels give the twins' results; a request has the same bits alone and in a batch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.gpu.ops import TritonOps
from kernels.interface import AttentionInputs, KvPair, Ops
from kernels.torch_ops import TorchOps
from tests.kernels.cases import randn
from tests.kernels.cpu.test_stack import BLOCK_SIZE, CPU, HIDDEN, KINDS, caches, program

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the programs' weights are on the CPU")
LENS = [3, 5, 2]  # of the prompts


def run(
    ops: Any, kind: str, dtype: torch.dtype, requests: list[int], *, sampled: bool = True
) -> tuple[Tensor, list[KvPair]]:
    """Returns the result for the last token of each of these prompts, if they are `sampled`, after a step with all
    their tokens, and the caches."""
    operations, kept = program(ops, dtype, kind), caches(ops, dtype)
    lens = [LENS[request] for request in requests]
    starts = torch.tensor([0, *lens]).cumsum(0).int()
    tables = torch.tensor([[4 * request + place for place in range(4)] for request in requests]).int()
    positions = torch.cat([torch.arange(length) for length in lens])
    rows = torch.repeat_interleave(torch.arange(len(lens)), torch.tensor(lens))
    slots = tables[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    inputs = AttentionInputs(slots, tables, starts, torch.tensor(lens).int(), 0, max(lens), max(lens))
    hidden = torch.cat([randn(CPU, dtype, LENS[request], HIDDEN, seed=request) for request in requests])
    rows = starts[1:].long() - 1 if sampled else starts[:0].long()
    return ops.stack(operations)(hidden, positions, kept, [inputs], rows), kept


@pytest.mark.parametrize(
    "kind", ["post-norm", "parallel", "sandwich", pytest.param("pre-norm", marks=pytest.mark.long)]
)
def test_a_program_gives_what_the_twins_give_and_a_request_the_same_bits_alone(kind: str) -> None:
    implementations: list[Ops] = [TritonOps(), TorchOps()]
    (ours, kept), (twin, expected) = (run(ops, kind, torch.float32, [0, 1, 2]) for ops in implementations)
    torch.testing.assert_close(ours, twin, rtol=1e-4, atol=1e-4)
    for pair, twins in zip(kept, expected, strict=True):
        torch.testing.assert_close(pair, twins, rtol=1e-4, atol=1e-4)
    assert_same(run(implementations[0], kind, torch.float32, [1]), (ours, kept))


@pytest.mark.long
@pytest.mark.parametrize("quantization", [None, "int8"], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_has_the_same_bits_alone_in_bf16(kind: str, quantization: str | None) -> None:
    ops = TritonOps(quantization=quantization)
    together, alone = (run(ops, kind, torch.bfloat16, requests) for requests in ([0, 1, 2], [1]))
    assert_same(alone, together)


@pytest.mark.parametrize(
    "kind", ["mixture", *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind != "mixture")]
)
def test_a_step_that_samples_nothing_writes_the_same_kv(kind: str) -> None:
    """Its prompts go on in the next step: behind the last attention there are no rows."""
    result, kept = run(TritonOps(), kind, torch.float32, [0, 1, 2], sampled=False)
    assert result.shape == (0, HIDDEN)
    for pair, other in zip(kept, run(TritonOps(), kind, torch.float32, [0, 1, 2])[1], strict=True):
        assert all(torch.equal(cache, expected) for cache, expected in zip(pair, other, strict=True))


def assert_same(alone: tuple[Tensor, list[KvPair]], together: tuple[Tensor, list[KvPair]]) -> None:
    """Asserts that request 1 has the same bits in both runs: its result, and keys and values in its blocks."""
    assert torch.equal(alone[0][0], together[0][1])
    blocks = slice(4, 8)
    for pair, whole in zip(alone[1], together[1], strict=True):
        assert all(torch.equal(cache[blocks], other[blocks]) for cache, other in zip(pair, whole, strict=True))
