"""Allocates blocks to requests, and publishes those that other requests may share.

The model's layers are split into KV groups, each with one kind of block. A request has one list of blocks per group. A
block of a prompt may be shared as soon as a plan computes its last token, because later plans run after that one. A
block with output tokens may be shared once the request has released it; earlier if the plan that computes it also
admits the request or computes prompt tokens.
"""

from collections.abc import Iterable

from engine_core.block import Block
from engine_core.block_pool import BlockPool
from engine_core.prefix_cache import PrefixCache
from engine_core.request import Request

SUPPORTED_GROUPS = ("full",)  # kinds of attention


class KVCacheManager:
    def __init__(self, num_blocks: int, block_size: int, kv_groups: tuple[str, ...], prefix_caching: bool) -> None:
        """`block_size` is in tokens; `kv_groups` has the kind of attention of each KV group.

        Raises ValueError for no group, for a kind that is not in SUPPORTED_GROUPS, and for fewer than one block.
        """
        unknown = set(kv_groups) - set(SUPPORTED_GROUPS)
        if unknown or not kv_groups:
            raise ValueError(
                f"kv_groups {list(kv_groups)} are not supported: one or more of {list(SUPPORTED_GROUPS)} are"
            )
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.kv_groups = kv_groups
        self._num_groups = len(kv_groups)
        self._cache = PrefixCache(self.pool, block_size, len(kv_groups)) if prefix_caching else None

    @property
    def prefix_caching(self) -> bool:
        return self._cache is not None

    @property
    def capacity_tokens(self) -> int:
        """How many tokens of KV one request can have if it uses the whole cache."""
        return self.pool.num_blocks // self._num_groups * self.block_size

    def find_cached(self, request: Request) -> list[list[Block]]:
        """Returns the blocks of the request's longest cached prefix, per KV group, without adding an owner.

        The prefix is within the request's num_reusable_tokens. The lists are empty if nothing is cached.
        """
        return self._cache.find(request) if self._cache is not None else [[] for _ in range(self._num_groups)]

    def allocate(self, request: Request, cached: list[list[Block]], num_tokens: int, num_reserved_blocks: int) -> bool:
        """Gives a waiting request its `cached` blocks, and new ones for its first `num_tokens` tokens.

        Returns False, and changes nothing, unless blocks for all of its known tokens are free and
        `num_reserved_blocks` per KV group remain for the running requests. Otherwise a preemption would soon follow.
        """
        num_cached_blocks = len(cached[0])
        num_cached_free = sum(block.ref_count == 0 for blocks in cached for block in blocks)
        needed = self.blocks_for(request.num_tokens) - num_cached_blocks + num_reserved_blocks
        if needed * self._num_groups > self.pool.num_free_blocks - num_cached_free:
            return False
        for blocks in cached:
            self.pool.share(blocks)
        request.blocks = [list(blocks) for blocks in cached]
        if self._cache is not None:
            self._cache.start(request, num_cached_blocks)
        return self.extend(request, num_tokens)

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Appends new blocks until the request has room for its first `num_tokens` tokens.

        Returns False, and changes nothing, when too few blocks are free.
        """
        missing = self.blocks_for(num_tokens) - len(request.blocks[0])
        if missing > 0:
            if missing * self._num_groups > self.pool.num_free_blocks:
                return False
            for blocks in request.blocks:
                blocks.extend(self.pool.take(missing))
        return True

    def free(self, request: Request) -> None:
        """Ends publishing and releases all blocks of a request, the last first, so that it is evicted first."""
        if self._cache is not None:
            self._cache.stop(request)
        for blocks in request.blocks:
            self.pool.release(reversed(blocks))
        request.blocks = []

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
