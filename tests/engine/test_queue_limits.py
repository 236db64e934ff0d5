"""The engine's queue limits: what is refused, with which message, and after how many seconds to try again."""

import pytest

from services.engine.queue_limits import MAX_RETRY_SECONDS, RECENT_SECONDS, QueueFull, QueueLimit, QueueLimits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def full(limit: int, held: int, clock: Clock) -> QueueLimit:
    found = QueueLimit("max_num_queued_reqs", limit, "requests are running or waiting", clock)
    found.hold(held)
    return found


def refused(limit: QueueLimit, amount: int = 1) -> QueueFull:
    with pytest.raises(QueueFull) as caught:
        limit.check(amount)
    return caught.value


def test_a_refusal_names_the_limit_its_value_and_what_is_queued() -> None:
    error = refused(full(10, 9, Clock()), 2)
    assert str(error) == "9 requests are running or waiting: 2 more would exceed max_num_queued_reqs (10)"
    assert (error.code, error.status.http, error.retryable, error.retry_after) == ("RESOURCE_EXHAUSTED", 429, True, 1)


def test_a_released_amount_can_be_held_again() -> None:
    limit = full(10, 9, Clock())
    limit.check(1)
    limit.hold(1)
    refused(limit)
    limit.release(1)
    limit.check(1)


def test_an_empty_queue_accepts_an_amount_above_the_limit() -> None:
    full(10, 0, Clock()).check(11)


def test_limit_0_means_unlimited() -> None:
    full(0, 10**6, Clock()).check(10**6)


def test_retry_after_follows_the_rate_of_recent_releases() -> None:
    """One place is released every two seconds. Refused requests do not change the rate."""
    clock = Clock()
    limit = full(3, 8, clock)
    for _ in range(5):
        limit.release(1)
        clock.now += 2
    assert limit.held == 3
    assert [refused(limit).retry_after for _ in range(50)] == [2] * 50
    assert refused(limit, 2).retry_after == 4


def test_retry_after_is_a_minute_at_most() -> None:
    clock = Clock()
    limit = full(1, 2, clock)
    limit.release(1)
    clock.now += 20
    assert [refused(limit, amount).retry_after for amount in (1, 2, 9)] == [20, 40, MAX_RETRY_SECONDS]


def test_old_releases_do_not_count() -> None:
    clock = Clock()
    limit = full(1, 2, clock)
    limit.release(1)
    clock.now += RECENT_SECONDS + 1
    assert refused(limit).retry_after == 1


def test_each_limit_is_checked() -> None:
    limits = QueueLimits(max_num_queued_reqs=2, max_num_queued_tokens=100)
    limits.hold(90)
    limits.check([10])
    with pytest.raises(QueueFull, match="90 prompt tokens are waiting or in prefill: 11 more would exceed") as caught:
        limits.check([11])
    assert caught.value.option == "max_num_queued_tokens"
    with pytest.raises(QueueFull) as caught:
        limits.check([1, 1])
    assert caught.value.option == "max_num_queued_reqs"
