"""Which blocks each request has, and which of them others may share.

Takes the model's KV groups (sets of layers with one kind of block); a request has one list of blocks per group. A
block is published for sharing as soon as its ids are known and a plan computes its last token: later plans run after
that one.
"""

from collections.abc import Iterable

from engine_core.block_hash import extend_block_hashes
from engine_core.block_pool import Block, BlockPool
from engine_core.request import Request

SUPPORTED_GROUPS = ("full",)
NO_MORE = 2**31  # published blocks of a request that publishes none before it is admitted again


class KVCacheManager:
    def __init__(self, num_blocks: int, block_size: int, kv_groups: tuple[str, ...], prefix_caching: bool) -> None:
        """Raises ValueError for a kind of KV group that has no rule here."""
        unknown = set(kv_groups) - set(SUPPORTED_GROUPS)
        if unknown or not kv_groups:
            raise ValueError(f"KV groups {sorted(unknown)} are not supported, only {SUPPORTED_GROUPS}")
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self._num_groups = len(kv_groups)
        self.prefix_caching = prefix_caching

    @property
    def capacity_tokens(self) -> int:
        """Tokens of one request that fit when it is alone."""
        return self.pool.num_blocks // self._num_groups * self.block_size

    def find_cached(self, request: Request) -> list[list[Block]]:
        """The longest known prefix, per group. The last known token is always left to compute: it gives the logits."""
        found: list[list[Block]] = [[] for _ in range(self._num_groups)]
        if not self.prefix_caching:
            return found
        extend_block_hashes(request.block_hashes, request.root_hash, request.token_ids, self.block_size)
        for index in range((request.num_tokens - 1) // self.block_size):
            row = [self.pool.find((group, request.block_hashes[index])) for group in range(self._num_groups)]
            if not all(row):
                break
            for blocks, block in zip(found, row, strict=True):
                assert block is not None
                blocks.append(block)
        return found

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
        request.num_published_blocks = num_cached_blocks
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
        for blocks in request.blocks:
            self.pool.release(reversed(blocks))
        request.blocks = []

    def publish(self, request: Request, num_computed_tokens: int) -> None:
        """Makes findable what is full and known of the first `num_computed_tokens`."""
        first, last = request.num_published_blocks, min(num_computed_tokens, request.num_tokens) // self.block_size
        if first >= last or not self.prefix_caching:
            return
        extend_block_hashes(request.block_hashes, request.root_hash, request.token_ids, self.block_size)
        for index in range(first, last):
            for group, blocks in enumerate(request.blocks):
                self.pool.publish(blocks[index], (group, request.block_hashes[index]))
        request.num_published_blocks = last

    def forget_all(self, owners: Iterable[Request]) -> None:
        """No block can be found any more; nor can later ones of their owners, which stand on these."""
        self.pool.forget_all()
        for request in owners:
            request.num_published_blocks = NO_MORE

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of each KV group."""
        return -(-num_tokens // self.block_size)
