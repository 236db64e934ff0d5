"""Finds and publishes blocks of shared prefixes. The key of a block is its tokens and the hash of all blocks before it.

Of a request's full blocks, only the first one that the pool does not know yet is published at once. The later ones are
attached to it as UnpublishedBlocks. When a request finds a block, the next one attached to it is published, because the
same request may look for it. So contents that no two requests share are never hashed.
"""

from collections.abc import Iterable

from engine_core.block import Block, UnpublishedBlocks
from engine_core.block_hash import chain_hash
from engine_core.block_pool import BlockPool
from engine_core.request import Request


class PrefixCache:
    def __init__(self, pool: BlockPool, block_size: int, num_groups: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._num_groups = num_groups

    def find(self, request: Request) -> list[list[Block]]:
        """Returns the blocks of the request's longest cached prefix within its num_reusable_tokens, per KV group.
        Publishes blocks as `_find_row` does."""
        size, token_ids = self._block_size, request.token_ids
        found: list[list[Block]] = [[] for _ in range(self._num_groups)]
        for index in range(request.num_reusable_tokens // size):
            parent_hash = chain_hash(request.block_hashes, request.root_hash, token_ids, size, index)
            row = self._find_row(parent_hash, tuple(token_ids[index * size : (index + 1) * size]))
            if row is None:
                break
            for blocks, block in zip(found, row, strict=True):
                blocks.append(block)
        return found

    def start(self, request: Request, num_found: int) -> None:
        """Prepares to publish a request's blocks, without the first `num_found`, which find() returned."""
        request.unpublished = UnpublishedBlocks(
            request.token_ids, request.root_hash, request.block_hashes, request.blocks, next=num_found
        )

    def publish(self, request: Request, num_computed_tokens: int) -> None:
        """Lets other requests find this request's full blocks within its first `num_computed_tokens` known tokens."""
        unpublished = request.unpublished
        if unpublished is None:
            return
        unpublished.end = min(num_computed_tokens, len(unpublished.token_ids)) // self._block_size
        if unpublished.parent is None:
            self._publish_next(unpublished)

    def stop(self, request: Request) -> None:
        """Ends publishing for a request that is about to release its blocks.

        Its full blocks can be found until the pool gives them to another request.
        """
        unpublished, request.unpublished = request.unpublished, None
        if unpublished is None:
            return
        unpublished.last_take = self._pool.num_takes
        if unpublished.parent is not None and unpublished.next >= unpublished.end:
            unpublished.parent.unpublished = None

    def reset(self, running: Iterable[Request]) -> None:
        """Empties the cache. The `running` requests publish no more blocks, which would follow removed ones, until
        `start` is called for them again."""
        self._pool.unpublish_all()
        for request in running:
            request.unpublished = None

    def _find_row(self, parent_hash: bytes, tokens: tuple[int, ...]) -> list[Block] | None:
        """Returns the blocks that hold `tokens` after this parent, one per KV group; None if a group has none.

        Publishes the next of the UnpublishedBlocks attached to them.
        """
        row = []
        for group in range(self._num_groups):
            block = self._pool.find((group, parent_hash, tokens))
            if block is None:
                return None
            row.append(block)
        for block in row:
            if block.unpublished is not None:
                unpublished, block.unpublished = block.unpublished, None
                self._publish_next(unpublished)
        return row

    def _publish_next(self, unpublished: UnpublishedBlocks) -> None:
        """Publishes the first of these blocks that the pool does not know yet; it becomes the parent of the rest.

        Stops at a block that another request has taken since.
        """
        unpublished.parent = None
        size = self._block_size
        while unpublished.next < unpublished.end and unpublished.parent is None:
            index = unpublished.next
            unpublished.next += 1
            parent_hash = chain_hash(
                unpublished.block_hashes, unpublished.root_hash, unpublished.token_ids, size, index
            )
            tokens = tuple(unpublished.token_ids[index * size : (index + 1) * size])
            for group, blocks in enumerate(unpublished.blocks):
                block = blocks[index]
                if block.take_number > unpublished.last_take:
                    return  # reused, and so are the blocks after it
                if self._pool.publish(block, (group, parent_hash, tokens)) and unpublished.parent is None:
                    unpublished.parent, block.unpublished = block, unpublished
