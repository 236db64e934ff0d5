"""Allocates blocks to requests, takes back what they no longer read, and publishes what other requests may share.

The model's layers are split into KV groups (engine_core/kv_groups.py). A request has one list of blocks per group, of
equal length: block i of each holds the same tokens. A block of a prompt may be shared as soon as a plan computes its
last token, because later plans run after that one. A block with output tokens may be shared once the request has
released it; earlier if the plan that computes it also admits the request or computes prompt tokens. For the same
reason a block may be given back, and taken by another request, once the next plan reads it no more.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from engine_core.batch import Batch
from engine_core.block import Block
from engine_core.block_pool import BlockPool
from engine_core.kv_groups import KvGroup, capacity_tokens, first_block, most_blocks
from engine_core.prefix_cache import EagerPrefixCache, PrefixCache
from engine_core.request import Request


class KVCacheManager:
    def __init__(self, num_blocks: int, block_size: int, kv_groups: Sequence[KvGroup], prefix_caching: bool) -> None:
        """`block_size` is in tokens. Of `kv_groups`, those that keep all blocks come first.

        Raises ValueError for no group, for another order, and for fewer than one block.
        """
        keep_all = [group.keeps_all for group in kv_groups]
        if not keep_all or keep_all != sorted(keep_all, reverse=True):
            raise ValueError(
                f"kv_groups are {list(kv_groups)}, but must be one or more, those that keep all blocks first"
            )
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.kv_groups = tuple(kv_groups)
        self._givers = [(number, group) for number, group in enumerate(kv_groups) if not group.keeps_all]
        cache = PrefixCache if keep_all[0] else EagerPrefixCache
        self._cache = cache(self.pool, block_size, self.kv_groups) if prefix_caching else None

    @property
    def prefix_caching(self) -> bool:
        return self._cache is not None

    @property
    def capacity_tokens(self) -> int:
        """How many tokens of KV one request can have if it uses the whole cache."""
        return capacity_tokens(self.kv_groups, self.pool.num_blocks, self.block_size)

    def find_cached(self, request: Request) -> list[list[Block]]:
        """Returns the blocks of the request's longest cached prefix, per KV group, without adding an owner.

        The prefix is within the request's num_reusable_tokens. The lists are empty if nothing is cached.
        """
        return self._cache.find(request) if self._cache is not None else [[] for _ in self.kv_groups]

    def allocate(self, request: Request, cached: list[list[Block]], num_tokens: int, num_reserved_blocks: int) -> bool:
        """Gives a waiting request its `cached` blocks, and new ones for its first `num_tokens` tokens.

        Returns False, and changes nothing, unless as many blocks are free as it holds at most while its known tokens
        are computed, and `num_reserved_blocks` remain for the running requests. Otherwise a preemption would soon
        follow.
        """
        size, num_computed = self.block_size, len(cached[0]) * self.block_size
        firsts = [first_block(group, num_computed, size) for group in self.kv_groups]
        shared = [blocks[first:] for blocks, first in zip(cached, firsts, strict=True)]
        needed = most_blocks(self.kv_groups, num_computed, request.num_tokens, size) - sum(map(len, shared))
        num_shared_free = sum(block.ref_count == 0 for blocks in shared for block in blocks)
        if needed + num_reserved_blocks > self.pool.num_free_blocks - num_shared_free:
            return False
        for blocks in shared:
            self.pool.share(blocks)
        request.blocks = [list(blocks) for blocks in cached]
        request.given_back = [[0] * first for first in firsts]  # ABSENT blocks
        if self._cache is not None:
            self._cache.start(request, len(cached[0]))
        return self.extend(request, num_tokens)

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Appends new blocks until the request has room for its first `num_tokens` tokens.

        Returns False, and changes nothing, when too few blocks are free.
        """
        missing = self.blocks_for(num_tokens) - len(request.blocks[0])
        if missing > 0:
            if missing * len(self.kv_groups) > self.pool.num_free_blocks:
                return False
            for blocks in request.blocks:
                blocks.extend(self.pool.take(missing))
        return True

    def give_back(self, batch: Batch) -> None:
        """Releases the blocks of running requests that no plan from the next one on reads."""
        if not self._givers:
            return
        size = self.block_size
        slots = batch.slots[batch.num_computed[batch.slots] >= batch.give_back_at[batch.slots]]
        for slot in slots.tolist():
            request, num_computed, due = batch.at(slot), int(batch.num_computed[slot]), []
            for number, group in self._givers:
                numbers, first = request.given_back[number], first_block(group, num_computed, size)
                blocks = request.blocks[number][len(numbers) : first]
                numbers += [block.take_number for block in blocks]
                self.pool.release(blocks)
                due.append(group.give_back_at(first, size))
            batch.give_back_at[slot] = min(due)

    def num_blocks_to_allocate(self, batch: Batch) -> int:
        """Returns how many more blocks the running requests take at most for all of their tokens, known or in flight,
        once give_back() has been called."""
        slots, total = batch.slots, 0
        num_computed, num_tokens = batch.num_computed[slots], batch.num_needed(slots)
        for group in self.kv_groups:
            most = group.most_blocks(num_computed, num_tokens, self.block_size)
            held = batch.num_blocks[slots] - group.first_read(num_computed) // self.block_size
            total += int(np.maximum(most - held, 0).sum())
        return total

    def free(self, request: Request) -> None:
        """Ends publishing and releases all blocks of a request, the last first, so that it is evicted first."""
        if self._cache is not None:
            self._cache.stop(request)
        for blocks, given_back in zip(request.blocks, request.given_back, strict=True):
            self.pool.release(reversed(blocks[len(given_back) :]))
        request.blocks, request.given_back = [], []

    def publish(self, request: Request, num_computed_tokens: int) -> None:
        """Lets other requests find this request's full blocks within its first `num_computed_tokens` known tokens."""
        if self._cache is not None:
            self._cache.publish(request, num_computed_tokens)

    def reset_prefix_cache(self, running: Iterable[Request]) -> None:
        """Empties the prefix cache. Until they are admitted again, the `running` requests publish no more blocks."""
        if self._cache is not None:
            self._cache.reset(running)

    def blocks_for(self, num_tokens: int) -> int:
        """Returns how many blocks `num_tokens` tokens fill, per KV group; the last one may be partly filled."""
        return -(-num_tokens // self.block_size)
