"""Which blocks of other requests are found, and that contents which no two requests share are never hashed."""

import pytest

from engine_core.request import Request
from engine_core.scheduler import Scheduler
from tests.engine_core.test_async import Pipe
from tests.engine_core.test_scheduler import add_all, make_scheduler, run
from tests.fakes import make_core_request, oracle


def num_found(scheduler: Scheduler, tokens: list[int]) -> int:
    """Returns how many of these tokens a new request would find."""
    return 4 * len(scheduler.kv.find_cached(make_core_request(1000, tokens, 1))[0])


def test_contents_that_are_not_shared_are_never_hashed() -> None:
    scheduler, worker = make_scheduler()
    request = make_core_request(0, list(range(1, 18)), 20)
    add_all(scheduler, request)
    run(scheduler, worker)
    assert request.block_hashes == []


@pytest.mark.parametrize("shared", range(10))
def test_a_prefix_is_hashed_as_far_as_it_is_shared(shared: int) -> None:
    scheduler, worker = make_scheduler()
    first = make_core_request(0, list(range(1, 38)), 1)
    add_all(scheduler, first)
    run(scheduler, worker)
    assert num_found(scheduler, [*range(1, 4 * shared + 1), 49, 49]) == 4 * min(shared, 9)
    assert len(first.block_hashes) == min(shared, 8), (
        "the last block is found by its tokens and the hash of those before it"
    )


def test_a_prompt_is_found_while_it_is_computed_and_an_answer_once_it_has_ended() -> None:
    prompt, answer = list(range(1, 23)), oracle(list(range(1, 23)), 8)
    scheduler, worker = make_scheduler(budget=9)
    add_all(scheduler, make_core_request(0, prompt, 8))
    pipe = Pipe(scheduler, worker)
    found = []
    while pipe.plan():
        found.append(num_found(scheduler, [*prompt, *answer]))
        pipe.take()
    assert found == [8, 16, 20, *[20] * 7]
    assert num_found(scheduler, [*prompt, *answer]) == 28


def test_every_choice_of_a_prompt_is_found_by_its_next_turn() -> None:
    """They differ after the prompt, and each has unpublished blocks of its own."""
    scheduler, worker = make_scheduler()
    prompts = [[*range(1, 9), choice, choice] for choice in range(10, 14)]
    add_all(scheduler, *(make_core_request(handle, prompt, 9) for handle, prompt in enumerate(prompts)))
    run(scheduler, worker)
    for prompt in prompts:
        assert num_found(scheduler, [*prompt, *oracle(prompt, 9), 5]) == 16


@pytest.mark.parametrize("length", [3, 8])
def test_blocks_after_a_block_computed_twice_are_found(length: int) -> None:
    """Two requests with equal prompts have outputs of different lengths. The second computes a block that the first has
    published: the last of a prompt of whole blocks, or one that both filled at once. Its later blocks are found."""
    prompt = list(range(1, length + 1))
    answer = oracle(prompt, 10)
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, prompt, 3), make_core_request(1, prompt, 10))
    run(scheduler, worker)
    assert num_found(scheduler, [*prompt, *answer, 5]) == (length + 9) // 4 * 4


def test_unpublished_blocks_end_where_blocks_were_taken() -> None:
    """The end of a chain is evicted first. The rest is found, and no block with other contents."""
    scheduler, worker = make_scheduler(num_blocks=8)
    old, new = list(range(1, 26)), list(range(30, 39))
    add_all(scheduler, make_core_request(0, old, 4))
    run(scheduler, worker)
    add_all(scheduler, make_core_request(1, new, 4))  # takes the free block, and the last three of the old chain
    outputs, _ = run(scheduler, worker)
    assert outputs[1] == oracle(new, 4)
    add_all(scheduler, make_core_request(2, [*old[:24], 7], 4))
    outputs, finished = run(scheduler, worker)
    assert finished[2].num_cached_tokens == 20
    assert outputs[2] == oracle([*old[:24], 7], 4)


def test_after_a_reset_nothing_is_found_nor_published() -> None:
    scheduler, worker = make_scheduler()
    running = make_core_request(1, list(range(20, 40)), 9)
    add_all(scheduler, make_core_request(0, list(range(1, 18)), 2), running)
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.update(worker.execute(plan))
    scheduler.reset_prefix_cache()
    scheduler.kv.pool.check()
    run(scheduler, worker)
    for tokens in (list(range(1, 18)), list(range(20, 40))):
        assert num_found(scheduler, tokens) == 0
    again = make_core_request(2, list(range(1, 18)), 2)
    add_all(scheduler, again)
    run(scheduler, worker)
    assert num_found(scheduler, list(range(1, 18))) == 16, "blocks computed afterwards are found"


def test_a_request_has_no_unpublished_blocks_once_it_has_ended() -> None:
    scheduler, worker = make_scheduler()
    requests: list[Request] = [make_core_request(handle, list(range(1, 18)), 2) for handle in range(2)]
    add_all(scheduler, *requests)
    run(scheduler, worker)
    assert [request.unpublished for request in requests] == [None, None]
    assert all(
        block.unpublished is None or block.unpublished.next < block.unpublished.end
        for block in scheduler.kv.pool.blocks
    )
