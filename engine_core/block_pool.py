"""All blocks of the KV cache: who uses which, which are free, and which of the free still hold a known prefix.

A block is used while its ref_count is above 0, and in the free list otherwise. A free block keeps its hash until
somebody takes it, so the free list is also the LRU order of the prefix cache. Every operation is O(1) per block.
"""

from collections.abc import Iterable, Iterator


class Block:
    """One block; `prev` and `next` link it while it is free."""

    __slots__ = ("block_id", "key", "next", "prev", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: BlockKey | None = None  # set while the block can be found by its hash
        self.prev: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.block_id}, refs={self.ref_count}, cached={self.key is not None})"


BlockKey = tuple[int, bytes]  # KV group, block hash


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


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a KV cache needs at least one block, not {num_blocks}")
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free = FreeList()
        for block in self.blocks:
            self._free.append(block)
        self._by_key: dict[BlockKey, Block] = {}

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[Block]:
        """`count` blocks for one owner; their old contents are forgotten. Raises IndexError when too few are free."""
        if count > len(self._free):
            raise IndexError(f"{count} blocks wanted, {len(self._free)} free")
        taken = [self._free.popleft() for _ in range(count)]
        for block in taken:
            self._forget(block)
            block.ref_count = 1
        return taken

    def share(self, blocks: Iterable[Block]) -> None:
        """One more owner for blocks that were found by their hash."""
        for block in blocks:
            if block.ref_count == 0:
                self._free.remove(block)
            block.ref_count += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """One owner less. Those without an owner become free, the first given becoming the first to be evicted."""
        for block in blocks:
            assert block.ref_count > 0, f"{block} released twice"
            block.ref_count -= 1
            if block.ref_count == 0:
                self._free.append(block)

    def find(self, key: BlockKey) -> Block | None:
        return self._by_key.get(key)

    def publish(self, block: Block, key: BlockKey) -> None:
        """Makes a full block findable. Where another block holds the same contents already, that one stays."""
        if block.key is None and key not in self._by_key:
            block.key = key
            self._by_key[key] = block

    def forget_all(self) -> None:
        """No block can be found by its hash any more."""
        for block in self._by_key.values():
            block.key = None
        self._by_key.clear()

    def _forget(self, block: Block) -> None:
        if block.key is not None:
            del self._by_key[block.key]
            block.key = None

    def check(self) -> None:
        """Asserts the pool's invariants; for tests. O(number of blocks)."""
        free = list(self._free)
        assert len(free) == len(self._free) == sum(block.ref_count == 0 for block in self.blocks)
        assert all(block.ref_count == 0 for block in free)
        assert len({block.block_id for block in free}) == len(free)
        assert all(block.key == key for key, block in self._by_key.items())
        assert sum(block.key is not None for block in self.blocks) == len(self._by_key)
