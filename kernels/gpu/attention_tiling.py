"""Launch parameters of attention (attention.py): tile shape, KV segments, number of KV splits, workspace size.

Batch invariance: only the Tiling decides a row's bits. It depends on dtype, head size and GQA group size alone. The
number of splits depends on the batch, but changes no bit. docs/decisions/0021-gpu-attention.md
"""

from dataclasses import dataclass

import torch

from kernels.gpu.rounding import next_power_of_2

SEGMENT = 256
STAGES, WALKING_STAGES = 3, 5
PROGRAMS = 512  # target of a decode launch, about four per SM of an H200; a launch of at most half of it is split


@dataclass(frozen=True)
class Tiling:
    """Tile shape of one program. All fields but the stages decide a row's bits.

    `rows` (queries times the query heads that share a KV head) and `warps` choose the MMA instruction. `keys` per tile
    and per `segment` choose the order of sums. `stages` is the depth of the software pipeline over key tiles;
    `walking_stages` that of a program with a single query and all segments of its request.
    """

    rows: int
    keys: int
    segment: int
    warps: int
    stages: int
    walking_stages: int


def tiling_of(dtype: torch.dtype, head_dim: int, group: int) -> Tiling:
    """Returns the tiling for a dtype, head size and GQA group size.

    64 rows and 4 warps are one warpgroup. So sm_90 uses wgmma for a single query as for a prefill chunk. Float32 uses
    no such instruction, and fewer rows fit the registers. The block table's load takes stages of its own: 5 load one
    tile ahead, 3 none. On an H200 5 are faster where a program walks all segments, and slower in split launches and
    chunks: they take the shared memory of another program. For head sizes above 128 and float32, 5 would not fit the
    shared memory of sm_86.
    """
    wide = head_dim > 128
    rows = 16 if dtype == torch.float32 else 64
    keys = 32 if wide else 64
    walking = STAGES if dtype == torch.float32 or wide else WALKING_STAGES
    return Tiling(max(rows, next_power_of_2(group)), keys, SEGMENT, 8 if wide else 4, STAGES, walking)


def choose_num_splits(requests: int, kv_heads: int) -> int:
    """Returns the KV splits of a launch for `requests` single queries: the number of programs that share a request's
    segments of one KV head.

    `attend` lowers it to the number of segments.
    """
    return max(1, PROGRAMS // (max(1, requests) * kv_heads))


def scratch_bytes(tokens: int, heads: int, kv_heads: int, head_dim: int, length: int) -> int:
    """Returns an upper bound of the workspace in bytes: float32 accumulator, maximum, sum per token, head and segment.

    At most PROGRAMS // (2 * kv_heads) requests are split, because a larger batch fills the GPU without splits.
    """
    requests = min(tokens, PROGRAMS // (2 * kv_heads))
    return requests * heads * -(-length // SEGMENT) * (head_dim + 2) * 4
