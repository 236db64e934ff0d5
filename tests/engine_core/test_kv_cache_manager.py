"""Which blocks a request gets, what is left for the running requests, and which blocks others may share."""

import pytest

from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.request import Request
from tests.fakes import make_core_request

BLOCK_SIZE = 4


def make_kv(num_blocks: int = 8, kv_groups: tuple[str, ...] = (FULL,), prefix_caching: bool = True) -> KVCacheManager:
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


@pytest.mark.parametrize("kv_groups", [("full", "state"), ("sliding",), ()])
def test_a_kv_group_that_is_not_supported_is_refused(kv_groups: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"kv_groups \[.*\] are not supported: one or more of \['full'\] are"):
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
