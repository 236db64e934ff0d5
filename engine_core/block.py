"""A block of the KV cache, the list of those that are free, and what hangs behind one that can be found.

Holds no rules: who takes, shares and publishes is up to engine_core/block_pool.py and engine_core/prefix_cache.py.
"""

import sys
from collections.abc import Iterator

BlockKey = tuple[int, bytes, tuple[int, ...]]  # KV group, hash of all blocks before, token ids


class Block:
    """One block; `prev` and `next` link it while it is free."""

    __slots__ = ("block_id", "key", "next", "prev", "ref_count", "taken", "unpublished")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.taken = 0  # how many takes the pool had seen when this block was taken last, that one included
        self.key: BlockKey | None = None  # set while the block can be found
        self.unpublished: UnpublishedBlocks | None = (
            None  # the blocks behind it that cannot be found yet; only beside a key
        )
        self.prev: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.block_id}, refs={self.ref_count}, cached={self.key is not None})"


class UnpublishedBlocks:
    """Full blocks of one request, from `next` to `end`, that nobody can find yet. The lists are the request's own."""

    __slots__ = ("block_hashes", "blocks", "end", "holder", "next", "root_hash", "token_ids", "until")

    def __init__(
        self,
        token_ids: list[int],
        root_hash: bytes,
        block_hashes: list[bytes],
        blocks: list[list[Block]],
        next: int,
    ) -> None:
        self.token_ids = token_ids
        self.root_hash = root_hash
        self.block_hashes = block_hashes
        self.blocks = blocks  # per KV group
        self.next = self.end = next
        self.until = sys.maxsize  # takes of the pool; a block that was taken later is somebody else's
        self.holder: Block | None = None  # the published block that it hangs behind


class FreeList:
    """Doubly linked list of free blocks, the least recently used first."""

    def __init__(self) -> None:
        self._ends = Block(-1)
        self._ends.prev = self._ends.next = self._ends
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._ends.next
        while block is not None and block is not self._ends:
            yield block
            block = block.next

    def append(self, block: Block) -> None:
        last = self._ends.prev
        assert last is not None and block.next is None
        last.next, block.prev, block.next, self._ends.prev = block, last, self._ends, block
        self._length += 1

    def remove(self, block: Block) -> None:
        assert block.prev is not None and block.next is not None
        block.prev.next, block.next.prev = block.next, block.prev
        block.prev = block.next = None
        self._length -= 1

    def popleft(self) -> Block:
        """Raises IndexError when empty."""
        first = self._ends.next
        if first is None or first is self._ends:
            raise IndexError("no free block")
        self.remove(first)
        return first
