"""Which blocks hold a prefix that somebody else may use. A block is found by its tokens and the hash of all before it.

Of the full blocks that a request has, only the first one that nobody else has is published at once. The rest hang
behind it as its tail: each of them is published when the block before it is found, for it may be the one that is wanted
next. So contents that nobody shares are never hashed, however long they are.
"""

from collections.abc import Iterable

from engine_core.block import Block, Tail
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
        request.tail = Tail(request.token_ids, request.root_hash, request.block_hashes, request.blocks, next=num_found)

    def publish(self, request: Request, num_computed_tokens: int) -> None:
        """What is full and known of the first `num_computed_tokens` may be found from now on."""
        tail = request.tail
        if tail is None:
            return
        tail.end = min(num_computed_tokens, len(tail.token_ids)) // self._block_size
        if tail.holder is None:
            self._hang(tail)

    def end(self, request: Request) -> None:
        """The request is about to give its blocks back; they can be found until somebody takes them."""
        tail, request.tail = request.tail, None
        if tail is None:
            return
        tail.until = self._pool.num_takes
        if tail.holder is not None and tail.next >= tail.end:
            tail.holder.tail = None

    def forget_all(self, owners: Iterable[Request]) -> None:
        """No block can be found any more; nor can later ones of their owners, which stand on these."""
        self._pool.forget_all()
        for request in owners:
            request.tail = None

    def _row(self, parent: bytes, tokens: tuple[int, ...]) -> list[Block] | None:
        """The blocks of all groups, or None; what hangs behind them moves on by one."""
        row = []
        for group in range(self._num_groups):
            block = self._pool.find((group, parent, tokens))
            if block is None:
                return None
            row.append(block)
        for block in row:
            if block.tail is not None:
                tail, block.tail = block.tail, None
                self._hang(tail)
        return row

    def _hang(self, tail: Tail) -> None:
        """Publishes the first block of the tail that nobody else has; the rest hang behind that one."""
        tail.holder = None
        size = self._block_size
        while tail.next < tail.end and tail.holder is None:
            index = tail.next
            tail.next += 1
            parent = chain_hash(tail.block_hashes, tail.root_hash, tail.token_ids, size, index)
            tokens = tuple(tail.token_ids[index * size : (index + 1) * size])
            for group, blocks in enumerate(tail.blocks):
                block = blocks[index]
                if block.taken > tail.until:
                    return  # evicted, and so are those behind it
                if self._pool.publish(block, (group, parent, tokens)) and tail.holder is None:
                    tail.holder, block.tail = block, tail
