"""The gateway API of a real server, against REST on the same server: the same answers, errors, limits, resumes."""

import hashlib
import io
import json
import os
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated import common_pb2 as smg

from tests.checkpoints import make_qwen3
from tests.e2e.api import LONG, MAX_LEN, MODEL, Json, assert_idle
from tests.e2e.gateway_client import GatewayClient, folded, over_rest, refusal
from tests.e2e.harness import ALL_READY, Server, pid_of, wait_for

CODE = grpc.StatusCode
FREE_MS = 100.0  # from an abort to free blocks
TEXT, IDS = "Which way to Köln?", [7, 300, 41, 8, 900, 12, 77, 5, 1000, 44]
LENGTH: Json = {"max_tokens": 24, "ignore_eos": True}
SEEDED: Json = {**LENGTH, "temperature": 1, "seed": 7}
DEFAULTS: Json = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
# Fields with the same names in REST and in vLLM's protocol.
CASES: dict[str, Json] = {
    "greedy": {**LENGTH, "temperature": 0},
    "seeded": SEEDED,
    "n": {**SEEDED, "n": 2},
    "logprobs": {**SEEDED, "logprobs": 3},
    "logprobs of the answer": {**SEEDED, "logprobs": 0},
    "penalties": {**SEEDED, "presence_penalty": 1.5, "frequency_penalty": 1.25, "repetition_penalty": 1.5},
    "bias": {**SEEDED, "logit_bias": {5: 50.0, 300: 50.0}, "n": 2},
    "truncation": {**SEEDED, "top_p": 0.5, "top_k": 7, "min_p": 0.05, "temperature": 1.5},
    "stop id": {**SEEDED, "logit_bias": {300: 40.0}, "stop_token_ids": [300], "min_tokens": 5},
    "shortened prompt": {**SEEDED, "truncate_prompt_tokens": 4},
    "the model's end": {"temperature": 0, "max_tokens": 200},
}
REST_DEFAULTS: Json = {"skip_special_tokens": True, "spaces_between_special_tokens": True}
both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = make_qwen3(tmp_path_factory.mktemp("model"), max_position_embeddings=MAX_LEN)
    with Server(str(path), "--dtype=float32", f"--served-model-name={MODEL}", "--grpc-port=0") as running:
        wait_for(lambda: ALL_READY in running.log, "the launcher knows that all are ready")
        yield running


@pytest.fixture
def gateway(server: Server) -> Iterator[GatewayClient]:
    with GatewayClient(server) as client:
        yield client


def without_cache(answer: Json) -> Json:
    return {name: value for name, value in answer.items() if name != "cached_tokens"}


@both
@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_that_of_rest(server: Server, gateway: GatewayClient, name: str, stream: bool) -> None:
    for prompt in (TEXT, IDS):
        expected = over_rest(server, prompt, **CASES[name])
        assert_close(gateway.ask(prompt, stream=stream, **REST_DEFAULTS, **CASES[name]), expected)
    if name == "stop id":
        assert [one["stop_reason"] for one in expected["choices"]] == [300]


def assert_close(found: Json, expected: Json) -> None:
    """The protocol's logprobs are float32; those of REST are the same numbers, written out."""
    assert len(found["choices"]) == len(expected["choices"])
    for mine, theirs in zip(found["choices"], expected["choices"], strict=True):
        for name in ("token_ids", "finish_reason", "stop_reason"):
            assert mine[name] == theirs[name], name
        assert (mine["logprobs"] is None) == (theirs["logprobs"] is None)
        for one, other in zip(mine["logprobs"] or [], theirs["logprobs"] or [], strict=True):
            assert one["token"] == other["token"] and one["logprob"] == pytest.approx(other["logprob"], rel=1e-6)
            assert one["top"] == pytest.approx(other["top"], rel=1e-6)
    for name in ("prompt_tokens", "completion_tokens"):
        assert found[name] == expected[name], name


@both
def test_stop_strings_are_those_of_rest(server: Server, gateway: GatewayClient, stream: bool) -> None:
    text = server.complete(TEXT, **SEEDED)["text"]
    stop = text[len(text) // 2 :][:2]
    for more in ({}, {"include_stop_str_in_output": True}, {"n": 2}):
        fields = {**SEEDED, "stop": [stop, "no such text"], **more}
        expected = over_rest(server, TEXT, **fields)
        assert expected["choices"][0]["stop_reason"] == stop
        assert_close(gateway.ask(TEXT, stream=stream, **REST_DEFAULTS, **fields), expected)


def test_cached_tokens_are_counted(gateway: GatewayClient) -> None:
    prompt = list(range(100, 150))
    asked = [gateway.ask(prompt, stream=False, **LENGTH)["cached_tokens"] for _ in range(2)]
    assert asked == [0, 48]
    assert gateway.stub.FlushCache(smg.FlushCacheRequest(), timeout=30).success
    assert gateway.ask(prompt, stream=False, **LENGTH)["cached_tokens"] == 0


def test_what_is_left_out_has_the_defaults_of_rest(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A field that a gateway sends has its value; one with presence, or with an impossible zero, may be left out."""
    path = make_qwen3(tmp_path_factory.mktemp("model"))
    overrides = f"--override-generation-config={json.dumps(DEFAULTS)}"
    with Server(str(path), "--dtype=float32", overrides, "--grpc-port=0") as server, GatewayClient(server) as gateway:
        told = json.loads(gateway.stub.GetModelInfo(vllm.GetModelInfoRequest()).default_sampling_params_json)
        assert told == DEFAULTS
        filled_in = {"top_k": told["top_k"], "min_p": told["min_p"]}  # as gateways do
        for more in ({}, {"temperature": 1.3}, {"top_p": 0.3}, {"repetition_penalty": 1.9}):
            expected = over_rest(server, IDS, max_tokens=24, seed=3, **more)
            assert_close(gateway.ask(IDS, stream=False, max_tokens=24, seed=3, **filled_in, **more), expected)
        whole = gateway.ask(IDS, stream=False, seed=3, ignore_eos=True, **filled_in)
        assert whole["completion_tokens"] == 512 - len(IDS), "as many tokens as the context leaves"
        without = over_rest(server, IDS, max_tokens=24, seed=3, top_k=0, min_p=0)
        assert_close(gateway.ask(IDS, stream=False, max_tokens=24, seed=3), without)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"json_schema": '{"not": {"type": "string"}}'}, 'json_schema: /: the keyword "not" is not supported'),
        ({"prompt_logprobs": 1}, "prompt_logprobs is not supported by this server"),
        ({"n": 10**6}, "n: Input should be less than or equal to"),
        ({"temperature": 3}, "temperature: Input should be less than or equal to 2"),
        ({"logit_bias": {10**6: 1}}, "logit_bias"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens is 6, but must be at most max_tokens, 5"),
        ({"max_tokens": 10**6}, "max_tokens"),
    ],
)
def test_errors_are_those_of_rest(gateway: GatewayClient, fields: Json, message: str) -> None:
    error = refusal(gateway.start(IDS, stream=True, **fields))
    assert error.code() == CODE.INVALID_ARGUMENT and message in error.details()
    field = message.split()[0].rstrip(":").encode()
    assert field in dict(error.trailing_metadata())["grpc-status-details-bin"]


def test_prompts_that_cannot_be_answered(gateway: GatewayClient) -> None:
    for prompt in ([], [10**6], [5] * MAX_LEN):
        assert refusal(gateway.start(prompt, stream=False)).code() == CODE.INVALID_ARGUMENT


def test_what_is_not_there_is_named(gateway: GatewayClient) -> None:
    stub = gateway.stub
    calls: list[Callable[[], Any]] = [
        lambda: stub.Embed(vllm.EmbedRequest()),
        lambda: stub.StartProfile(smg.StartProfileRequest()),
        lambda: stub.StopProfile(smg.StopProfileRequest()),
        lambda: list(stub.SubscribeKvEvents(smg.SubscribeKvEventsRequest())),
    ]
    for name, call in zip(("Embed", "StartProfile", "StopProfile", "SubscribeKvEvents"), calls, strict=True):
        error = refusal(call)
        assert (error.code(), error.details()) == (CODE.UNIMPLEMENTED, f"{name} is not supported by this server")


def milliseconds_until_free(server: Server, end: Callable[[], Any]) -> float:
    """Returns the time from `end` until all blocks of the engine are free."""
    began = time.perf_counter()
    end()
    wait_for(lambda: (stats := server.stats()).num_free_blocks == stats.num_blocks, "all blocks are free", 5)
    return (time.perf_counter() - began) * 1000


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("way", ["abort", "cancel"])
def test_an_abort_frees_the_blocks_at_once(server: Server, gateway: GatewayClient, way: str, stream: bool) -> None:
    server.stats()  # the first one imports
    times, counts = [], []
    for number in range(3):
        before = server.stats()
        call = gateway.start(IDS, stream=stream, request_id=f"r{number}", max_tokens=LONG, n=2, ignore_eos=True)
        first = before.num_output_tokens
        wait_for(lambda first=first: server.stats().num_output_tokens > first + 40, "it runs")
        if way == "abort":
            request = vllm.AbortRequest(request_ids=[f"r{number}", "unknown"])
            times.append(milliseconds_until_free(server, lambda request=request: gateway.stub.Abort(request)))
            answer = folded(call, stream=stream)
            assert [one["finish_reason"] for one in answer["choices"]] == ["abort", "abort"]
            counts.append(answer["completion_tokens"])
            assert counts[-1] == sum(len(one["token_ids"]) for one in answer["choices"])
        else:
            times.append(milliseconds_until_free(server, call.cancel))
        assert_idle(server, before.num_steps)
    assert min(times) < FREE_MS, times
    assert not counts or 0 < max(counts) < LONG, counts  # on a busy machine an abort may overtake the first tokens


def test_an_expired_call_frees_its_blocks(server: Server, gateway: GatewayClient) -> None:
    before = server.stats().num_steps
    request = vllm.GenerateRequest(
        tokenized=vllm.TokenizedInput(input_ids=IDS),
        stream=True,
        sampling_params=vllm.SamplingParams(max_tokens=LONG, ignore_eos=True),
    )
    assert refusal(gateway.stub.Generate(request, timeout=0.5)).code() == CODE.DEADLINE_EXCEEDED
    assert_idle(server, before)


def test_loads_show_what_runs(server: Server, gateway: GatewayClient) -> None:
    def load() -> vllm.SchedulerLoad:
        response = gateway.stub.GetLoads(vllm.GetLoadsRequest(include=["core"]), timeout=30)
        (found,) = response.loads
        assert response.dp_rank_count == 1
        return found

    idle = load()
    assert (idle.num_running_reqs, idle.num_used_tokens, idle.token_usage) == (0, 0, 0)
    stats = server.stats()
    assert idle.max_total_num_tokens == stats.num_blocks * 16 and idle.max_running_requests == 128
    call = gateway.start(IDS, stream=True, max_tokens=LONG, n=3, ignore_eos=True)
    busy = wait_for(lambda: (now := load()).num_running_reqs == 3 and now.gen_throughput > 0 and now, "a throughput")
    assert busy.num_total_reqs == 3 and busy.num_used_tokens > 0
    assert busy.token_usage == pytest.approx(busy.num_used_tokens / busy.max_total_num_tokens)
    call.cancel()
    wait_for(lambda: load().num_used_tokens == 0, "it has ended")


def test_model_and_server(server: Server, gateway: GatewayClient) -> None:
    model = gateway.stub.GetModelInfo(vllm.GetModelInfoRequest(), timeout=30)
    (card,) = server.get("/v1/models").json()["data"]
    assert (model.served_model_name, model.max_context_length) == (card["id"], card["max_model_len"])
    assert model.tokenizer_path == model.model_path == card["root"]
    assert (model.model_type, list(model.architectures)) == ("qwen3", ["Qwen3ForCausalLM"])
    assert (list(model.eos_token_ids), model.vocab_size, model.is_generation) == ([2], 1024, True)
    info = gateway.stub.GetServerInfo(vllm.GetServerInfoRequest(), timeout=30)
    assert (info.server_type, info.block_size, info.max_num_seqs) == ("vllm-grpc", 16, 128)
    assert info.active_requests == 0 and info.uptime_seconds > 0


def test_the_tokenizers_files(gateway: GatewayClient) -> None:
    pieces = list(gateway.stub.GetTokenizer(smg.GetTokenizerRequest(), timeout=30))
    archive = b"".join(piece.data for piece in pieces)
    assert [bool(piece.sha256) for piece in pieces] == [*[False] * (len(pieces) - 1), True]
    assert hashlib.sha256(archive).hexdigest() == pieces[-1].sha256
    names = zipfile.ZipFile(io.BytesIO(archive)).namelist()
    assert "tokenizer.json" in names
    assert not [name for name in names if "safetensors" in name]


@pytest.mark.parametrize(
    "role", ["worker", *(pytest.param(role, marks=pytest.mark.long) for role in ("engine", "tokenizer"))]
)
def test_a_killed_process_loses_no_token_and_the_server_stays_healthy(
    server: Server, gateway: GatewayClient, role: str
) -> None:
    wait_for(lambda: server.get("/health").status_code == 200, "the tokenizer is there again", 30)
    fields = {**SEEDED, "max_tokens": 600, "n": 2, "logprobs": 1}
    expected = gateway.ask(IDS, stream=False, **fields)
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(gateway.ask, IDS, stream=False, **fields)
        streamed = pool.submit(gateway.ask, IDS, stream=True, **fields)
        wait_for(lambda: server.stats().num_running == 4, "all run")
        os.kill(pid_of(server, role), signal.SIGKILL)
        while not (whole.done() and streamed.done()):
            assert gateway.healthy(), "requests are being resumed"
            wait([whole, streamed], 0.02)
        assert without_cache(whole.result()) == without_cache(streamed.result()) == without_cache(expected)
