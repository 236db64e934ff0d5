"""Which blocks a request gets, what is left for the running requests, and which blocks others may share."""

import numpy as np
import pytest

from engine_core.batch import Batch
from engine_core.block import Block
from engine_core.block_pool import BlockPool
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL, MAX_TOKENS, KvGroup, SlidingWindow
from engine_core.prefix_cache import ABSENT
from engine_core.request import Request
from tests.fakes import make_core_request, make_facts

BLOCK_SIZE = 4


def make_kv(
    num_blocks: int = 8, kv_groups: tuple[KvGroup, ...] = (FULL,), prefix_caching: bool = True
) -> KVCacheManager:
    return KVCacheManager(num_blocks, BLOCK_SIZE, kv_groups, prefix_caching)


def allocate(kv: KVCacheManager, request: Request, num_tokens: int | None = None, reserved: int = 0) -> bool:
    return kv.allocate(request, kv.find_cached(request), num_tokens or request.num_tokens, reserved)


def computed(kv: KVCacheManager, handle: int, tokens: list[int]) -> Request:
    """Returns a request with its prompt computed and published."""
    request = make_core_request(handle, tokens, 4)
    assert allocate(kv, request)
    kv.publish(request, request.num_tokens)
    return request


def block_ids(request: Request) -> list[list[int]]:
    return [[block.block_id for block in blocks] for blocks in request.blocks]


WINDOW = SlidingWindow(6, 8)


@pytest.mark.parametrize("kv_groups", [(), (WINDOW, FULL), (FULL, WINDOW, FULL)])
def test_groups_that_keep_all_blocks_come_first(kv_groups: tuple[KvGroup, ...]) -> None:
    with pytest.raises(ValueError, match=r"kv_groups are \[.*\], but must be one or more, those that keep all blocks"):
        make_kv(kv_groups=kv_groups)


def test_a_cache_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks is 0"):
        make_kv(num_blocks=0)


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_a_partly_filled_block_counts(num_tokens: int, num_blocks: int) -> None:
    assert make_kv().blocks_for(num_tokens) == num_blocks


def test_every_kv_group_has_blocks_of_its_own() -> None:
    kv = make_kv(num_blocks=9, kv_groups=(FULL, FULL))
    assert kv.capacity_tokens == 4 * BLOCK_SIZE
    request = make_core_request(0, [1] * 9, 4)
    assert allocate(kv, request)
    assert block_ids(request) == [[0, 1, 2], [3, 4, 5]]
    assert not kv.extend(request, 17), "4 blocks are missing, 3 are free"
    assert kv.extend(request, 16) and len(request.blocks[0]) == len(request.blocks[1]) == 4


def test_a_request_gets_blocks_for_the_tokens_that_it_computes_next() -> None:
    kv = make_kv()
    request = make_core_request(0, list(range(1, 14)), 4)
    assert allocate(kv, request, num_tokens=5)
    assert block_ids(request) == [[0, 1]]
    assert kv.extend(request, 8) and block_ids(request) == [[0, 1]], "they have room for 8 tokens"
    assert kv.extend(request, 9) and block_ids(request) == [[0, 1, 2]]


@pytest.mark.parametrize(("reserved", "fits"), [(4, True), (5, False)])
def test_blocks_for_all_known_tokens_must_be_free_beside_the_reserved_ones(reserved: int, fits: bool) -> None:
    """13 tokens need 4 of 8 blocks, also when the first step computes only one of them."""
    kv = make_kv()
    request = make_core_request(0, list(range(1, 14)), 4)
    assert allocate(kv, request, num_tokens=1, reserved=reserved) == fits
    assert kv.pool.num_free_blocks == (7 if fits else 8)
    assert bool(request.blocks) == fits


def test_an_allocation_that_fails_changes_nothing() -> None:
    kv = make_kv()
    kv.free(computed(kv, 0, list(range(1, 10))))
    free = [block.block_id for block in kv.pool._free]
    request = make_core_request(1, [*range(1, 9), *[7] * 20], 4)
    assert len(kv.find_cached(request)[0]) == 2
    assert not allocate(kv, request, reserved=4)
    assert request.blocks == [] and request.unpublished is None
    assert [block.block_id for block in kv.pool._free] == free, "the cached blocks keep their places"
    kv.pool.check()


def test_cached_blocks_are_shared_and_free_ones_count_only_once() -> None:
    """Of 8 free blocks, 2 are cached. 28 tokens need 7 blocks, 5 of them new, and 6 other ones are free."""
    kv = make_kv()
    first = computed(kv, 0, list(range(1, 10)))
    cached = block_ids(first)[0][:2]
    kv.free(first)
    request = make_core_request(1, [*range(1, 9), *[7] * 20], 4)
    assert not allocate(kv, request, reserved=2)
    assert allocate(kv, request, reserved=1)
    assert block_ids(request)[0][:2] == cached and len(set(block_ids(request)[0])) == 7
    assert kv.pool.num_free_blocks == 1


def test_a_failed_extension_changes_nothing() -> None:
    kv = make_kv(num_blocks=2)
    request = computed(kv, 0, [1, 2, 3])
    assert not kv.extend(request, 9)
    assert block_ids(request) == [[0]] and kv.pool.num_free_blocks == 1


def test_the_last_block_of_a_request_is_evicted_first() -> None:
    kv = make_kv(num_blocks=3)
    request = computed(kv, 0, list(range(1, 12)))
    ids = block_ids(request)[0]
    kv.free(request)
    assert request.blocks == []
    assert [block.block_id for block in kv.pool.take(3)] == ids[::-1]


def test_blocks_of_known_tokens_are_found_once_published_but_never_the_last_token() -> None:
    kv = make_kv()
    request = make_core_request(0, list(range(1, 9)), 4)
    again = make_core_request(1, list(range(1, 9)), 4)
    longer = make_core_request(2, list(range(1, 10)), 4)
    assert allocate(kv, request)
    assert kv.find_cached(again) == [[]]
    kv.publish(request, 7)
    assert kv.find_cached(again) == [request.blocks[0][:1]], "7 computed tokens fill one block"
    kv.publish(request, 8)
    assert kv.find_cached(longer) == [request.blocks[0]]
    assert kv.find_cached(again) == [request.blocks[0][:1]], "its eighth token is left to compute"


def test_computed_tokens_that_are_not_known_yet_are_not_published() -> None:
    """With a step in flight, the worker has computed more tokens than the engine has ids of."""
    kv = make_kv()
    request = make_core_request(0, [1, 2, 3], 8)
    assert allocate(kv, request, num_tokens=3) and kv.extend(request, 4)
    kv.publish(request, 4)
    request.token_ids.append(9)
    later = make_core_request(1, [1, 2, 3, 9, 5], 4)
    assert kv.find_cached(later) == [[]]
    kv.publish(request, 4)
    assert kv.find_cached(later) == [request.blocks[0]]


def test_without_prefix_caching_nothing_is_found() -> None:
    kv = make_kv(prefix_caching=False)
    request = computed(kv, 0, list(range(1, 10)))
    kv.reset_prefix_cache([request])
    kv.free(request)
    assert not kv.prefix_caching and kv.find_cached(make_core_request(1, list(range(1, 10)), 4)) == [[]]
    assert kv.pool.num_free_blocks == 8


def test_a_block_begun_before_a_reset_is_not_published_after_it() -> None:
    kv = make_kv()
    request = computed(kv, 0, [1, 2, 3])
    kv.reset_prefix_cache([request])
    request.token_ids.append(4)
    kv.publish(request, 4)
    assert kv.find_cached(make_core_request(1, [1, 2, 3, 4, 5], 4)) == [[]]


def test_a_reset_empties_the_cache_and_keeps_the_blocks_of_the_running() -> None:
    kv = make_kv()
    request = computed(kv, 0, list(range(1, 10)))
    kv.reset_prefix_cache([request])
    assert block_ids(request) == [[0, 1, 2]]
    request.token_ids += [1, 2, 3]
    kv.publish(request, 12)
    assert kv.find_cached(make_core_request(1, [*range(1, 10), 1, 2, 3, 4], 4)) == [[]]
    kv.free(request)
    other = computed(kv, 2, list(range(1, 10)))
    assert kv.find_cached(make_core_request(3, list(range(1, 10)), 4)) == [other.blocks[0][:2]]


def run_to(kv: KVCacheManager, batch: Batch, request: Request, num_tokens: int) -> None:
    """Plans further tokens of a running request, up to `num_tokens` computed ones, in steps of at most 8."""
    while (computed := int(batch.num_computed[request.slot])) < num_tokens:
        kv.give_back(batch)
        end = min(num_tokens, computed + 8)
        assert kv.extend(request, end)
        batch.num_blocks[request.slot] = len(request.blocks[0])
        batch.advance(batch.slots, np.array([end - computed], dtype=np.int32))
        kv.publish(request, end)


def firsts(request: Request) -> list[int]:
    """Returns per KV group the index of the first block that the request has."""
    return [len(given_back) for given_back in request.given_back]


def taken(kv: KVCacheManager, block: Block) -> None:
    """Lets another request take this free block."""
    free = kv.pool._free
    others = [each for each in free if each is not block]
    for each in others:
        free.remove(each)
    assert kv.pool.take(1) == [block]
    for each in others:
        free.append(each)


def start(kv: KVCacheManager, tokens: list[int]) -> tuple[Batch, Request]:
    """Admits a request with what is cached of it. Returns it in a batch of its own."""
    request, batch = make_core_request(0, tokens, 4), Batch(1, lambda one: (0, one.handle))
    cached = kv.find_cached(request)
    num_computed = len(cached[0]) * BLOCK_SIZE
    assert kv.allocate(request, cached, min(len(tokens), num_computed + 8), 0)
    batch.join(request, num_computed)
    return batch, request


def test_a_block_is_given_back_by_the_plan_that_reads_it_no_more() -> None:
    """A window of 6 tokens: the token at position p reads from p - 5 on, so block 0 (positions 0 to 3) up to p = 8."""
    kv = make_kv(num_blocks=32, kv_groups=(FULL, WINDOW))
    batch, request = start(kv, [1] * 20)
    for num_computed, first in ((8, 0), (9, 1), (12, 1), (13, 2), (20, 3)):
        run_to(kv, batch, request, num_computed)
        kv.give_back(batch)
        assert firsts(request) == [0, first], f"{num_computed} computed tokens"
        held = [len(blocks[begin:]) for blocks, begin in zip(request.blocks, firsts(request), strict=True)]
        assert kv.pool.num_blocks - kv.pool.num_free_blocks == sum(held)
    kv.free(request)
    assert kv.pool.num_free_blocks == 32


def test_a_hit_takes_of_a_window_only_what_the_next_token_reads() -> None:
    kv = make_kv(num_blocks=32, kv_groups=(FULL, WINDOW))
    batch, first = start(kv, list(range(1, 21)))
    run_to(kv, batch, first, 20)
    blocks = first.blocks
    kv.free(first)
    _, second = start(kv, list(range(1, 24)))
    assert second.blocks[0][:5] == blocks[0] and firsts(second) == [0, 3]
    assert second.blocks[1][:5] == [ABSENT] * 3 + blocks[1][3:5]


@pytest.mark.parametrize("groups", [(FULL, WINDOW), (WINDOW,)])
def test_a_block_that_was_taken_since_is_not_found_and_a_shorter_prefix_is(groups: tuple[KvGroup, ...]) -> None:
    kv = make_kv(num_blocks=32, kv_groups=groups)
    batch, first = start(kv, list(range(1, 21)))
    run_to(kv, batch, first, 20)
    window = first.blocks[-1]
    kv.free(first)
    later = make_core_request(1, list(range(1, 30)), 4)
    assert len(kv.find_cached(later)[0]) == 5
    taken(kv, window[4])
    assert len(kv.find_cached(later)[0]) == 4, "what lies before it is whole: the window behind 16 tokens"
    taken(kv, window[2])
    assert len(kv.find_cached(later)[0]) == 2


@pytest.mark.parametrize("groups", [(WINDOW,), (WINDOW, SlidingWindow(9, 8))])
def test_a_block_of_an_answer_that_was_taken_before_its_end_is_not_published(groups: tuple[KvGroup, ...]) -> None:
    """Tokens of answers are published when their request ends, long after a window has left them behind."""
    kv = make_kv(num_blocks=32, kv_groups=groups)
    batch, request = start(kv, list(range(1, 21)))
    while (computed := int(batch.num_computed[request.slot])) < 20:  # as for an answer: nothing is published meanwhile
        kv.give_back(batch)
        assert kv.extend(request, computed + 1)
        batch.num_blocks[request.slot] = len(request.blocks[0])
        batch.advance(batch.slots, np.array([1], dtype=np.int32))
    kv.give_back(batch)
    gone = request.blocks[0][1]
    taken(kv, gone)
    kv.publish(request, 20)
    kv.free(request)
    assert gone.key is None, "it has the tokens of another request"
    assert len(kv.find_cached(make_core_request(1, [*range(1, 9), 40], 4))[0]) == 1
    assert len(kv.find_cached(make_core_request(1, list(range(1, 30)), 4))[0]) == 5


def test_a_long_prompt_that_is_not_cached_is_looked_for_once_per_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix that ends within a window behind a row reads that row: if it is missing, none of them is cached."""
    kv = make_kv(num_blocks=32, kv_groups=(SlidingWindow(256, 8),))
    looked_for: list[object] = []
    monkeypatch.setattr(BlockPool, "find", lambda self, key: looked_for.append(key))
    request = make_core_request(1, [7] * 4000, 4, make_facts(max_model_len=5000, num_blocks=2000))
    assert kv.find_cached(request) == [[]]
    assert len(looked_for) <= 4000 // 256 + 1


def test_what_a_later_request_computes_again_is_found_again() -> None:
    """The row is known, but its block of the window was taken: the later request's stands in for it."""
    kv = make_kv(num_blocks=32, kv_groups=(FULL, WINDOW))
    batch, first = start(kv, list(range(1, 21)))
    run_to(kv, batch, first, 20)
    window = first.blocks[1]
    kv.free(first)
    for block in window:
        taken(kv, block)
    batch, second = start(kv, list(range(1, 21)))
    assert firsts(second) == [0, 0] and batch.num_computed[second.slot] == 0, "nothing of the window is left"
    run_to(kv, batch, second, 20)
    kv.free(second)
    assert len(kv.find_cached(make_core_request(1, list(range(1, 30)), 4))[0]) == 5


def test_admission_counts_of_a_window_what_a_request_has_at_one_time() -> None:
    """40 tokens take 10 blocks of the group that keeps them, and 4 of a window of 6 in steps of 8: 13 tokens."""
    for num_blocks, fits in ((13, False), (14, True)):
        kv = make_kv(num_blocks=num_blocks, kv_groups=(FULL, WINDOW), prefix_caching=False)
        request = make_core_request(0, [1] * 40, 1)
        assert kv.allocate(request, kv.find_cached(request), 8, 0) == fits
        assert kv.capacity_tokens >= 40 or not fits
    kv = make_kv(num_blocks=4, kv_groups=(WINDOW,))
    assert kv.capacity_tokens == MAX_TOKENS, "windows alone set no limit"


def test_blocks_to_allocate_are_those_for_known_tokens_that_the_requests_lack() -> None:
    kv = make_kv(num_blocks=64, kv_groups=(FULL, WINDOW), prefix_caching=False)
    batch = Batch(2, lambda one: (0, one.handle))
    assert kv.num_blocks_to_allocate(batch) == 0
    for handle, num_tokens in ((0, 9), (1, 40)):
        request = make_core_request(handle, [1] * num_tokens, 4)
        assert kv.allocate(request, kv.find_cached(request), 4, 0)
        batch.join(request, 0)
    # 3 blocks of each group for 9 tokens, 10 and at most 4 for 40, and each request has one of both groups.
    assert kv.num_blocks_to_allocate(batch) == 2 + 2 + 9 + 3
    batch.num_blocks[batch.slots] = 12
    assert kv.num_blocks_to_allocate(batch) == 0, "blocks to spare of one request are not another's"
