"""The prefix cache is emptied while requests run: its old blocks are not found, and no request's tokens change."""

from engine_core.scheduler import Scheduler
from tests.engine_core.test_scheduler import add_all, make_scheduler, run
from tests.fakes import FakeWorker, make_core_request, oracle

PROMPT = list(range(1, 14))  # three full blocks of 4, and a token


def hits_of(scheduler: Scheduler, worker: FakeWorker, handle: int, prompt: list[int], salt: str = "") -> int:
    add_all(scheduler, make_core_request(handle, prompt, 5, cache_salt=salt))
    outputs, finished = run(scheduler, worker)
    assert outputs[handle] == oracle(prompt, 5)
    return finished[handle].num_cached_tokens


def test_hits_before_and_none_after() -> None:
    scheduler, worker = make_scheduler()
    assert [hits_of(scheduler, worker, handle, PROMPT) for handle in range(2)] == [0, 12]
    scheduler.reset_prefix_cache()
    assert [hits_of(scheduler, worker, handle, PROMPT) for handle in range(2, 4)] == [0, 12], "the cache fills again"


def test_salts_are_reset_and_stay_apart() -> None:
    scheduler, worker = make_scheduler()
    for handle, salt in enumerate(("a", "b")):
        hits_of(scheduler, worker, handle, PROMPT, salt)
    scheduler.reset_prefix_cache()
    found = [hits_of(scheduler, worker, 2 + handle, PROMPT, salt) for handle, salt in enumerate("abaab")]
    assert found == [0, 0, 12, 12, 12]


def test_running_requests_go_on_and_publish_no_later_blocks() -> None:
    """One runs on shared blocks, with steps in flight. Its later blocks follow them, and are not found either."""
    scheduler, worker = make_scheduler()
    hits_of(scheduler, worker, 0, PROMPT)
    add_all(scheduler, make_core_request(1, PROMPT, 20))
    plans = [scheduler.schedule(), scheduler.schedule()]
    scheduler.reset_prefix_cache()
    outputs: list[int] = []
    for plan in plans:
        assert plan is not None
        for tokens in scheduler.update(worker.execute(plan)).new_tokens:
            outputs += tokens.token_ids
    add_all(scheduler, make_core_request(2, PROMPT, 3))
    rest, finished = run(scheduler, worker)
    assert outputs + rest[1] == oracle(PROMPT, 20)
    assert finished[1].num_cached_tokens == 12, "it was admitted before"
    assert rest[2] == oracle(PROMPT, 3) and finished[2].num_cached_tokens == 0
    whole = PROMPT + oracle(PROMPT, 20)
    assert hits_of(scheduler, worker, 3, whole) == 12, "only the blocks that request 2 computed"


def test_a_request_preempted_after_a_reset_publishes_again() -> None:
    """It computes all of its blocks again."""
    scheduler, worker = make_scheduler(num_blocks=8)
    add_all(scheduler, make_core_request(0, [1, 2, 3], 20), make_core_request(1, [4, 5, 6], 20))
    while not scheduler.counters.preemptions:
        plan = scheduler.schedule()
        assert plan is not None
        if scheduler.counters.steps == 2:
            scheduler.reset_prefix_cache()
        scheduler.update(worker.execute(plan))
    outputs, _ = run(scheduler, worker)
    first = [4, 5, 6, *oracle([4, 5, 6], 20)]
    assert outputs[1] == oracle([4, 5, 6], 20)[-len(outputs[1]) :]
    assert hits_of(scheduler, worker, 2, first[:9]) == 8
