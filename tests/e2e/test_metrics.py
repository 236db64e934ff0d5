"""After a load with aborts and errors, /metrics equals what the clients counted."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.api import CHAT, MODEL, TEXT, Json, error_of, fresh
from tests.e2e.harness import Server, wait_for

LABELS = {"model_name": MODEL, "engine": "0"}


class Metrics:
    """One scrape. Returns values by name and labels, summed over the labels that are not given."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        self.names = {sample.name for sample in self._samples}

    def __call__(self, name: str, **labels: str) -> float:
        found = [
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= dict(sample.labels).items()
        ]
        assert found, (name, labels)
        return sum(found)

    def vllm(self, name: str, **labels: str) -> float:
        return self(f"vllm:{name}", **LABELS, **labels)


def scrape(server: Server) -> Metrics:
    response = server.metrics()
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return Metrics(response.text)


@pytest.fixture(scope="module")
def server(own_server: Server) -> Server:
    return own_server


@pytest.fixture(scope="module")
def load(server: Server) -> "Load":
    load = Load(server)
    asyncio.run(load.run())
    wait_for(lambda: server.stats().num_running + server.stats().num_waiting == 0, "all is over")
    return load


@dataclass
class Load:
    """Sends whole, streamed, refused and aborted requests, and counts what the clients sent and received."""

    server: Server
    statuses: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    prompt_tokens: list[int] = field(default_factory=list)  # per prompt
    output_tokens: list[int] = field(default_factory=list)  # per finished choice
    cached_tokens: int = 0
    ns: list[int] = field(default_factory=list)
    aborted: int = 0  # choices that a client aborted

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self.server.url, timeout=120, trust_env=False) as client:
            self._client = client
            whole = [
                (CHAT, {"messages": [{"role": "user", "content": f"Say {i}"}], "max_tokens": 5 + i, "n": 1 + i % 3})
                for i in range(9)
            ]
            whole += [(TEXT, {"prompt": [5] * (20 + i), "max_tokens": 7, "stop": ["e"]}) for i in range(12)]
            whole += [(TEXT, {"prompt": [[9, 8] * 30, [9, 8] * 30], "max_tokens": 3, "cache_salt": "one"})] * 2
            bad = [(TEXT, {"prompt": ""}), (TEXT, {"prompt": [10**6]}), (CHAT, {"messages": [], "n": 2})] * 3
            hung_up = [(TEXT, {"prompt": [3] * (10 + i), "n": 1 + i % 2}) for i in range(6)]
            await asyncio.gather(
                *(self._whole(path, body) for path, body in whole[::2]),
                *(self._stream(path, body) for path, body in whole[1::2]),
                *(self._refused(path, body) for path, body in bad),
                *(self._given_up(path, body) for path, body in hung_up),
            )

    async def _whole(self, path: str, body: Json) -> None:
        response = await self._client.post(path, json={**fresh({}), **body, "temperature": 1})
        answer = response.json()
        self._saw(body, response.status_code, answer["usage"], [one["finish_reason"] for one in answer["choices"]])

    async def _stream(self, path: str, body: Json) -> None:
        more = {"temperature": 1, "stream": True, "stream_options": {"include_usage": True}}
        async with self._client.stream("POST", path, json={**fresh({}), **body, **more}) as response:
            lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
        *chunks, last = [json.loads(line) for line in lines[:-1]]
        found = [one["finish_reason"] for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
        self._saw(body, response.status_code, last["usage"], found)

    def _saw(self, body: Json, status: int, usage: Json, reasons: list[str]) -> None:
        num_prompts = 2 if isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], list) else 1
        self.statuses[status] += 1
        self.reasons.update(reasons)
        self.prompt_tokens += [usage["prompt_tokens"] // num_prompts] * num_prompts
        self.ns += [body.get("n", 1)] * num_prompts
        self.output_tokens.append(usage["completion_tokens"])
        self.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]

    async def _refused(self, path: str, body: Json) -> None:
        response = await self._client.post(path, json=body)
        error_of(response, 400)
        self.statuses[400] += 1

    async def _given_up(self, path: str, body: Json) -> None:
        more = {**fresh({}), "stream": True, "ignore_eos": True, "max_tokens": 4000, "return_token_ids": True}
        started: set[int] = set()
        async with self._client.stream("POST", path, json={**body, **more}) as response:
            lines = response.aiter_lines()
            while len(started) < body["n"]:
                line = await anext(lines)
                if line:
                    started |= {one["index"] for one in json.loads(line.removeprefix("data: "))["choices"]}
        self.statuses[200] += 1
        self.aborted += body["n"]
        self.prompt_tokens.append(len(body["prompt"]))
        self.ns.append(body["n"])


@pytest.fixture(scope="module")
def metrics(load: Load, server: Server) -> Iterator[Metrics]:
    wanted = load.aborted + sum(load.reasons.values())

    def all_ended() -> Metrics | None:
        found = scrape(server)
        return found if found.vllm("request_success_total") == wanted else None

    yield wait_for(all_ended, "every choice has ended")


def test_every_choice_ended_once_and_as_its_client_saw(load: Load, metrics: Metrics) -> None:
    assert load.reasons["stop"] and load.reasons["length"] and load.aborted
    expected = {**load.reasons, "abort": load.aborted, "error": 0}
    assert {reason: metrics.vllm("request_success_total", finished_reason=reason) for reason in expected} == expected
    num_choices = sum(expected.values())
    assert metrics.vllm("e2e_request_latency_seconds_count") == num_choices
    assert metrics.vllm("request_generation_tokens_count") == num_choices
    assert metrics.vllm("time_to_first_token_seconds_count") == num_choices


def test_tokens_are_counted_as_usage_counts_them(load: Load, metrics: Metrics) -> None:
    assert metrics.vllm("prompt_tokens_total") == sum(load.prompt_tokens)
    assert metrics.vllm("request_prompt_tokens_sum") == sum(load.prompt_tokens)
    assert metrics.vllm("request_prompt_tokens_count") == len(load.prompt_tokens)
    assert metrics.vllm("prompt_tokens_cached_total") == load.cached_tokens > 0
    assert metrics.vllm("request_params_n_sum") == sum(load.ns)
    generated = metrics.vllm("generation_tokens_total")
    assert generated == metrics.vllm("request_generation_tokens_sum")
    # Aborted requests had at least one token of each choice.
    assert generated >= sum(load.output_tokens) + load.aborted
    num_choices = metrics.vllm("request_generation_tokens_count")
    assert metrics.vllm("inter_token_latency_seconds_count") == generated - num_choices


def test_histograms_hold_every_prompt_in_its_bucket(load: Load, metrics: Metrics) -> None:
    for limit in (10, 20, 50, 100):
        expected = sum(tokens <= limit for tokens in load.prompt_tokens)
        assert metrics.vllm("request_prompt_tokens_bucket", le=str(float(limit))) == expected


def test_times_fit_together(load: Load, metrics: Metrics) -> None:
    first, whole = (
        metrics.vllm(f"{name}_sum") for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds")
    )
    assert 0 < first < whole
    gaps = metrics.vllm("inter_token_latency_seconds_sum")
    assert first + gaps <= whole + 1e-6
    for stage in ("queue", "prefill", "decode", "inference"):
        assert 0 < metrics.vllm(f"request_{stage}_time_seconds_sum") < whole


def test_the_engine_is_idle_again(load: Load, metrics: Metrics, server: Server) -> None:
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert metrics.vllm(name) == 0
    for reason in ("capacity", "deferred"):
        assert metrics.vllm("num_requests_waiting_by_reason", reason=reason) == 0
    stats = server.stats()
    assert metrics.vllm("prefix_cache_queries_total") == stats.prefix_cache_queries
    assert metrics.vllm("prefix_cache_hits_total") == stats.prefix_cache_hits > 0
    assert metrics.vllm("num_preemptions_total") == stats.num_preemptions
    assert metrics.vllm("iteration_tokens_total_count") == stats.num_steps
    num_answers = metrics.vllm("request_prefill_time_seconds_count")  # each has a first token
    assert metrics.vllm("iteration_tokens_total_sum") == stats.num_scheduled_tokens + num_answers
    assert metrics("tandem:worker_steps_total") == stats.num_steps
    kernels, runnable = (metrics(f"tandem:worker_{name}_seconds_total") for name in ("kernel", "runnable"))
    assert 0 < kernels < runnable, "the accelerator's wait share"
    assert metrics("vllm:cache_config_info", num_gpu_blocks=str(stats.num_blocks), block_size="16") == 1
    for stage in ("queue", "prefill", "decode", "inference"):
        assert metrics.vllm(f"request_{stage}_time_seconds_count") == metrics.vllm("e2e_request_latency_seconds_count")


def test_http_answers_are_counted_by_status(load: Load, metrics: Metrics) -> None:
    for status, count in load.statuses.items():
        found = [
            metrics("tandem:http_requests_total", path=path, status=str(status), method="POST") for path in (CHAT, TEXT)
        ]
        assert sum(found) == count


def test_an_unknown_path_adds_no_series(server: Server) -> None:
    for path in ("/v1/secret", "/v1/models/a", "/v1/models/b"):
        assert server.get(path).status_code == 404
    assert httpx.patch(server.url + "/coffee", trust_env=False).status_code == 404
    found = scrape(server)
    assert found("tandem:http_requests_total", path="other", status="404", method="GET") == 3
    assert found("tandem:http_requests_total", path="other", method="other") == 1


def test_each_process_has_its_own_port(server: Server) -> None:
    found = [re.search(r"\[(\w+)\] metrics on (http://\S+)", line) for line in server.lines]
    ports = {match.group(1): match.group(2) for match in found if match is not None}
    assert ports.keys() == {"worker", "engine", "tokenizer"}
    own = {name: Metrics(httpx.get(url, trust_env=False).text) for name, url in ports.items()}
    assert own["engine"].vllm("num_requests_running") == 0
    assert own["worker"]("tandem:worker_steps_total") > 0
    assert own["tokenizer"]("tandem:tokenizer_encode_seconds_count") > 0
    for url in ports.values():
        assert httpx.get(url.replace("/metrics", "/health"), trust_env=False).status_code == 200
        assert httpx.get(url.replace("/metrics", "/else"), trust_env=False).status_code == 404
    merged = scrape(server)
    for name in ("shim", "worker", "engine", "tokenizer"):
        assert merged("tandem:process_up", process=name) == 1
        assert merged("process_cpu_seconds_total", process=name) > 0


def test_all_series_are_there_from_the_start() -> None:
    """An absent series cannot be distinguished from a failed scrape."""
    with Server() as server:
        before = scrape(server)
        server.complete("Hi", max_tokens=2)
        assert {name for name in scrape(server).names if name.startswith("vllm:")} == {
            name for name in before.names if name.startswith("vllm:")
        }
        assert before("vllm:request_success_total", finished_reason="stop", model_name="demo") == 0


def names_of_vllm() -> set[str]:
    return {
        "num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc",
        "cache_config_info", "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total",
        "prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total", "request_success_total",
        "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
        "request_time_per_output_token_seconds_bucket", "e2e_request_latency_seconds_bucket",
        "request_queue_time_seconds_bucket", "request_inference_time_seconds_bucket",
        "request_prefill_time_seconds_bucket", "request_decode_time_seconds_bucket", "request_prompt_tokens_bucket",
        "request_generation_tokens_bucket", "iteration_tokens_total_bucket", "request_params_n_bucket",
        "request_params_max_tokens_bucket", "request_num_preemptions_bucket",
        "request_prefill_kv_computed_tokens_bucket",
    }  # fmt: skip


def test_names_are_those_of_vllm(metrics: Metrics) -> None:
    assert {f"vllm:{name}" for name in names_of_vllm()} <= metrics.names
