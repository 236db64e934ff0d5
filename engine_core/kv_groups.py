"""KV groups: which layers' keys and values share blocks, and what becomes of a block while its request runs.

The layers of a model are split into groups of equal size. A block holds `block_size` tokens of one group, and all
groups take their blocks from one pool. A group is its own policy: it says what is kept, what a prefix hit needs and
what admission counts. Nothing else asks for the kind of a group. docs/kv-cache.md
"""

from collections.abc import Sequence
from typing import TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

Counts = TypeVar("Counts", int, npt.NDArray[np.int32])  # of one request, or [requests]
MAX_TOKENS = 2**31 - 1


class FullAttention(msgspec.Struct, tag="full", frozen=True):
    """Each token attends to all before it: a block is kept until its request ends."""

    @property
    def window(self) -> int:
        """How many tokens a token attends to, itself included; 0: all before it."""
        return 0

    @property
    def keeps_all(self) -> bool:
        return True

    def first_read(self, num_computed: Counts) -> Counts:
        """Returns the first token that a request reads again once `num_computed` tokens are computed."""
        return 0 * num_computed

    def most_blocks(self, num_computed: Counts, num_tokens: Counts, block_size: int) -> Counts:
        """Returns how many blocks a request holds at most, at one time, from `num_computed` computed tokens on until
        all `num_tokens` are."""
        return -(-num_tokens // block_size)

    def give_back_at(self, index: int, block_size: int) -> int:
        """Returns how many computed tokens it takes that a request reads its block `index` no more."""
        return MAX_TOKENS


class SlidingWindow(msgspec.Struct, tag="window", frozen=True):
    """Each token attends to itself and to the `size - 1` tokens before it: blocks behind the window are given back.

    A step computes at most `max_step_tokens` tokens of a request.
    """

    size: int
    max_step_tokens: int

    def __post_init__(self) -> None:
        """Raises ValueError for a value out of range."""
        for name in ("size", "max_step_tokens"):
            if not 1 <= getattr(self, name) <= MAX_TOKENS:
                raise ValueError(f"{name} of a window is {getattr(self, name)}, but must be from 1 to {MAX_TOKENS}")

    @property
    def window(self) -> int:
        """As FullAttention.window."""
        return self.size

    @property
    def keeps_all(self) -> bool:
        return False

    def first_read(self, num_computed: Counts) -> Counts:
        """As FullAttention.first_read."""
        return cast(Counts, np.maximum(num_computed, self.size - 1) - (self.size - 1))

    def most_blocks(self, num_computed: Counts, num_tokens: Counts, block_size: int) -> Counts:
        """As FullAttention.most_blocks. A step reads and writes a span of tokens, which begins anywhere in a block."""
        span = self.size - 1 + np.minimum(num_tokens - num_computed, self.max_step_tokens)
        touched = (span + block_size - 2) // block_size + 1
        left = -(-num_tokens // block_size) - self.first_read(num_computed) // block_size
        return cast(Counts, np.minimum(touched, left))

    def give_back_at(self, index: int, block_size: int) -> int:
        """As FullAttention.give_back_at."""
        return (index + 1) * block_size + self.size - 1


KvGroup = FullAttention | SlidingWindow
FULL = FullAttention()


def first_block(group: KvGroup, num_computed: int, block_size: int) -> int:
    """Returns the index of the first block that a request reads again once `num_computed` tokens are computed."""
    return int(group.first_read(num_computed)) // block_size


def most_blocks(groups: Sequence[KvGroup], num_computed: int, num_tokens: int, block_size: int) -> int:
    """Returns the sum of the groups' most_blocks."""
    return sum(int(group.most_blocks(num_computed, num_tokens, block_size)) for group in groups)


def capacity_tokens(groups: Sequence[KvGroup], num_blocks: int, block_size: int) -> int:
    """Returns how many tokens of KV one request can have if it uses all blocks; MAX_TOKENS if that sets no limit."""
    low, high = 0, -(-MAX_TOKENS // block_size)  # in blocks of a group: `low` fits; what is above `high` is no matter
    while low < high:
        middle = (low + high + 1) // 2
        if most_blocks(groups, 0, middle * block_size, block_size) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return min(low * block_size, MAX_TOKENS)
