"""One block of the KV cache, the list of free blocks, and the blocks of a request that the prefix cache has yet to
publish.

Data only: engine_core/block_pool.py and engine_core/prefix_cache.py decide which blocks are taken, shared, published.
"""

import sys
from collections.abc import Iterator

BlockKey = tuple[bytes, tuple[int, ...]]  # hash of the tokens of all blocks before this one, its token ids


class Block:
    """One block of one KV group; free if it has no owner (`ref_count` 0). `prev` and `next` link the free blocks.

    The blocks of all groups with the same tokens are a row. The prefix cache finds a row by its first block, the only
    one with a key: `others` are the row's blocks of the other groups, each with the take_number that it had.
    """

    __slots__ = ("block_id", "key", "next", "others", "prev", "ref_count", "take_number", "unpublished")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.take_number = 0  # the pool's num_takes right after this block was last taken: another one, other contents
        self.key: BlockKey | None = None  # set while the prefix cache can find the block
        self.others: Row = ()  # only set together with `key`
        self.unpublished: UnpublishedBlocks | None = None  # blocks that follow this one; only set together with `key`
        self.prev: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.block_id}, refs={self.ref_count}, cached={self.key is not None})"


Row = tuple[tuple[Block, int], ...]  # blocks, and their take_numbers when the row was made


class UnpublishedBlocks:
    """Rows of full blocks of one request, indices `next` to `end` - 1, that the prefix cache cannot find yet.

    The lists are the request's own, not copies, so they grow as the request does.
    """

    __slots__ = (
        "block_hashes",
        "blocks",
        "end",
        "given_back",
        "last_take",
        "next",
        "parent",
        "root_hash",
        "token_ids",
    )

    def __init__(
        self,
        token_ids: list[int],
        root_hash: bytes,
        block_hashes: list[bytes],
        blocks: list[list[Block]],
        given_back: list[list[int]],
        next: int,
    ) -> None:
        self.token_ids = token_ids
        self.root_hash = root_hash
        self.block_hashes = block_hashes
        self.blocks = blocks  # per KV group
        self.given_back = given_back  # per KV group: take_numbers of its first blocks, which the request gave back
        self.next = self.end = next
        self.last_take = sys.maxsize  # when the request released the others; higher take_numbers are another's
        self.parent: Block | None = None  # the published block right before `next`

    def row(self, index: int) -> Row:
        """Returns the blocks at `index` of all groups, with the take numbers that they had for this request."""
        row = []
        for blocks, numbers in zip(self.blocks, self.given_back, strict=True):
            block = blocks[index]
            row.append((block, numbers[index] if index < len(numbers) else min(block.take_number, self.last_take)))
        return tuple(row)


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
        """Removes and returns the least recently used block. Raises IndexError when the list is empty."""
        first = self._ends.next
        if first is None or first is self._ends:
            raise IndexError("no free block")
        self.remove(first)
        return first
