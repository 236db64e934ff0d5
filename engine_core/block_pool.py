"""Owns all blocks of the KV cache: which are in use, which are free, and which hold a prefix that can be found.

A block is in use while its ref_count is above 0, and in the free list otherwise. A free block keeps its key until it is
taken again, so the free list is also the LRU order of the prefix cache. Every operation is O(1) per block.
"""

from collections.abc import Iterable

from engine_core.block import Block, BlockKey, FreeList, Row


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        """Creates `num_blocks` free blocks, ids from 0. Raises ValueError for fewer than one."""
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}, but a KV cache needs at least 1")
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free = FreeList()
        for block in self.blocks:
            self._free.append(block)
        self._by_key: dict[BlockKey, Block] = {}
        self.num_takes = 0  # calls of take() so far

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[Block]:
        """Removes `count` blocks from the free list and returns them, each with one owner; their old keys are removed.

        Raises IndexError, and changes nothing, when fewer are free.
        """
        if count > len(self._free):
            raise IndexError(f"cannot take {count} blocks: {len(self._free)} are free")
        self.num_takes += 1
        taken = [self._free.popleft() for _ in range(count)]
        for block in taken:
            self._unpublish(block)
            block.ref_count = 1
            block.take_number = self.num_takes
        return taken

    def share(self, blocks: Iterable[Block]) -> None:
        """Adds one owner to each of these blocks, which find() returned. A free block is then in use."""
        for block in blocks:
            if block.ref_count == 0:
                self._free.remove(block)
            block.ref_count += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """Removes one owner from each block. Blocks without an owner become free; the first given is evicted first."""
        for block in blocks:
            assert block.ref_count > 0, f"{block} released twice"
            block.ref_count -= 1
            if block.ref_count == 0:
                self._free.append(block)

    def find(self, key: BlockKey) -> Block | None:
        """Returns the published block with this key, in use or free; None if there is none."""
        return self._by_key.get(key)

    def publish(self, block: Block, key: BlockKey, others: Row = ()) -> bool:
        """Gives a full block its key, by which it can be found, with the `others` of its row.

        Returns False, and changes nothing, if it has a key already or another block has this key.
        """
        if block.key is not None or key in self._by_key:
            return False
        block.key, block.others = key, others
        self._by_key[key] = block
        return True

    def unpublish_all(self) -> None:
        """Removes all keys, so that no block can be found, and the UnpublishedBlocks attached to blocks.

        Owners and the free list do not change.
        """
        for block in self._by_key.values():
            block.key, block.others, block.unpublished = None, (), None
        self._by_key.clear()

    def _unpublish(self, block: Block) -> None:
        if block.key is not None:
            del self._by_key[block.key]
            block.key, block.others, block.unpublished = None, (), None

    def check(self) -> None:
        """Asserts the pool's invariants; for tests. O(number of blocks)."""
        free = list(self._free)
        assert len(free) == len(self._free) == sum(block.ref_count == 0 for block in self.blocks)
        assert all(block.ref_count == 0 for block in free)
        assert len({block.block_id for block in free}) == len(free)
        assert all(block.key == key for key, block in self._by_key.items())
        assert sum(block.key is not None for block in self.blocks) == len(self._by_key)
        assert all(block.key is not None for block in self.blocks if block.unpublished is not None or block.others)
