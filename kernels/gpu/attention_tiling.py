"""Launch parameters of attention (attention.py): tile shape, KV segments, number of KV splits, workspace size.

Batch invariance: only the Tiling decides a row's bits. It depends on dtype, head size and GQA group size alone. The
number of splits depends on the batch, but changes no bit. docs/decisions/0021-gpu-attention.md
"""

from dataclasses import dataclass

import torch
import triton

SEGMENT = 256
STAGES = 3
PROGRAMS = 512  # target of a decode launch, about four per SM of an H200; a launch of at most half of it is split


@dataclass(frozen=True)
class Tiling:
    """Tile shape of one program. All fields but `stages` decide a row's bits.

    `rows` (queries times the query heads that share a KV head) and `warps` choose the MMA instruction. `keys` per tile
    and per `segment` choose the order of sums. `stages` is the depth of the software pipeline over key tiles.
    """

    rows: int
    keys: int
    segment: int
    warps: int
    stages: int


def tiling_of(dtype: torch.dtype, head_dim: int, group: int) -> Tiling:
    """Returns the tiling for a dtype, head size and GQA group size.

    64 rows and 4 warps are one warpgroup. So sm_90 uses wgmma for a single query as for a prefill chunk. Float32 uses
    no such instruction, and fewer rows fit the registers. More stages than 3 take shared memory that other programs
    need: on an H200 5 and 7 are slower.
    """
    wide = head_dim > 128
    rows = 16 if dtype == torch.float32 else 64
    keys = 32 if wide else 64
    return Tiling(max(rows, triton.next_power_of_2(group)), keys, SEGMENT, 8 if wide else 4, STAGES)


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
