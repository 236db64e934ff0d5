"""Each rule about suspects (requests that ran when workers died) by itself; test_restart.py tests them in the
scheduler."""

import numpy as np
import pytest

from engine_core.batch import Batch
from engine_core.block import Block
from engine_core.request import SUSPECT_AT, Request
from engine_core.suspects import FIRST_TRIAL, LONGEST_TRIAL, MAX_EXPLAINED, NO_SUSPECT, RECENT_STEPS, StepRule, Suspects
from engine_core.waiting import WaitingQueue
from tests.fakes import make_core_request


def make_request(handle: int, strikes: int = 0) -> Request:
    request = make_core_request(handle, [1, 2, 3], 6)  # needs room for 8 tokens
    request.strikes = strikes
    return request


def make_batch(*requests: Request) -> Batch:
    batch = Batch(4, WaitingQueue(by_priority=False).rank)
    for request in requests:
        request.blocks = [[Block(0)]]
        batch.join(request, 0)
    return batch


def make_queue(*requests: Request) -> WaitingQueue:
    queue = WaitingQueue(by_priority=False)
    for request in requests:
        queue.push(request)
    return queue


def test_without_a_suspect_a_step_holds_all_requests() -> None:
    first, second = make_request(0), make_request(1)
    wanted = np.array([3, 5], dtype=np.int32)
    assert not NO_SUSPECT.waits_for_results and not NO_SUSPECT.preempts_to_admit
    assert NO_SUSPECT.admits(first) and NO_SUSPECT.strikes(first)
    assert NO_SUSPECT.victim([first, second]) is second
    assert NO_SUSPECT.restrict(wanted, make_batch(first, second)).tolist() == [3, 5]


def test_a_suspect_is_alone_in_flight_and_takes_the_place_of_others() -> None:
    rule = StepRule(make_request(0, SUSPECT_AT))
    assert rule.waits_for_results and rule.preempts_to_admit


def test_only_the_suspect_is_admitted_and_gets_strikes() -> None:
    suspect, other = make_request(0, SUSPECT_AT), make_request(1, SUSPECT_AT)
    rule = StepRule(suspect)
    assert rule.admits(suspect) and not rule.admits(other)
    assert rule.strikes(suspect) and not rule.strikes(other), "the other one pauses, even if it is a suspect too"


@pytest.mark.parametrize("position", range(3))
def test_the_lowest_ranked_request_but_the_suspect_is_preempted(position: int) -> None:
    running = [make_request(handle) for handle in range(3)]
    assert StepRule(running[position]).victim(running) is (running[1] if position == 2 else running[2])
    assert StepRule(make_request(9)).victim(running) is running[2], "a suspect that waits"


@pytest.mark.parametrize(("running", "expected"), [((0,), [3, 0]), ((1,), [0, 5]), ((), [0, 0])])
def test_running_requests_other_than_the_suspect_pause(running: tuple[int, ...], expected: list[int]) -> None:
    requests = [make_request(0), make_request(1)]
    batch = make_batch(*requests)
    suspect = requests[running[0]] if running else make_request(2, SUSPECT_AT)
    restricted = StepRule(suspect).restrict(np.array([3, 5], dtype=np.int32), batch)
    assert restricted.tolist() == expected and restricted.dtype == np.int32


@pytest.mark.parametrize(("capacity", "ends"), [(8, False), (7, True)])
def test_a_request_that_does_not_fit_the_next_worker_ends(capacity: int, ends: bool) -> None:
    """3 prompt tokens and 6 of output need room for 8: the KV of the last one is never computed."""
    expected = f"the next worker's KV cache is too small: {capacity} tokens" if ends else None
    assert NO_SUSPECT.restart_error(make_request(0), capacity, SUSPECT_AT + 1) == expected
    suspect = make_request(1, SUSPECT_AT)
    assert StepRule(suspect).restart_error(suspect, capacity, SUSPECT_AT + 1) == expected


def test_a_suspect_ends_if_the_worker_died_while_it_ran_alone() -> None:
    suspect, other = make_request(0, SUSPECT_AT), make_request(1, SUSPECT_AT + 1)
    rule = StepRule(suspect)
    assert rule.restart_error(suspect, 8, SUSPECT_AT + 1) is None, "it has not run since"
    suspect.strikes += 1
    assert rule.restart_error(suspect, 8, SUSPECT_AT + 1) == "the worker died while it ran this request alone"
    other.token_ids[0] += 1
    assert (
        rule.restart_error(other, 8, SUSPECT_AT + 1) is None
        and NO_SUSPECT.restart_error(other, 8, SUSPECT_AT + 1) is None
    )


@pytest.mark.parametrize("strikes", [SUSPECT_AT - 1, SUSPECT_AT])
def test_the_other_choices_of_a_request_end_with_the_one_that_kills(strikes: int) -> None:
    killer, choice = make_request(0, SUSPECT_AT + 1), make_request(1, strikes)
    assert bool(StepRule(killer).restart_error(choice, 8, SUSPECT_AT + 1)) == choice.is_suspect
    choice.seed += 1
    assert StepRule(killer).restart_error(choice, 8, SUSPECT_AT + 1) is None, "another request with the same prompt"


def test_a_trial_takes_longer_the_more_deaths_follow_each_other() -> None:
    """Each death comes ten tokens after the one before, so the trials of four tokens have ended by then."""
    suspects, request = Suspects(), make_request(0)
    trials = []
    for _ in range(4):
        suspects.strike([request], NO_SUSPECT, 0)
        trials.append((request.strikes, request.trial, request.trial_end - request.num_output_tokens))
        request.token_ids += [7] * 10
        if request.num_output_tokens >= request.trial_end:
            suspects.clear(request)
    assert trials == [(1, 4, 4), (1, 16, 16), (2, 16, 16), (3, 16, 16)]


def test_a_death_long_after_the_last_one_begins_with_a_short_trial() -> None:
    suspects, request = Suspects(), make_request(0)
    for _ in range(3):
        suspects.strike([request], NO_SUSPECT, 0)
        request.token_ids += [7] * LONGEST_TRIAL
        suspects.clear(request)
    assert request.trial == FIRST_TRIAL


def test_there_is_no_suspect_at_first() -> None:
    queue = make_queue(make_request(1))
    assert Suspects().step_rule([make_request(0)], queue, NO_SUSPECT) is NO_SUSPECT


def test_a_running_suspect_comes_before_a_waiting_one() -> None:
    suspects = Suspects()
    running = [make_request(0), make_request(1, SUSPECT_AT), make_request(2, SUSPECT_AT)]
    waiting = make_request(3, SUSPECT_AT)
    for request in (*running, waiting):
        suspects.watch(request)
    queue = make_queue(waiting)
    assert suspects.step_rule(running, queue, NO_SUSPECT).suspect is running[1]
    suspects.clear(running[1])
    assert suspects.step_rule(running, queue, NO_SUSPECT).suspect is running[2]
    suspects.clear(running[2])
    assert suspects.step_rule(running, queue, NO_SUSPECT).suspect is waiting


def test_the_queue_gives_the_suspect_that_arrived_first() -> None:
    suspects = Suspects()
    queue = make_queue(make_request(0), make_request(2, SUSPECT_AT), make_request(1, SUSPECT_AT))
    for request in queue:
        suspects.watch(request)
    rule = suspects.step_rule([], queue, NO_SUSPECT)
    assert rule.suspect is not None and rule.suspect.handle == 1


@pytest.mark.parametrize(("strikes", "is_suspect"), [(0, False), (SUSPECT_AT - 1, False), (SUSPECT_AT, True)])
def test_a_request_is_a_suspect_from_so_many_strikes_on(strikes: int, is_suspect: bool) -> None:
    suspects, request = Suspects(), make_request(0, strikes)
    suspects.watch(request)
    rule = suspects.step_rule([], make_queue(request), NO_SUSPECT)
    assert rule.suspect is (request if is_suspect else None)


def test_a_death_is_a_strike_against_all_that_ran() -> None:
    suspects = Suspects()
    running = [make_request(0), make_request(1, SUSPECT_AT - 1)]
    suspects.strike(running, NO_SUSPECT, 0)
    assert [request.strikes for request in running] == [1, SUSPECT_AT]
    rule = suspects.step_rule(running, make_queue(), NO_SUSPECT)
    assert rule.suspect is running[1]
    suspects.strike(running, rule, 0)
    assert [request.strikes for request in running] == [1, SUSPECT_AT + 1], "the other one paused"


def test_a_token_clears_a_suspect_of_all_strikes() -> None:
    suspects, request = Suspects(), make_request(0, SUSPECT_AT + 1)
    suspects.watch(request)
    suspects.clear(request)
    assert request.strikes == 0
    assert suspects.step_rule([request], make_queue(), NO_SUSPECT) is NO_SUSPECT


def test_a_suspect_that_has_ended_is_forgotten() -> None:
    suspects, ended, other = Suspects(), make_request(0, SUSPECT_AT), make_request(1)
    suspects.watch(ended)
    suspects.forget(ended)
    suspects.forget(other)
    assert suspects.step_rule([], make_queue(other), NO_SUSPECT) is NO_SUSPECT


@pytest.mark.parametrize(("num_deaths", "later", "alone"), [(MAX_EXPLAINED, 0, 2), (9, 0, 3), (9, RECENT_STEPS + 1, 2)])
def test_a_worker_that_dies_often_needs_more_evidence(num_deaths: int, later: int, alone: int) -> None:
    """How often it must die while it runs a suspect `alone`, `later` steps after `num_deaths` deaths."""
    suspects, suspect = Suspects(), make_request(0, SUSPECT_AT)
    for _ in range(num_deaths):
        suspects.strike([], NO_SUSPECT, 5)
    suspects.strike([suspect], StepRule(suspect), 5 + later)
    assert suspects.guilty_at == SUSPECT_AT + alone


@pytest.mark.parametrize(
    ("alone", "later", "more"), [(0, 0, 0), (1, 0, 1), (2, 0, 2), (9, 0, 3), (2, RECENT_STEPS + 1, 0)]
)
def test_deaths_alone_of_an_innocent_request_need_as_many_more(alone: int, later: int, more: int) -> None:
    """The worker dies `alone` times while it runs a suspect, whose trial ends then; and again `later` steps later."""
    suspects, innocent, other = Suspects(), make_request(0, SUSPECT_AT), make_request(1, SUSPECT_AT)
    for _ in range(alone):
        suspects.strike([innocent], StepRule(innocent), 5)
    suspects.clear(innocent)
    suspects.strike([other], StepRule(other), 5 + later)
    assert suspects.guilty_at == SUSPECT_AT + 2 + more


def test_the_others_get_a_step_when_a_suspect_has_left() -> None:
    """Whether they run or wait; not if there is none, nor while the suspect runs."""
    suspects = Suspects()
    first, second, other = make_request(0, SUSPECT_AT), make_request(1, SUSPECT_AT), make_request(2)
    suspects.watch(first)
    suspects.watch(second)
    queue, last = make_queue(second), StepRule(first)
    assert suspects.step_rule([first], queue, last).suspect is first
    suspects.clear(first)
    assert suspects.step_rule([first], queue, last) is NO_SUSPECT, "it is one of the others now"
    assert suspects.step_rule([first], queue, NO_SUSPECT).suspect is second
    assert suspects.step_rule([], queue, last).suspect is second
    queue.push(other)
    assert suspects.step_rule([], queue, last) is NO_SUSPECT
