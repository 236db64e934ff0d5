"""RequestTelemetry: metrics, span and log line of one HTTP request, for every way in which its choices can end."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.metrics import ShimMetrics
from services.shim.telemetry import RequestTelemetry

STOP, ERROR = pb.FINISH_REASON_STOP, pb.FINISH_REASON_ERROR


class Span:
    """Keeps the attributes and the calls of `end`."""

    traceparent = ""

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}
        self.ends: list[str] = []

    def set(self, attributes: dict[str, Any]) -> None:
        self.attributes |= attributes

    def end(self, at: int | None = None, *, error: str = "") -> None:
        self.ends.append(error)


class Request:
    def __init__(self, num_choices: int) -> None:
        self.registry = CollectorRegistry()
        self.span = Span()
        self.telemetry = RequestTelemetry("id", ShimMetrics(self.registry).of("m"), self.span)
        self.telemetry.submitted(num_choices)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"vllm:{name}", {"model_name": "m", "engine": "0", **labels})

    def finished(self) -> dict[str, float | None]:
        found = {
            reason: self.value("request_success_total", finished_reason=reason)
            for reason in ("stop", "length", "abort", "error")
        }
        return {reason: value for reason, value in found.items() if value}

    def end(self, index: int, reason: Any, code: str = "") -> None:
        self.telemetry.ended(index, text_pb2.TextTerminal(reason=reason, error=pb.Error(code=code)))


def test_open_choices_count_as_abort_on_close() -> None:
    request = Request(2)
    request.telemetry.accepted([0, 1], None, 5, 0)
    request.telemetry.tokens(0, 3)
    request.end(0, STOP)
    request.telemetry.close()
    assert request.finished() == {"stop": 1, "abort": 1}
    assert request.span.attributes["gen_ai.response.finish_reasons"] == ["stop", "abort"]
    assert request.span.ends == [""]


def test_a_refused_request_counts_nothing() -> None:
    request = Request(2)
    request.end(0, ERROR, "INVALID_ARGUMENT")
    request.telemetry.close()
    assert request.finished() == {}
    assert request.value("e2e_request_latency_seconds_count") == 0
    assert request.span.ends == ["INVALID_ARGUMENT"]


def test_accepted_prompts_count_though_another_is_refused() -> None:
    """Of three prompts, 0 and 1 are accepted before 2 is refused."""
    request = Request(3)
    request.telemetry.accepted([0], None, 4, 0)
    request.telemetry.accepted([1], None, 4, 0)
    request.telemetry.tokens(0, 2)
    request.end(2, ERROR, "INVALID_ARGUMENT")
    request.telemetry.close()
    assert request.finished() == {"abort": 2}
    assert request.value("request_generation_tokens_count") == request.value("request_params_n_count") == 2
    assert request.span.attributes["gen_ai.response.finish_reasons"] == ["abort", "abort"]


def test_a_failure_after_the_start_is_an_error() -> None:
    request = Request(1)
    request.telemetry.accepted([0], 7, 4, 0)
    request.end(0, ERROR, "INTERNAL")
    request.telemetry.close()
    assert request.finished() == {"error": 1}
    assert request.span.ends == ["error"]
    assert request.value("request_params_max_tokens_sum") == 7


def test_closing_twice_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    request = Request(1)
    with caplog.at_level("INFO"):
        request.telemetry.close()
        request.telemetry.close()
    assert request.finished() == {"abort": 1}
    assert len(caplog.records) == 1


def test_tokens_of_one_message_share_the_time_since_the_last() -> None:
    request = Request(1)
    request.telemetry.accepted([0], None, 4, 0)
    for count in (2, 1, 4):
        request.telemetry.tokens(0, count)
    assert request.value("inter_token_latency_seconds_count") == 6
    assert request.value("time_to_first_token_seconds_count") == 1
    assert request.value("generation_tokens_total") == 7
