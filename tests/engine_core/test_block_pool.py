"""Every operation of the block pool keeps its invariants, and the least recently used block is evicted first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.block import Block
from engine_core.block_pool import BlockPool

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["take", "release", "share", "publish"]), st.integers(0, 7)), max_size=60
)


@given(OPERATIONS)
def test_invariants_hold_over_random_operations(operations: list[tuple[str, int]]) -> None:
    pool = BlockPool(8)
    owned: list[Block] = []  # one entry per owner
    for operation, number in operations:
        if operation == "take" and pool.num_free_blocks >= number % 3 + 1:
            owned += pool.take(number % 3 + 1)
        elif operation == "release" and owned:
            pool.release([owned.pop(number % len(owned))])
        elif operation == "share":
            block = pool.find((0, bytes([number]), ()))
            if block is not None:
                pool.share([block])
                owned.append(block)
        elif operation == "publish" and owned:
            pool.publish(owned[number % len(owned)], (0, bytes([number]), ()))
        pool.check()
        assert sum(block.ref_count for block in pool.blocks) == len(owned)


def test_the_least_recently_freed_block_is_evicted_first() -> None:
    pool = BlockPool(3)
    blocks = pool.take(3)
    for index, block in enumerate(blocks):
        pool.publish(block, (0, bytes([index]), ()))
    pool.release([blocks[1], blocks[0], blocks[2]])
    assert pool.take(1) == [blocks[1]]
    assert pool.find((0, b"\1", ())) is None and pool.find((0, b"\0", ())) is blocks[0]


def test_of_two_blocks_with_equal_contents_the_first_stays_findable() -> None:
    pool = BlockPool(2)
    first, second = pool.take(2)
    pool.publish(first, (0, b"x", ()))
    pool.publish(second, (0, b"x", ()))
    assert pool.find((0, b"x", ())) is first and second.key is None
    pool.check()


def test_groups_do_not_mix() -> None:
    pool = BlockPool(1)
    pool.publish(pool.take(1)[0], (0, b"x", ()))
    assert pool.find((1, b"x", ())) is None


def test_taking_too_many_changes_nothing() -> None:
    pool = BlockPool(2)
    with pytest.raises(IndexError, match="cannot take 3 blocks: 2 are free"):
        pool.take(3)
    assert pool.num_free_blocks == 2


def test_unpublish_all_empties_the_cache_but_frees_nothing() -> None:
    pool = BlockPool(2)
    block = pool.take(1)[0]
    pool.publish(block, (0, b"x", ()))
    pool.unpublish_all()
    assert pool.find((0, b"x", ())) is None and pool.num_free_blocks == 1
    pool.check()
