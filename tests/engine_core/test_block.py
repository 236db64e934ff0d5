"""The free list has the order of a list; unpublished blocks see what is appended to the lists of their request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.block import Block, FreeList, UnpublishedBlocks


@given(st.lists(st.tuples(st.sampled_from(["append", "remove", "popleft"]), st.integers(0, 5)), max_size=40))
def test_the_free_list_behaves_like_a_list(operations: list[tuple[str, int]]) -> None:
    blocks = [Block(block_id) for block_id in range(6)]
    free, expected = FreeList(), []
    for operation, number in operations:
        block = blocks[number]
        if operation == "append" and block not in expected:
            free.append(block)
            expected.append(block)
        elif operation == "remove" and block in expected:
            free.remove(block)
            expected.remove(block)
        elif operation == "popleft" and expected:
            assert free.popleft() is expected.pop(0)
        assert list(free) == expected and len(free) == len(expected)


def test_an_empty_free_list_has_no_first_block() -> None:
    free = FreeList()
    with pytest.raises(IndexError, match="no free block"):
        free.popleft()
    assert list(free) == [] and len(free) == 0


def test_a_block_is_in_the_free_list_at_most_once() -> None:
    free, block = FreeList(), Block(0)
    free.append(block)
    with pytest.raises(AssertionError):
        free.append(block)
    free.remove(block)
    with pytest.raises(AssertionError):
        free.remove(block)
    assert len(free) == 0


def test_a_new_block_has_no_owner_and_no_key() -> None:
    block = Block(3)
    assert (block.block_id, block.ref_count, block.key, block.unpublished) == (3, 0, None, None)
    assert repr(block) == "Block(3, refs=0, cached=False)"


def test_unpublished_blocks_see_what_their_request_appends() -> None:
    token_ids, blocks, numbers = [1, 2, 3, 4], [[Block(0)], [Block(1)]], [[], [8]]
    unpublished = UnpublishedBlocks(token_ids, b"root", [], blocks, numbers, next=1)
    token_ids.append(5)
    blocks[0].append(Block(2))
    blocks[1].append(Block(3))
    blocks[0][1].take_number = blocks[1][1].take_number = 9
    assert unpublished.token_ids == [1, 2, 3, 4, 5] and unpublished.row(1) == ((blocks[0][1], 9), (blocks[1][1], 9))
    numbers[1].append(10)
    assert unpublished.row(1) == ((blocks[0][1], 9), (blocks[1][1], 10)), "the number with which it was given back"
    unpublished.last_take = 8
    assert unpublished.row(1)[0] == (blocks[0][1], 8), "it was taken since"
    assert (unpublished.next, unpublished.end, unpublished.parent) == (1, 1, None), "no full block is left to publish"
