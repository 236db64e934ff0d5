"""The queue of waiting requests: its order, what is removed, and deferred requests. Through the scheduler:
test_policies.py, test_preparations.py."""

from engine_core.request import SUSPECT_AT, Request
from engine_core.waiting import WaitingQueue
from tests.engine_core.test_policies import with_priority
from tests.fakes import make_core_request


def deferred(handle: int) -> Request:
    request = make_core_request(handle, [handle, 2, 3], 3)
    request.waits_for = "grammar"
    return request


def pop(queue: WaitingQueue) -> Request:
    first = queue.peek()
    assert first is not None
    return queue.pop(first)


def test_resumed_and_preempted_requests_go_before_new_ones() -> None:
    queue = WaitingQueue(by_priority=False)
    new, resumed = make_core_request(0, [1], 4), make_core_request(2, [1], 4, resumed=[3])
    preempted = make_core_request(1, [1], 4)
    preempted.num_preemptions = 1
    for request in (new, resumed, preempted):
        queue.push(request)
    assert [request.handle for request in queue] == [1, 2, 0]
    assert queue.num_tokens == 4
    queue.remove(preempted)
    assert [pop(queue).handle, pop(queue).handle] == [2, 0] and len(queue) == queue.num_tokens == 0


def arrived(at: int, handle: int, priority: int = 0) -> Request:
    request = with_priority(handle, priority)
    request.arrival = at
    return request


def test_the_earlier_arrival_goes_first_whatever_its_handle() -> None:
    queue = WaitingQueue(by_priority=False)
    for request in (arrived(-5, 3), arrived(7, 1), arrived(7, 0), arrived(6, 2)):
        queue.push(request)
    assert [request.handle for request in queue] == [3, 2, 0, 1], "equal arrivals: by handle"
    assert [pop(queue).handle for _ in range(4)] == [3, 2, 0, 1]


def test_a_priority_goes_before_an_earlier_arrival_and_so_do_output_tokens() -> None:
    queue = WaitingQueue(by_priority=True)
    resumed = make_core_request(3, [1], 4, resumed=[3])
    resumed.arrival = 9
    for request in (arrived(1, 0), arrived(2, 1, priority=-1), resumed):
        queue.push(request)
    assert [request.handle for request in queue] == [1, 3, 0]


def test_a_deferred_request_is_offered_at_the_place_of_its_arrival() -> None:
    queue = WaitingQueue(by_priority=False)
    late, early = arrived(8, 0), deferred(1)
    early.arrival = 3
    for request in (late, early):
        queue.push(request)
    assert queue.peek() is late
    queue.ready(early)
    assert list(queue) == [early, late] and queue.peek() is early


def test_removed_requests_do_not_stay_in_the_heap() -> None:
    queue = WaitingQueue(by_priority=True)
    queue.push(with_priority(0, -1))
    for handle in range(1, 1000):
        request = with_priority(handle, 0, [1])
        queue.push(request)
        queue.remove(request)
    assert len(queue) == 1 and len(queue._others) < 100


def test_an_empty_queue_holds_no_removed_request() -> None:
    queue = WaitingQueue(by_priority=False)
    for ends in (queue.remove, queue.pop):
        requests = [make_core_request(handle, [1]) for handle in range(3)]
        for request in requests:
            queue.push(request)
        queue.remove(requests[1])
        queue.remove(requests[2])
        ends(requests[0])
        assert not queue._others


def test_the_queue_offers_ready_requests_alone_and_counts_all() -> None:
    queue = WaitingQueue(by_priority=True)
    first, second, urgent = deferred(0), make_core_request(1, [1], 2), deferred(2)
    urgent.priority = -1
    for request in (first, second, urgent):
        queue.push(request)
    assert [request.handle for request in queue] == [2, 0, 1]
    assert (len(queue), queue.num_ready, queue.num_deferred, queue.num_tokens) == (3, 1, 2, 7)
    assert queue.peek() is second
    queue.ready(urgent)
    assert pop(queue) is urgent and pop(queue) is second
    assert (len(queue), queue.num_ready, queue.num_tokens) == (1, 0, 3)
    assert queue.peek() is None
    queue.remove(first)
    assert len(queue) == queue.num_tokens == 0


def test_the_first_that_is_no_suspect_is_found_behind_suspects() -> None:
    queue = WaitingQueue(by_priority=False)
    other, *suspects = (make_core_request(handle, [1]) for handle in range(3))
    for suspect in suspects:
        suspect.strikes = SUSPECT_AT
        queue.push(suspect)
    assert queue.peek(suspects=False) is None
    queue.push(other)
    assert queue.peek() is suspects[0] and queue.peek(suspects=False) is other
    assert queue.pop(other) is other and list(queue) == suspects
    queue.push(other)
    queue.remove(other)
    assert queue.peek(suspects=False) is None and queue.peek() is suspects[0]


def test_a_queue_that_is_cleared_takes_its_requests_again() -> None:
    """At their present places: none is found at its old place as well."""
    queue = WaitingQueue(by_priority=False)
    first, second, third = deferred(0), make_core_request(1, [1], 2), make_core_request(2, [1], 2)
    for request in (first, second, third):
        queue.push(request)
    queue.clear()
    assert len(queue) == queue.num_ready == queue.num_tokens == 0 and not list(queue)
    third.strikes, first.waits_for = SUSPECT_AT, ""
    for request in (first, second, third):
        queue.push(request)
    assert list(queue) == [third, first, second] and queue.num_tokens == 5
