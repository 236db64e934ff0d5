"""How a launch of attention (attention.py) is divided: its tiles, the segments of keys, the programs that share them.

Only a Tiling decides a row's bits, and depends on nothing but dtype, head size and group size.
docs/decisions/0021-gpu-attention.md
"""

from dataclasses import dataclass

import torch
import triton

SEGMENT = 256
PROGRAMS = 512  # a decode launch with half as many or fewer is split up to this: some four for each SM of an H200


@dataclass(frozen=True)
class Tiling:
    """What decides a row's bits, and therefore depends on dtype, head size and group size alone; `stages` does not.

    `rows` (queries times the heads that share a KV head) and `warps` choose the instruction, `keys` and `segment` the
    order of sums. `stages` is how many tiles of keys are in flight.
    """

    rows: int
    keys: int
    segment: int
    warps: int
    stages: int


def tiling_of(dtype: torch.dtype, head_dim: int, group: int) -> Tiling:
    """64 rows and 4 warps are one warp group, so wgmma on sm_90 for a single query as for a chunk. Float32 has no such
    instruction here, and fewer rows fit the registers. `stages` 3 is two tiles of keys on sm_90, one ahead on sm_80."""
    wide = head_dim > 128
    rows = 16 if dtype == torch.float32 else 64
    keys = 32 if wide else 64
    return Tiling(max(rows, triton.next_power_of_2(group)), keys, SEGMENT, 8 if wide else 4, 3)


def choose_num_splits(requests: int, kv_heads: int) -> int:
    """How many programs share a decoding request's segments of one KV head."""
    return max(1, PROGRAMS // (requests * kv_heads))


def scratch_bytes(tokens: int, heads: int, kv_heads: int, head_dim: int, length: int) -> int:
    """The most that the workspace takes: a float32 accumulator, maximum and sum of each head and segment.

    It grows with the requests of a launch only until they fill the GPU by themselves: no more than
    PROGRAMS // (2 * kv_heads) are split, whatever the batch.
    """
    requests = min(tokens, PROGRAMS // (2 * kv_heads))
    return requests * heads * -(-length // SEGMENT) * (head_dim + 2) * 4
