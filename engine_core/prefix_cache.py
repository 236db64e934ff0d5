"""Finds and publishes blocks of shared prefixes, row by row: a row is the blocks of all KV groups with the same tokens.

The key of a row is its tokens and the hash of all tokens before them; its block of the first group has it. A prefix is
found if it is whole in the groups that keep all blocks, and in the others as far back as the next token reads. A block
that was given back keeps its contents until the pool gives it to another request, which its take_number tells.

Of a request's full rows, only the first one that the pool does not know yet is published at once. The later ones are
attached to it as UnpublishedBlocks. When a request finds a row, the next one attached to it is published, because the
same request may look for it. So contents that no two requests share are never hashed.
docs/decisions/0014-prefix-hashes-on-demand.md
"""

import functools
from collections.abc import Callable, Iterable, Sequence

from engine_core.block import Block, BlockKey, Row, UnpublishedBlocks
from engine_core.block_hash import chain_hash
from engine_core.block_pool import BlockPool
from engine_core.kv_groups import KvGroup, first_block
from engine_core.request import Request

RowAt = Callable[[int], Block | None]  # the first block of a row, by the row's index
ABSENT = Block(-1)  # takes the place of blocks before a window, which a request does not need


class PrefixCache:
    """For models with a group that keeps all blocks. `groups`: those that do come first."""

    def __init__(self, pool: BlockPool, block_size: int, groups: Sequence[KvGroup]) -> None:
        self._pool = pool
        self._block_size = block_size
        self._groups = groups
        self._num_whole = sum(group.keeps_all for group in groups)

    def find(self, request: Request) -> list[list[Block]]:
        """Returns the blocks of the request's longest cached prefix within its num_reusable_tokens, per KV group: lists
        of one length, with ABSENT for what the next token does not read. Publishes rows as `_find_row` does."""
        rows: list[Block] = []
        for index in range(request.num_reusable_tokens // self._block_size):
            block = self._find_row(self._key(request, index))
            if block is None:
                break
            rows.append(block)
        return self._blocks(rows.__getitem__, self._longest(rows.__getitem__, len(rows)))

    def start(self, request: Request, num_found: int) -> None:
        """Prepares to publish a request's blocks, without the first `num_found`, which find() returned."""
        lists = request.block_hashes, request.blocks, request.given_back
        request.unpublished = UnpublishedBlocks(request.token_ids, request.root_hash, *lists, next=num_found)

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

    def _key(self, request: Request | UnpublishedBlocks, index: int) -> BlockKey:
        """Returns the key of the row `index` of a request."""
        size, token_ids = self._block_size, request.token_ids
        parent_hash = chain_hash(request.block_hashes, request.root_hash, token_ids, size, index)
        return parent_hash, tuple(token_ids[index * size : (index + 1) * size])

    def _find_row(self, key: BlockKey) -> Block | None:
        """Returns the first block of the row with this key; None if there is none, or if it is not whole in the groups
        that keep all blocks. Publishes the next of the UnpublishedBlocks attached to it."""
        block = self._pool.find(key)
        if block is None or not all(map(_is_valid, block.others[: self._num_whole - 1])):
            return None
        if block.unpublished is not None:
            unpublished, block.unpublished = block.unpublished, None
            self._publish_next(unpublished)
        return block

    def _longest(self, row_at: RowAt, count: int) -> int:
        """Returns how many of the first `count` rows make the longest prefix behind which the next token finds all that
        it reads of the groups that give blocks back."""
        windows = list(enumerate(self._groups))[self._num_whole :]
        while windows and count:
            firsts = [
                (first_block(group, count * self._block_size, self._block_size), number) for number, group in windows
            ]
            for index in range(min(firsts)[0], count):  # the first one before: if it is missing, a window is skipped
                row = row_at(index)
                read = [number for first, number in firsts if first <= index]
                if row is None or not all(_is_valid(row.others[number - 1]) for number in read if number):
                    count = index  # any prefix that ends behind this row reads it, too
                    break
            else:
                break
        return count

    def _blocks(self, row_at: RowAt, count: int) -> list[list[Block]]:
        """Returns the blocks of the first `count` rows, per KV group."""
        blocks = []
        for number, group in enumerate(self._groups):
            first = first_block(group, count * self._block_size, self._block_size)
            rows = [row for row in map(row_at, range(first, count)) if row is not None]
            blocks.append([ABSENT] * first + [row.others[number - 1][0] if number else row for row in rows])
        return blocks

    def _publish_next(self, unpublished: UnpublishedBlocks) -> None:
        """Publishes the first of these rows that the pool does not know yet; it becomes the parent of the rest.

        Stops at a row without its first block, which another request has taken since.
        """
        unpublished.parent = None
        while unpublished.next < unpublished.end and unpublished.parent is None:
            first, *others = unpublished.row(unpublished.next)
            if not _is_valid(first):
                unpublished.next = unpublished.end
                return  # the rows behind it are found only through it
            block = first[0]
            if self._publish_row(block, self._key(unpublished, unpublished.next), tuple(others)):
                unpublished.parent, block.unpublished = block, unpublished
            unpublished.next += 1

    def _publish_row(self, block: Block, key: BlockKey, others: Row) -> bool:
        """Returns False if there is such a row: it gets those of the `others` that it lacks."""
        if self._pool.publish(block, key, others):
            return True
        known = self._pool.find(key)
        if known is not None and others:
            pairs = zip(known.others, others, strict=True)
            known.others = tuple([old if _is_valid(old) else new for old, new in pairs])
        return False


class EagerPrefixCache(PrefixCache):
    """For models without a group that keeps all blocks. A prefix is found without its first rows, so nothing can wait
    behind them: every row is hashed and published once it is full."""

    def find(self, request: Request) -> list[list[Block]]:
        """As PrefixCache.find, but publishes nothing."""
        row_at = functools.cache(lambda index: self._pool.find(self._key(request, index)))
        return self._blocks(row_at, self._longest(row_at, request.num_reusable_tokens // self._block_size))

    def publish(self, request: Request, num_computed_tokens: int) -> None:
        """As PrefixCache.publish, but of all rows whose first block is still the request's, or free. Rows of an answer
        are published at its end: by then, another request may have taken what a window gave back."""
        unpublished = request.unpublished
        if unpublished is None:
            return
        end = min(num_computed_tokens, len(unpublished.token_ids)) // self._block_size
        for index in range(unpublished.next, end):
            first, *others = unpublished.row(index)
            if _is_valid(first):
                self._publish_row(first[0], self._key(unpublished, index), tuple(others))
        unpublished.next = max(unpublished.next, end)


def _is_valid(entry: tuple[Block, int]) -> bool:
    """Whether a row's block still has the row's tokens."""
    block, take_number = entry
    return block.take_number == take_number
