"""Worker deaths and preparations: a next worker prepares all grammars again; one that kills workers fails alone."""

import pytest

from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.plan_builder import PlanBuilder
from engine_core.preparations import DEADLY_GRAMMAR
from engine_core.request import SUSPECT_AT, Stop
from tests.engine_core.test_preparations import begun, constrained, prepare_one, step
from tests.engine_core.test_restart import next_worker
from tests.engine_core.test_scheduler import add_all, make_scheduler, run
from tests.fakes import make_core_request, oracle, prepare_all, prepare_message


def test_a_next_worker_prepares_all_again() -> None:
    """Also those that ran, with their output so far."""
    scheduler, worker = make_scheduler(max_num_seqs=2)
    add_all(scheduler, *(constrained(handle, 9, "5") for handle in range(4)), make_core_request(4, [5, 6], 2))
    prepare_all(scheduler, worker)
    step(scheduler, worker)
    worker, ended = next_worker(scheduler)
    assert not ended and scheduler.stats().num_deferred == 4
    assert step(scheduler, worker) == [4], "the others wait"
    requests = scheduler.prepare()
    assert [(one.handle, one.num_output_tokens) for one in requests] == [(0, 1), (1, 1), (2, 0), (3, 0)]
    for request in requests:
        worker.prepare(prepare_message(request))
        scheduler.prepared(request.handle)
    outputs, finished = run(scheduler, worker)
    assert outputs == {handle: oracle([handle, 2, 3], 5)[(1 if handle < 2 else 0) :] for handle in range(4)} | {
        4: oracle([5, 6], 2)[1:]
    }
    assert all(finished[handle].stop == Stop("stop") for handle in range(4))


def test_one_that_does_not_fit_the_next_worker_ends() -> None:
    scheduler, _ = make_scheduler()
    add_all(scheduler, constrained(0, 20))
    ended = scheduler.restart(KVCacheManager(2, 4, (FULL,), prefix_caching=True), PlanBuilder(2, 1))
    assert [one.stop.message for one in ended] == ["the next worker's KV cache is too small: 8 tokens"]
    assert not scheduler.has_unfinished and begun(scheduler) == []


@pytest.mark.parametrize("prepared", [False, True])
def test_a_deferred_suspect_pauses_nothing(prepared: bool) -> None:
    scheduler, worker = make_scheduler()
    suspect = constrained(0)
    suspect.strikes = SUSPECT_AT
    add_all(scheduler, make_core_request(1, [5, 6], 4), suspect, make_core_request(2, [7, 8], 4))
    assert begun(scheduler) == [0]
    if prepared:
        prepare_one(scheduler, worker, 0)
        assert step(scheduler, worker) == [0]
    else:
        assert step(scheduler, worker) == [1, 2]
        prepare_one(scheduler, worker, 0)
        plan = scheduler.schedule()
        assert plan is not None and [new.handle for new in plan.new_requests] == [0], "it runs alone now"


def test_a_grammar_that_kills_workers_fails_alone() -> None:
    """Requests that ran beside it, or were prepared beside it, go on."""
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, [7, 8], 4), *(constrained(handle, 4) for handle in (1, 2, 3)))
    assert begun(scheduler) == [1, 2, 3]
    prepare_one(scheduler, worker, 1)
    assert step(scheduler, worker) == [0, 1]
    worker, ended = next_worker(scheduler)  # 2 or 3 has killed it
    assert not ended
    assert begun(scheduler) == [2] and scheduler.schedule() is None, "alone, without any step"
    assert begun(scheduler) == []
    prepare_one(scheduler, worker, 2)
    assert begun(scheduler) == [3] and scheduler.schedule() is None
    worker, ended = next_worker(scheduler)  # it was 3, or chance
    assert not ended and begun(scheduler) == [3] and scheduler.schedule() is None
    worker, ended = next_worker(scheduler)
    assert [(one.handle, one.stop) for one in ended] == [(3, Stop("error", message=DEADLY_GRAMMAR))]
    assert all(request.strikes <= 1 for request in scheduler.waiting), "nothing ran when it died again"
    assert begun(scheduler) == [1, 2]
    for handle in (1, 2):
        prepare_one(scheduler, worker, handle)
    outputs, _ = run(scheduler, worker)
    assert {handle: tokens[-3:] for handle, tokens in outputs.items()} == {
        0: oracle([7, 8], 4)[-3:],
        1: oracle([1, 2, 3], 4)[-3:],
        2: oracle([2, 2, 3], 4)[-3:],
    }


def test_a_suspect_is_prepared_once_no_step_is_in_flight() -> None:
    """The preparer may connect when requests without a grammar run again."""
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, [7, 8], 9), constrained(1))
    assert begun(scheduler) == [1]
    worker, _ = next_worker(scheduler)
    plan = scheduler.schedule()
    assert plan is not None
    assert begun(scheduler) == [] and scheduler.schedule() is None
    scheduler.update(worker.execute(plan))
    assert scheduler.schedule() is None and begun(scheduler) == [1] and scheduler.schedule() is None
    worker, ended = next_worker(scheduler)
    assert not ended and begun(scheduler) == [1] and scheduler.schedule() is None
    worker, ended = next_worker(scheduler)
    assert [one.handle for one in ended] == [1]
    assert [request.strikes for request in scheduler.waiting] == [0], "the one that ran was paused"
    assert scheduler.schedule() is not None


def test_a_suspect_that_is_aborted_releases_the_steps() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, [7, 8], 9), constrained(1), constrained(2))
    assert begun(scheduler) == [1, 2]
    worker, _ = next_worker(scheduler)
    assert begun(scheduler) == [1]
    scheduler.abort(2)
    assert scheduler.abort(1) is not None and scheduler.schedule() is None, "the worker may still die of it"
    worker.grammars[1] = 20
    assert scheduler.prepared(1) is None
    plan = scheduler.schedule()
    assert plan is not None and plan.dropped_grammars == [1]
    worker.execute(plan)
