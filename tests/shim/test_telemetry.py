"""shim.record: what one HTTP request leaves behind in metrics, spans and logs, whatever becomes of its choices."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.metrics import ShimMetrics
from services.shim.telemetry import RequestTelemetry

STOP, ERROR = pb.FINISH_REASON_STOP, pb.FINISH_REASON_ERROR


class Span:
    """Remembers what it was told."""

    traceparent = ""

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}
        self.ends: list[str] = []

    def set(self, attributes: dict[str, Any]) -> None:
        self.attributes |= attributes

    def end(self, at: int | None = None, *, error: str = "") -> None:
        self.ends.append(error)


class Watched:
    def __init__(self, num_choices: int) -> None:
        self.registry = CollectorRegistry()
        self.span = Span()
        self.record = RequestTelemetry("id", ShimMetrics(self.registry).of("m"), self.span)
        self.record.submitted(num_choices)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"vllm:{name}", {"model_name": "m", "engine": "0", **labels})

    def finished(self) -> dict[str, float | None]:
        found = {
            reason: self.value("request_success_total", finished_reason=reason)
            for reason in ("stop", "length", "abort", "error")
        }
        return {reason: value for reason, value in found.items() if value}

    def end(self, index: int, reason: Any, code: str = "") -> None:
        self.record.ended(index, text_pb2.TextTerminal(reason=reason, error=pb.Error(code=code)))


def test_what_a_client_gives_up_counts_as_abort() -> None:
    watched = Watched(2)
    watched.record.accepted([0, 1], None, 5, 0)
    watched.record.tokens(0, 3)
    watched.end(0, STOP)
    watched.record.close()
    assert watched.finished() == {"stop": 1, "abort": 1}
    assert watched.span.attributes["gen_ai.response.finish_reasons"] == ["stop", "abort"]
    assert watched.span.ends == [""]


def test_a_refused_request_counts_nothing() -> None:
    watched = Watched(2)
    watched.end(0, ERROR, "INVALID_ARGUMENT")
    watched.record.close()
    assert watched.finished() == {}
    assert watched.value("e2e_request_latency_seconds_count") == 0
    assert watched.span.ends == ["INVALID_ARGUMENT"]


def test_what_ran_beside_a_refused_prompt_is_counted() -> None:
    """Prompts 0 and 1 of three ran already when 2 was refused."""
    watched = Watched(3)
    watched.record.accepted([0], None, 4, 0)
    watched.record.accepted([1], None, 4, 0)
    watched.record.tokens(0, 2)
    watched.end(2, ERROR, "INVALID_ARGUMENT")
    watched.record.close()
    assert watched.finished() == {"abort": 2}
    assert watched.value("request_generation_tokens_count") == watched.value("request_params_n_count") == 2
    assert watched.span.attributes["gen_ai.response.finish_reasons"] == ["abort", "abort"]


def test_a_failure_after_the_start_is_an_error() -> None:
    watched = Watched(1)
    watched.record.accepted([0], 7, 4, 0)
    watched.end(0, ERROR, "INTERNAL")
    watched.record.close()
    assert watched.finished() == {"error": 1}
    assert watched.span.ends == ["error"]
    assert watched.value("request_params_max_tokens_sum") == 7


def test_closing_twice_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(1)
    with caplog.at_level("INFO"):
        watched.record.close()
        watched.record.close()
    assert watched.finished() == {"abort": 1}
    assert len(caplog.records) == 1


def test_tokens_that_come_together_share_the_time_between() -> None:
    watched = Watched(1)
    watched.record.accepted([0], None, 4, 0)
    for count in (2, 1, 4):
        watched.record.tokens(0, count)
    assert watched.value("inter_token_latency_seconds_count") == 6
    assert watched.value("time_to_first_token_seconds_count") == 1
    assert watched.value("generation_tokens_total") == 7
