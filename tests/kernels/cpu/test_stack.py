"""CompiledStack, which runs all layers in one call, gives the bits of EagerStack."""

import pytest
import torch
from torch import Tensor

from kernels.cpu.library import load, runnable_variants
from kernels.cpu.ops import CpuOps
from kernels.cpu.stack import CompiledStack
from kernels.interface import AttentionInputs, KvPair, Layer
from kernels.stack import EagerStack
from tests.kernels.cases import randn

CPU = torch.device("cpu")
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 96, 6, 3, 24, 130
NUM_LAYERS, BLOCK_SIZE, NUM_BLOCKS = 3, 4, 40
EPS, SCALE = 1e-6, 0.2


def layer_of(ops: CpuOps, dtype: torch.dtype, seed: int, head_norms: bool, hidden: int = HIDDEN) -> Layer:
    def weight(*shape: int) -> Tensor:
        return randn(CPU, dtype, *shape, seed=seed + shape[0]) * shape[-1] ** -0.5

    def norm(size: int) -> Tensor:
        return 1 + randn(CPU, dtype, size, seed=seed) / 8

    return Layer(
        input_norm=norm(hidden),
        qkv=ops.matrix(weight((HEADS + 2 * KV_HEADS) * HEAD_DIM, hidden)),
        head_norms=(norm(HEAD_DIM), norm(HEAD_DIM)) if head_norms else None,
        out=ops.matrix(weight(hidden, HEADS * HEAD_DIM)),
        post_norm=norm(hidden),
        gate_up=ops.matrix(weight(2 * INNER, hidden)),
        down=ops.matrix(weight(hidden, INNER)),
    )


def caches(ops: CpuOps, dtype: torch.dtype) -> list[KvPair]:
    return [ops.allocate_kv_cache(NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM, dtype, CPU) for _ in range(NUM_LAYERS)]


@pytest.mark.parametrize("variant", runnable_variants())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("head_norms", [False, True])
def test_one_call_gives_the_bits_of_many(variant: str, dtype: torch.dtype, int8: bool, head_norms: bool) -> None:
    ops = CpuOps(load(variant), 2, int8)
    layers = [layer_of(ops, dtype, seed, head_norms) for seed in range(NUM_LAYERS)]
    angles = torch.rand(64, HEAD_DIM // 2, generator=torch.Generator().manual_seed(1)) * 7
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    compiled = ops.stack(layers, EPS, SCALE, cos_sin)
    assert isinstance(compiled, CompiledStack)
    stacks = (compiled, EagerStack(ops, layers, EPS, SCALE, cos_sin))
    kept = [caches(ops, dtype) for _ in stacks]
    # Two prompts; then a decode token of the first with a third prompt; then decode alone.
    for step, (lens, starts, wanted) in enumerate(
        [([9, 5], [0, 9, 14], [8, 13]), ([10, 7], [0, 1, 8], [0]), ([11], [0, 1], [0]), ([12], [0, 1], [])]
    ):
        tables = torch.tensor([[4 * row + place for place in range(4)] for row in (0, 2 + step)]).int()[: len(lens)]
        computed = [length - (end - start) for length, start, end in zip(lens, starts, starts[1:], strict=False)]
        positions = torch.cat([torch.arange(*span) for span in zip(computed, lens, strict=True)])
        rows = torch.repeat_interleave(torch.arange(len(lens)), torch.tensor(starts).diff())
        slots = tables[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
        inputs = AttentionInputs(
            slots, tables, torch.tensor(starts).int(), torch.tensor(lens).int(), max(lens), max(lens)
        )
        hidden = randn(CPU, dtype, starts[-1], HIDDEN, seed=step)
        results = [
            stack(hidden.clone(), positions, cache, inputs, torch.tensor(wanted, dtype=torch.int64))
            for stack, cache in zip(stacks, kept, strict=True)
        ]
        for ours, twin in zip(*results, strict=True):
            assert ours.shape == (len(wanted), HIDDEN) and torch.equal(ours, twin), f"step {step}"
        assert all(map(torch.equal, (k for k, _ in kept[0]), (k for k, _ in kept[1])))
        assert all(map(torch.equal, (v for _, v in kept[0]), (v for _, v in kept[1])))


def test_layers_that_need_padding_run_eagerly() -> None:
    ops = CpuOps(load())
    layers = [layer_of(ops, torch.bfloat16, 1, False, hidden=95)]
    assert isinstance(ops.stack(layers, EPS, SCALE, torch.zeros(8, HEAD_DIM)), EagerStack)
