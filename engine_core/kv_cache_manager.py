"""Which blocks each request has, and which of them others may share.

Takes the model's KV groups (sets of layers with one kind of block); a request has one list of blocks per group. A
block of a prompt may be shared as soon as a plan computes its last token, for later plans run after that one; those of
an answer once the request gives them back.
"""

from collections.abc import Iterable

from engine_core.block import Block
from engine_core.block_pool import BlockPool
from engine_core.prefix_cache import PrefixCache
from engine_core.request import Request

SUPPORTED_GROUPS = ("full",)


class KVCacheManager:
    def __init__(self, num_blocks: int, block_size: int, kv_groups: tuple[str, ...], prefix_caching: bool) -> None:
        """Raises ValueError for a kind of KV group that has no rule here."""
        unknown = set(kv_groups) - set(SUPPORTED_GROUPS)
        if unknown or not kv_groups:
            raise ValueError(f"KV groups {sorted(unknown)} are not supported, only {SUPPORTED_GROUPS}")
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
        """Tokens of one request that fit when it is alone."""
        return self.pool.num_blocks // self._num_groups * self.block_size

    def find_cached(self, request: Request) -> list[list[Block]]:
        """The longest known prefix, per group, without the last known token."""
        return self._cache.find(request) if self._cache is not None else [[] for _ in range(self._num_groups)]

    def admit(self, request: Request, cached: list[list[Block]], num_tokens: int, num_owed_blocks: int) -> bool:
        """Gives a waiting request its cached blocks, and room for `num_tokens` in all.

        False: too few blocks are free for all of its known tokens, beside those that the running still need for theirs.
        It would only drive somebody out.
        """
        num_cached_blocks = len(cached[0])
        taken_from_free = sum(block.ref_count == 0 for blocks in cached for block in blocks)
        wanted = self.blocks_for(request.num_tokens) - num_cached_blocks + num_owed_blocks
        if wanted * self._num_groups > self.pool.num_free_blocks - taken_from_free:
            return False
        for blocks in cached:
            self.pool.share(blocks)
        request.blocks = [list(blocks) for blocks in cached]
        if self._cache is not None:
            self._cache.begin(request, num_cached_blocks)
        return self.extend(request, num_tokens)

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Room for `num_tokens` in all. False, and nothing changed: too few blocks are free."""
        wanted = self.blocks_for(num_tokens) - len(request.blocks[0])
        if wanted > 0:
            if wanted * self._num_groups > self.pool.num_free_blocks:
                return False
            for blocks in request.blocks:
                blocks.extend(self.pool.take(wanted))
        return True

    def free(self, request: Request) -> None:
        """Takes all blocks from a request; the end of its chain is evicted before the beginning."""
        if self._cache is not None:
            self._cache.end(request)
        for blocks in request.blocks:
            self.pool.release(reversed(blocks))
        request.blocks = []

    def publish(self, request: Request, num_computed_tokens: int) -> None:
        """Makes findable what is full and known of the first `num_computed_tokens`."""
        if self._cache is not None:
            self._cache.publish(request, num_computed_tokens)

    def forget_all(self, owners: Iterable[Request]) -> None:
        """No block can be found any more; nor can later ones of their owners, which stand on these."""
        if self._cache is not None:
            self._cache.forget_all(owners)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of each KV group."""
        return -(-num_tokens // self.block_size)
