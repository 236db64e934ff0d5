"""Which blocks hold a prefix that other requests may use. A block is found by its tokens and the hash of all before it.

Of a request's full blocks, only the first one that the pool does not know yet is published at once. The rest wait
behind it as UnpublishedBlocks: each is published when the block before it is found, for then the next may be wanted.
So contents that no two requests share are never hashed, however long they are.
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
        """The longest known prefix, per KV group. The last known token is always left to compute: it gives the
        logits."""
        size, token_ids = self._block_size, request.token_ids
        found: list[list[Block]] = [[] for _ in range(self._num_groups)]
        for index in range((len(token_ids) - 1) // size):
            parent = chain_hash(request.block_hashes, request.root_hash, token_ids, size, index)
            row = self._row(parent, tuple(token_ids[index * size : (index + 1) * size]))
            if row is None:
                break
            for blocks, block in zip(found, row, strict=True):
                blocks.append(block)
        return found

    def begin(self, request: Request, num_found: int) -> None:
        """The request has its blocks; the first of them were found here."""
        request.unpublished = UnpublishedBlocks(
            request.token_ids, request.root_hash, request.block_hashes, request.blocks, next=num_found
        )

    def publish(self, request: Request, num_computed_tokens: int) -> None:
        """What is full and known of the first `num_computed_tokens` may be found from now on."""
        unpublished = request.unpublished
        if unpublished is None:
            return
        unpublished.end = min(num_computed_tokens, len(unpublished.token_ids)) // self._block_size
        if unpublished.holder is None:
            self._hang(unpublished)

    def end(self, request: Request) -> None:
        """The request is about to give its blocks back; they can be found until somebody takes them."""
        unpublished, request.unpublished = request.unpublished, None
        if unpublished is None:
            return
        unpublished.until = self._pool.num_takes
        if unpublished.holder is not None and unpublished.next >= unpublished.end:
            unpublished.holder.unpublished = None

    def forget_all(self, owners: Iterable[Request]) -> None:
        """No block can be found any more; nor can later ones of their owners, which stand on these."""
        self._pool.forget_all()
        for request in owners:
            request.unpublished = None

    def _row(self, parent: bytes, tokens: tuple[int, ...]) -> list[Block] | None:
        """The blocks of all groups, or None; what hangs behind them moves on by one."""
        row = []
        for group in range(self._num_groups):
            block = self._pool.find((group, parent, tokens))
            if block is None:
                return None
            row.append(block)
        for block in row:
            if block.unpublished is not None:
                unpublished, block.unpublished = block.unpublished, None
                self._hang(unpublished)
        return row

    def _hang(self, unpublished: UnpublishedBlocks) -> None:
        """Publishes the first block of the unpublished that nobody else has; the rest hang behind that one."""
        unpublished.holder = None
        size = self._block_size
        while unpublished.next < unpublished.end and unpublished.holder is None:
            index = unpublished.next
            unpublished.next += 1
            parent = chain_hash(unpublished.block_hashes, unpublished.root_hash, unpublished.token_ids, size, index)
            tokens = tuple(unpublished.token_ids[index * size : (index + 1) * size])
            for group, blocks in enumerate(unpublished.blocks):
                block = blocks[index]
                if block.taken > unpublished.until:
                    return  # evicted, and so are those behind it
                if self._pool.publish(block, (group, parent, tokens)) and unpublished.holder is None:
                    unpublished.holder, block.unpublished = block, unpublished
