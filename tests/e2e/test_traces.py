"""One trace per request through all four processes, as an OTLP collector receives it."""

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from tests.addresses import at, open_server
from tests.e2e.api import CHAT, INPUT, TEXT, error_of
from tests.e2e.collector import Collector, Span
from tests.e2e.harness import Server, run_tandem, wait_for

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = "00-1af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00"
EXPORT_SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}  # milliseconds


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(collector: Collector) -> Iterator[Server]:
    with Server(f"--otlp-traces-endpoint={collector.endpoint}", "--max-num-batched-tokens=128", env=EXPORT_SOON) as one:
        yield one


def trace_of(collector: Collector, trace_id: str, num_spans: int) -> list[Span]:
    """Waits for `count` spans of a trace. Returns them ordered by start."""

    def found() -> list[Span]:
        spans = [span for span in collector.spans if span.trace_id == trace_id]
        return spans if len(spans) >= num_spans else []

    return sorted(wait_for(found, f"{num_spans} spans"), key=lambda span: span.start)


def caller(number: int) -> tuple[str, str]:
    """Returns a client's traceparent and its trace id."""
    trace_id = f"{0xABC00000 + number:032x}"
    return f"00-{trace_id}-b7ad6b7169203331-01", trace_id


def by_name(spans: list[Span]) -> dict[str, Span]:
    assert len({span.name for span in spans}) == len(spans), [span.name for span in spans]
    return {span.name: span for span in spans}


def test_a_request_is_one_trace_through_four_processes(collector: Collector, traced: Server) -> None:
    traceparent, trace_id = caller(1)
    answer = traced.post(CHAT, {**INPUT[CHAT], "max_tokens": 12}, headers={"traceparent": traceparent}).json()
    spans = by_name(trace_of(collector, trace_id, 8))
    parents = {span.name: next((p.name for p in spans.values() if p.span_id == span.parent_id), span.parent_id)
               for span in spans.values()}  # fmt: skip
    assert parents == {
        "chat demo": "b7ad6b7169203331",
        "tokenizer.request": "chat demo",
        "tokenizer.encode": "tokenizer.request",
        "engine.request": "tokenizer.request",
        "engine.queue": "engine.request",
        "engine.prefill": "engine.request",
        "engine.decode": "engine.request",
        "worker.prefill": "engine.request",
    }
    instances = {span.name.split(".")[0]: span.instance for span in spans.values()}
    assert {name: instance.split("-")[0] for name, instance in instances.items()} == {
        "chat demo": "shim",
        "tokenizer": "tokenizer",
        "engine": "engine",
        "worker": "worker",
    }
    usage = answer["usage"]
    attributes = spans["chat demo"].attributes
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "tandem"
    assert attributes["gen_ai.request.model"] == "demo"
    assert attributes["gen_ai.response.id"] == answer["id"]
    assert attributes["gen_ai.response.finish_reasons"] == [answer["choices"][0]["finish_reason"]]
    assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 0
    for span in spans.values():
        assert span.start <= span.end
        assert spans["chat demo"].start <= span.start and not span.failed
    queue, prefill, decode = (spans[f"engine.{stage}"] for stage in ("queue", "prefill", "decode"))
    assert queue.end == prefill.start and prefill.end == decode.start
    assert prefill.start <= spans["worker.prefill"].start <= spans["worker.prefill"].end <= prefill.end


def test_a_long_prompt_shows_its_chunks(collector: Collector, traced: Server) -> None:
    traceparent, trace_id = caller(2)
    body = {"prompt": [7, 8, 9] * 100, "max_tokens": 2, "ignore_eos": True}
    assert traced.post(TEXT, body, headers={"traceparent": traceparent}).status_code == 200
    spans = trace_of(collector, trace_id, 10)
    chunks = [span for span in spans if span.name == "worker.prefill"]
    assert [chunk.attributes["tandem.num_new_tokens"] for chunk in chunks] == [128, 128, 44]
    assert [chunk.attributes["tandem.num_computed_tokens"] for chunk in chunks] == [0, 128, 256]
    assert spans[0].name == "text_completion demo"


def test_each_choice_has_its_spans(collector: Collector, traced: Server) -> None:
    traceparent, trace_id = caller(3)
    body = {**INPUT[CHAT], "max_tokens": 4, "n": 3, "ignore_eos": True, "temperature": 1}
    assert traced.post(CHAT, body, headers={"traceparent": traceparent}).status_code == 200
    names = Counter(span.name for span in trace_of(collector, trace_id, 3 + 3 * 5))
    assert names["engine.request"] == names["engine.decode"] == names["worker.prefill"] == 3
    assert names["chat demo"] == names["tokenizer.request"] == 1


def test_a_disconnect_ends_the_trace(collector: Collector, traced: Server) -> None:
    traceparent, trace_id = caller(4)
    body = {**INPUT[CHAT], "ignore_eos": True, "stream": True}
    with httpx.stream(
        "POST", traced.url + CHAT, json=body, headers={"traceparent": traceparent}, trust_env=False
    ) as response:
        lines = response.iter_lines()
        next(lines)
        wait_for(lambda: traced.stats().num_running == 1, "it runs")
    spans = by_name(trace_of(collector, trace_id, 8))
    assert spans["chat demo"].attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert spans["engine.request"].attributes["tandem.finish_reason"] == "abort"


def test_a_refused_request_fails_its_trace(collector: Collector, traced: Server) -> None:
    traceparent, trace_id = caller(5)
    error_of(traced.post(TEXT, {"prompt": [10**6]}, headers={"traceparent": traceparent}), 400)
    spans = by_name(trace_of(collector, trace_id, 3))
    assert spans["text_completion demo"].failed and spans["tokenizer.request"].parent_id


def test_a_request_that_the_shim_itself_refuses_is_traced(collector: Collector, traced: Server) -> None:
    traceparent, trace_id = caller(9)
    error_of(traced.post(CHAT, {**INPUT[CHAT], "n": 0}, headers={"traceparent": traceparent}), 400)
    (span,) = trace_of(collector, trace_id, 1)
    assert (span.name, span.failed) == ("chat", True)
    assert span.attributes["error.type"] == "INVALID_ARGUMENT"


def test_a_request_of_an_unsampled_trace_sends_no_spans(collector: Collector, traced: Server) -> None:
    for traceparent in (NOT_SAMPLED, "nonsense"):
        body = {**INPUT[CHAT], "max_tokens": 1}
        assert traced.post(CHAT, body, headers={"traceparent": traceparent}).status_code == 200
    wait_for(lambda: sum(span.name == "chat demo" for span in collector.spans) >= 1, "the request with nonsense")
    assert not [span for span in collector.spans if span.trace_id == NOT_SAMPLED.split("-")[1]]


def test_the_endpoint_comes_from_the_environment(collector: Collector) -> None:
    env = EXPORT_SOON | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
    traceparent, trace_id = caller(6)
    with Server(env=env) as server:
        server.post(CHAT, {**INPUT[CHAT], "max_tokens": 2}, headers={"traceparent": traceparent})
        trace_of(collector, trace_id, 8)
    assert "Traceback" not in server.log


def test_otlp_traces_endpoint(collector: Collector) -> None:
    """Remaining spans are sent at the exit."""
    traceparent, trace_id = caller(7)
    with Server(f"--otlp-traces-endpoint={collector.endpoint}") as server:
        server.post(CHAT, {**INPUT[CHAT], "max_tokens": 2}, headers={"traceparent": traceparent})
    trace_of(collector, trace_id, 8)


def test_another_protocol_is_refused() -> None:
    env = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    ended = run_tandem("shim", "--port=0", "--otlp-traces-endpoint=http://127.0.0.1:1", env=env)
    assert ended.returncode == 1
    assert "over OTLP/gRPC only, but the environment sets the protocol http/protobuf" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_certificate_that_cannot_be_read_is_one_line() -> None:
    env = {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere/ca.pem"}
    ended = run_tandem("shim", "--port=0", "--otlp-traces-endpoint=https://127.0.0.1:1", env=env)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "tandem shim: error: OTEL_EXPORTER_OTLP_CERTIFICATE: /nowhere/ca.pem cannot be read: No such file or directory"
    ]


def test_a_collector_that_hangs_delays_no_exit() -> None:
    with open_server(backlog=0) as silent:
        endpoint = f"http://{at(silent.getsockname()[1])}"
        with Server(f"--otlp-traces-endpoint={endpoint}", env=EXPORT_SOON) as server:
            for _ in range(3):
                assert server.post(CHAT, {**INPUT[CHAT], "max_tokens": 2}).status_code == 200
            began = time.monotonic()
        assert time.monotonic() - began < 10, "the roles end one after the other"
    assert "killed" not in server.log and "Traceback" not in server.log
    assert server.process.returncode == 0


def test_a_request_that_the_exit_interrupts_leaves_a_complete_trace(collector: Collector) -> None:
    traceparent, trace_id = caller(8)
    body = {**INPUT[CHAT], "ignore_eos": True, "stream": True}
    with Server(f"--otlp-traces-endpoint={collector.endpoint}", env=EXPORT_SOON) as server:
        request = httpx.stream(
            "POST", server.url + CHAT, json=body, headers={"traceparent": traceparent}, trust_env=False
        )
        with contextlib.suppress(httpx.HTTPError), request as response:
            lines = response.iter_lines()
            next(lines)
            wait_for(lambda: server.stats().num_running == 1, "it runs")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(10) == 0
    names = {span.name for span in trace_of(collector, trace_id, 5)}
    assert {"chat demo", "tokenizer.request", "engine.request"} <= names
    assert "Traceback" not in server.log and "ignoring Span" not in server.log
