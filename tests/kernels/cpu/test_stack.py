"""CompiledStack, which runs a program in one call, gives the bits of EagerStack."""

import re
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.cpu.library import load, runnable_variants
from kernels.cpu.ops import CpuOps
from kernels.cpu.stack import _OPERATION, CompiledStack
from kernels.interface import AttentionInputs, KvPair
from kernels.program import (
    Activate,
    Add,
    Attend,
    Experts,
    Matrix,
    Mix,
    Multiply,
    Norm,
    Operation,
    Place,
    Route,
    Select,
    fused,
)
from kernels.stack import EagerStack
from tests.kernels.cases import randn

CPU = torch.device("cpu")
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 96, 6, 3, 24, 130
NUM_LAYERS, BLOCK_SIZE, NUM_BLOCKS, NUM_EXPERTS, EXPERT = 3, 4, 40, 6, 34
EPS, SCALE = 1e-6, 0.2
QUERIES, KEYS = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
NATIVE = Path(__file__).parents[3] / "kernels" / "cpu" / "native" / "program.h"


class Weights:
    """Random weights; no two are the same."""

    def __init__(self, ops: CpuOps, dtype: torch.dtype) -> None:
        self._ops, self._dtype, self._seed = ops, dtype, 0

    def matrix(self, n: int, k: int) -> Matrix:
        self._seed += 1
        return self._ops.matrix(randn(CPU, self._dtype, n, k, seed=self._seed) * k**-0.5)

    def experts(self, n: int, k: int) -> Experts:
        self._seed += 1
        source = randn(CPU, self._dtype, NUM_EXPERTS, n, k, seed=self._seed) * k**-0.5
        return self._ops.experts([[each] for each in source], self._dtype)

    def vector(self, *shape: int) -> Tensor:
        self._seed += 1
        return 1 + randn(CPU, torch.float32, *shape, seed=self._seed) / 8


def pre_norm(weights: Weights, layer: int, table: Tensor) -> list[Operation]:
    """As in Qwen3: norms before, RMS norm of each head, gated."""
    norms = weights.vector(HEAD_DIM), weights.vector(HEAD_DIM)
    return [
        Norm(Place.RESIDUAL, Place.NORMED, weights.vector(HIDDEN), None, EPS),
        Multiply(Place.NORMED, Place.QKV, weights.matrix(QUERIES + 2 * KEYS, HIDDEN)),
        Attend(layer, HEADS, norms, EPS, (table, table), SCALE),
        *last(layer, Place.ATTENTION),
        Multiply(Place.ATTENTION, Place.HIDDEN, weights.matrix(HIDDEN, QUERIES)),
        Add(0.5),
        Norm(Place.RESIDUAL, Place.NORMED, weights.vector(HIDDEN), None, EPS),
        Multiply(Place.NORMED, Place.INTERMEDIATE, weights.matrix(2 * INNER, HIDDEN)),
        Activate("silu", gated=True),
        Multiply(Place.ACTIVATED, Place.HIDDEN, weights.matrix(HIDDEN, INNER)),
        Add(),
    ]


def post_norm(weights: Weights, layer: int, table: Tensor) -> list[Operation]:
    """As in OLMo 2: norms behind, queries and keys normed over their whole width. The first layer has no positions."""
    return [
        Multiply(Place.RESIDUAL, Place.QKV, weights.matrix(QUERIES + 2 * KEYS, HIDDEN)),
        Norm(Place.QKV, Place.QKV, weights.vector(QUERIES), None, EPS),
        Norm(Place.QKV, Place.QKV, weights.vector(KEYS), None, EPS, first=QUERIES),
        Attend(layer, HEADS, None, EPS, (table, table) if layer else None, SCALE),
        *last(layer, Place.ATTENTION),
        Multiply(Place.ATTENTION, Place.HIDDEN, weights.matrix(HIDDEN, QUERIES)),
        Norm(Place.HIDDEN, Place.HIDDEN, weights.vector(HIDDEN), None, EPS),
        Add(),
        Multiply(Place.RESIDUAL, Place.INTERMEDIATE, weights.matrix(2 * INNER, HIDDEN)),
        Activate("gelu_tanh", gated=True),
        Multiply(Place.ACTIVATED, Place.HIDDEN, weights.matrix(HIDDEN, INNER)),
        Norm(Place.HIDDEN, Place.HIDDEN, weights.vector(HIDDEN), None, EPS),
        Add(),
    ]


def parallel(weights: Weights, layer: int, table: Tensor) -> list[Operation]:
    """As in Cohere and StableLM: one layer norm for attention and MLP, biases, heads normed with own weights, a part of
    each head turned, no gate. The MLP's size depends on the layer."""
    inner = INNER + 2 * layer
    return [
        Norm(Place.RESIDUAL, Place.NORMED, weights.vector(HIDDEN), weights.vector(HIDDEN), EPS, centred=True),
        Multiply(
            Place.NORMED, Place.QKV, weights.matrix(QUERIES + 2 * KEYS, HIDDEN), weights.vector(QUERIES + 2 * KEYS)
        ),
        Norm(Place.QKV, Place.QKV, weights.vector(HEADS, HEAD_DIM), None, EPS, centred=True, groups=HEADS),
        Norm(
            Place.QKV, Place.QKV, weights.vector(KV_HEADS, HEAD_DIM), None, EPS, centred=True, first=QUERIES,
            groups=KV_HEADS,
        ),
        Attend(layer, HEADS, None, EPS, (table[:, 4:20].contiguous(), table[:, :16].contiguous()), SCALE),
        *last(layer, Place.ATTENTION, Place.NORMED),
        Multiply(Place.ATTENTION, Place.HIDDEN, weights.matrix(HIDDEN, QUERIES), weights.vector(HIDDEN)),
        Add(),
        Multiply(Place.NORMED, Place.INTERMEDIATE, weights.matrix(inner, HIDDEN), weights.vector(inner)),
        Activate(("gelu", "relu2", "silu")[layer], gated=False),
        Multiply(Place.ACTIVATED, Place.HIDDEN, weights.matrix(HIDDEN, inner)),
        Add(),
    ]  # fmt: skip


def sandwich(weights: Weights, layer: int, table: Tensor) -> list[Operation]:
    """As in Gemma 2, with the sinks of gpt-oss: norms around attention and MLP, capped scores."""
    return [
        Norm(Place.RESIDUAL, Place.NORMED, weights.vector(HIDDEN), None, EPS),
        Multiply(Place.NORMED, Place.QKV, weights.matrix(QUERIES + 2 * KEYS, HIDDEN)),
        Attend(layer, HEADS, None, EPS, (table, table), SCALE, soft_cap=0.7, sinks=weights.vector(HEADS)),
        *last(layer, Place.ATTENTION),
        Multiply(Place.ATTENTION, Place.HIDDEN, weights.matrix(HIDDEN, QUERIES)),
        Norm(Place.HIDDEN, Place.HIDDEN, weights.vector(HIDDEN), None, EPS),
        Add(),
        Norm(Place.RESIDUAL, Place.NORMED, weights.vector(HIDDEN), None, EPS),
        Multiply(Place.NORMED, Place.INTERMEDIATE, weights.matrix(2 * INNER, HIDDEN)),
        Activate("gelu_tanh", gated=True),
        Multiply(Place.ACTIVATED, Place.HIDDEN, weights.matrix(HIDDEN, INNER)),
        Norm(Place.HIDDEN, Place.HIDDEN, weights.vector(HIDDEN), None, EPS),
        Add(),
    ]


def mixture(weights: Weights, layer: int, table: Tensor) -> list[Operation]:
    """Experts by softmax, as in Qwen3, and in the second layer by sigmoid in groups beside a shared one, as in GLM-4,
    with the biases and the activation of gpt-oss."""
    shared = layer == 1
    inner, down = weights.experts(2 * EXPERT, HIDDEN), weights.experts(HIDDEN, EXPERT)
    biases = (weights.vector(NUM_EXPERTS, 2 * EXPERT), weights.vector(NUM_EXPERTS, HIDDEN)) if shared else (None, None)
    form = Activate("clamped_silu", gated=True, alpha=1.5, limit=0.9) if shared else Activate("silu", gated=True)
    beside = [
        Multiply(Place.NORMED, Place.INTERMEDIATE, weights.matrix(2 * INNER, HIDDEN)),
        Activate("silu", gated=True),
        Multiply(Place.ACTIVATED, Place.HIDDEN, weights.matrix(HIDDEN, INNER)),
    ]
    router = weights.matrix(NUM_EXPERTS, HIDDEN)
    route = Route(Place.NORMED, router, 2)
    if shared:
        bias, correction = weights.vector(NUM_EXPERTS), weights.vector(NUM_EXPERTS)
        route = Route(Place.NORMED, router, 3, bias, correction, True, True, groups=3, kept_groups=2, scale=1.5)
    return [
        Norm(Place.RESIDUAL, Place.NORMED, weights.vector(HIDDEN), None, EPS),
        Multiply(Place.NORMED, Place.QKV, weights.matrix(QUERIES + 2 * KEYS, HIDDEN)),
        Attend(layer, HEADS, None, EPS, (table, table), SCALE),
        *last(layer, Place.ATTENTION),
        Multiply(Place.ATTENTION, Place.HIDDEN, weights.matrix(HIDDEN, QUERIES)),
        Add(),
        Norm(Place.RESIDUAL, Place.NORMED, weights.vector(HIDDEN), None, EPS),
        route,
        *(beside if shared else []),
        Mix(Place.NORMED, inner, form, down, *biases, adds=shared),
        Add(),
    ]


def last(layer: int, *places: Place) -> list[Operation]:
    return [Select((Place.RESIDUAL, *places))] if layer + 1 == NUM_LAYERS else []


KINDS = {"pre-norm": pre_norm, "post-norm": post_norm, "parallel": parallel, "sandwich": sandwich, "mixture": mixture}


def program(ops: CpuOps, dtype: torch.dtype, kind: str) -> list[Operation]:
    weights = Weights(ops, dtype)
    angles = torch.rand(64, HEAD_DIM // 2, generator=torch.Generator().manual_seed(1)) * 7
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    layers = [each for layer in range(NUM_LAYERS) for each in KINDS[kind](weights, layer, table)]
    return fused([*layers, Norm(Place.RESIDUAL, Place.NORMED, weights.vector(HIDDEN), None, EPS)])


def caches(ops: CpuOps, dtype: torch.dtype) -> list[KvPair]:
    return [ops.allocate_kv_cache(NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM, dtype, CPU) for _ in range(NUM_LAYERS)]


@pytest.mark.parametrize("variant", runnable_variants())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_one_call_gives_the_bits_of_many(variant: str, dtype: torch.dtype, int8: bool, kind: str) -> None:
    ops = CpuOps(load(variant), 2, int8)
    operations = program(ops, dtype, kind)
    stacks = (ops.stack(operations), EagerStack(ops, operations))
    assert isinstance(stacks[0], CompiledStack)
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
            slots, tables, torch.tensor(starts).int(), torch.tensor(lens).int(), 0, max(lens), max(lens)
        )
        hidden = randn(CPU, dtype, starts[-1], HIDDEN, seed=step)
        ours, twin = (
            stack(hidden.clone(), positions, cache, [inputs], torch.tensor(wanted, dtype=torch.int64))
            for stack, cache in zip(stacks, kept, strict=True)
        )
        assert ours.shape == (len(wanted), HIDDEN) and torch.equal(ours, twin), f"step {step}"
        assert all(map(torch.equal, (k for k, _ in kept[0]), (k for k, _ in kept[1])))
        assert all(map(torch.equal, (v for _, v in kept[0]), (v for _, v in kept[1])))


@pytest.mark.parametrize("variant", runnable_variants())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(("hidden_size", "size"), [(HIDDEN, 192), (2112, 256)])
def test_a_gated_activation_of_many_rows_has_the_bits_of_its_own_pass(
    variant: str, dtype: torch.dtype, int8: bool, hidden_size: int, size: int
) -> None:
    """From 64 rows on, it is applied to each panel of the product of gate and up."""
    ops = CpuOps(load(variant), 2, int8)
    weights, one = Weights(ops, dtype), torch.tensor([0])
    forms = Activate("silu", gated=True), Activate("clamped_silu", gated=True, alpha=1.5, limit=0.9)
    layers = [
        [
            Norm(Place.RESIDUAL, Place.NORMED, weights.vector(hidden_size), None, EPS),
            Multiply(Place.NORMED, Place.INTERMEDIATE, weights.matrix(2 * size, hidden_size), weights.vector(2 * size)),
            form,
            Multiply(Place.ACTIVATED, Place.HIDDEN, weights.matrix(hidden_size, size)),
            Add(),
        ]
        for form in forms
    ]
    last_norm = Norm(Place.RESIDUAL, Place.NORMED, weights.vector(hidden_size), None, EPS)
    operations = fused([*layers[0], *layers[1], last_norm])
    inputs = AttentionInputs(one, one.int()[None], torch.tensor([0, 1]).int(), torch.tensor([1]).int(), 0, 1, 1)
    for rows in (63, 64, 300):
        hidden, wanted = randn(CPU, dtype, rows, hidden_size, seed=rows), torch.arange(rows)
        ours, twin = (
            stack(hidden.clone(), one, caches(ops, dtype), [inputs], wanted)
            for stack in (ops.stack(operations), EagerStack(ops, operations))
        )
        assert torch.equal(ours, twin), f"{rows} rows"


def test_a_cache_is_freed_when_the_caller_frees_it() -> None:
    """A worker must free it before it allocates the next engine's."""
    ops, one = CpuOps(load(), 1, False), torch.tensor([0])
    stack = ops.stack(program(ops, torch.float32, "pre-norm"))
    inputs = AttentionInputs(one, one.int()[None], torch.tensor([0, 1]).int(), torch.tensor([1]).int(), 0, 1, 1)
    found = []
    for _ in range(2):
        kept = caches(ops, torch.float32)
        found.append(stack(torch.ones(1, HIDDEN), one, kept, [inputs], one))
        (keys,) = (weakref.ref(pair[0]) for pair in kept[:1])
        del kept
        assert keys() is None
    assert torch.equal(*found)


def test_an_operation_has_the_layout_of_the_compiled_kernels_struct() -> None:
    body = re.search(r"struct Operation \{(.*?)\};", NATIVE.read_text(), re.DOTALL)
    assert body is not None
    fields = [
        (name.strip(), kind)
        for kind, names in re.findall(r"^ +(\w+) ([\w, ]+);", body[1], re.MULTILINE)
        for name in names.split(",")
    ]
    sizes = {"Kind": 8, "int64_t": 8, "Address": 8, "double": 8, "Matrix": 32}
    assert [name for name, _ in fields] == list(_OPERATION.names or ())
    assert [sizes[kind] for _, kind in fields] == [_OPERATION[name].itemsize for name, _ in fields]
