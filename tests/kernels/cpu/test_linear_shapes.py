"""Batch invariance of every linear layer of Qwen3-0.6B and Qwen3-8B at its real size.

Most layers of 8B and the full output heads take minutes: `make test-long`.
"""

import os
from collections.abc import Iterator

import pytest
import torch

from kernels.cpu.library import load
from kernels.cpu.ops import CpuOps

ROWS = [1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 2048]
VOCABULARY = 151936
# (n, k) of qkv, out, gate_up and down.
LAYERS = {
    "0.6B": [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)],
    "8B": [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)],
}
HEADS = {"0.6B": (VOCABULARY, 1024), "8B": (VOCABULARY, 4096)}
LONGEST = (4096, 12288)  # the largest K
CASES = [
    *(
        pytest.param(*shape, id=f"{model}-{shape}", marks=[pytest.mark.long] * (model == "8B" and shape != LONGEST))
        for model, shapes in LAYERS.items()
        for shape in shapes
    ),
    *(pytest.param(*shape, id=f"{model}-head", marks=pytest.mark.long) for model, shape in HEADS.items()),
]


@pytest.fixture(scope="module")
def ops() -> Iterator[CpuOps]:
    library = load()
    yield CpuOps(library, len(os.sched_getaffinity(0)))
    library.set_num_threads(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "k"), CASES)
def test_a_row_has_the_same_bits_alone_and_mixed(ops: CpuOps, dtype: torch.dtype, n: int, k: int) -> None:
    generator = torch.Generator().manual_seed(n + k)
    matrix = ops.matrix(torch.empty(n, k, dtype=dtype).uniform_(-1, 1, generator=generator))
    x = torch.empty(max(ROWS), k, dtype=dtype).uniform_(-1, 1, generator=generator)
    whole = matrix.product(x)
    for rows in ROWS:
        assert torch.equal(matrix.product(x[:rows]), whole[:rows]), f"{rows} rows"
        if rows < max(ROWS):
            mixed = torch.randperm(max(ROWS), generator=generator)[:rows]
            assert torch.equal(matrix.product(x[mixed]), whole[mixed]), f"{rows} rows, mixed"
