"""What the tests of the compiled CPU kernels share: parameters, tolerances, and operands in the kernels' layout."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, settings
from torch import Tensor

from kernels.cpu.matrix import STEP
from kernels.cpu.ops import CpuOps
from kernels.interface import AttentionInputs, KvPair
from tests.kernels.attention_cases import AttentionCase
from tests.kernels.cases import tolerance

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROWS = [1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257]
few = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def in_cpu_layout(ops: CpuOps, keys: Tensor, values: Tensor) -> KvPair:
    """Returns keys and values [blocks, block_size, heads, head_dim] in the layout of kernels/cpu/native/cache.h."""
    blocks, block_size, heads, head_dim = keys.shape
    laid = ops.allocate_kv_cache(blocks, block_size, heads, head_dim, keys.dtype, CPU)
    step = STEP[keys.dtype]
    laid[0].copy_(keys.unflatten(3, (-1, step)).permute(0, 2, 3, 1, 4))
    paired = F.pad(values, (0, 0, 0, 0, 0, -block_size % step), value=1).unflatten(1, (-1, step))
    laid[1].copy_(paired.permute(0, 3, 1, 4, 2))
    return laid


def attend(ops: CpuOps, case: AttentionCase) -> Tensor:
    starts, lens = case.places()
    inputs = AttentionInputs(torch.empty(0), case.tables, starts, lens, *case.bounds())
    cache = in_cpu_layout(ops, case.keys, case.values)
    return ops.paged_attention(case.query, cache, inputs, case.scale, *case.traits())


def allowed_for_products(x: Tensor, weight: Tensor, expected: Tensor) -> Tensor:
    """Returns the tolerance of x @ weight.T: k float32 roundings in any order, and the rounding of the result."""
    summed = x.abs().float() @ weight.abs().float().T
    return 4e-7 * summed + tolerance(expected)
