"""The limits on work in progress: what is counted, and for how long."""

import pytest
from prometheus_client import CollectorRegistry

from services.rpc.errors import TandemError
from services.shim import in_progress
from services.shim.in_progress import InProgress
from services.shim.metrics import ShimMetrics


def test_requests_count_until_they_end() -> None:
    registry = CollectorRegistry()
    limit = InProgress(2, ShimMetrics(registry))
    with limit.request(), limit.request():
        assert limit.num_requests == 2
        with pytest.raises(TandemError, match="2 requests are in progress") as caught:
            limit.check()
        assert (caught.value.code, caught.value.retry_after) == ("RESOURCE_EXHAUSTED", 1)
    limit.check()
    labels = {"reason": "max_concurrent_requests"}
    assert registry.get_sample_value("tandem:http_rejections_total", labels) == 1


def test_bytes_count_until_their_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_progress, "MAX_HELD_BYTES", 100)
    monkeypatch.setattr(in_progress, "SMALL_BYTES", 0)
    limit = InProgress(9, ShimMetrics(CollectorRegistry()))
    with limit.request() as first:
        first(60)
        with limit.request() as second:
            second(40)
            with pytest.raises(TandemError, match="more than 100 bytes"):
                second(1)
        first(40)
    with limit.request() as third:
        third(100)


def test_a_small_request_does_not_fail_for_what_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_progress, "MAX_HELD_BYTES", 100_000)
    limit = InProgress(9, ShimMetrics(CollectorRegistry()))
    with limit.request() as large, limit.request() as small:
        large(100_000)
        small(1000)
        with pytest.raises(TandemError, match="more than 100000 bytes"):
            large(1)
        with pytest.raises(TandemError, match="more than 100000 bytes"):
            small(in_progress.SMALL_BYTES)
