"""Generate of tokenizer and engine gives the answers of the HTTP API, and ends as gRPC calls do."""

import asyncio
import os
import signal
from typing import Any

import grpc
import pytest

from services.rpc.columns import pack_f32, pack_u32, unpack_f32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.transport import open_channel
from tests.e2e.api import Json, hf_tokenizer
from tests.e2e.harness import Server, wait_for
from tests.e2e.programs import answer_of, chat, details_of, error_of, field_of, generate, run

PROMPT = "Which way to the sea?"
FREE_SECONDS = 0.1  # from the end of a call to free blocks
NO_EOS = {"max_tokens": 24, "ignore_eos": True}
CASES: dict[str, tuple[Json, Json]] = {  # name: (fields over HTTP, fields of the requests)
    "greedy": ({"temperature": 0}, {"sampling": {"temperature": 0}}),
    "seeded": ({"temperature": 1, "seed": 7}, {"sampling": {"temperature": 1}, "seed": 7}),
    "n": ({"temperature": 1, "seed": 3, "n": 2}, {"sampling": {"temperature": 1}, "seed": 3, "n": 2}),
    "logprobs": ({"temperature": 0, "logprobs": 3}, {"sampling": {"temperature": 0, "logprobs": 3}}),
    "penalties": (
        {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 1, "repetition_penalty": 1.1},
        {
            "sampling": {
                "temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 1, "repetition_penalty": 1.1,
            }
        },
    ),
    "bias": (
        {"temperature": 0, "logit_bias": {"40": 100}},
        {
            "sampling": {
                "temperature": 0, "logit_bias_token_ids": pack_u32([40]), "logit_biases": pack_f32([100.0]),
            }
        },
    ),
}  # fmt: skip


def rest(server: Server, path: str = "/v1/completions", **body: Any) -> Json:
    """Returns the answer over HTTP in the form of tests.e2e.programs.fold."""
    response = server.post(path, {"return_token_ids": True, **body})
    assert response.status_code == 200, response.text
    answer = response.json()
    choices = {}
    for choice in answer["choices"]:
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        choices[choice["index"]] = {
            "token_ids": choice["token_ids"], "text": text,
            "finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"],
        }  # fmt: skip
    return {"choices": choices, "usage": answer["usage"], "logprobs": [one["logprobs"] for one in answer["choices"]]}


def same(program: Json, over_http: Json, *, text: bool = True) -> None:
    """Asserts that both are the same answer."""
    assert program["choices"].keys() == over_http["choices"].keys()
    for index, choice in over_http["choices"].items():
        names = [name for name in choice if text or name != "text"]
        assert {name: program["choices"][index][name] for name in names} == {name: choice[name] for name in names}
    usage = program["usage"]
    http = over_http["usage"]
    assert (usage.prompt_tokens, usage.output_tokens) == (http["prompt_tokens"], http["completion_tokens"])


def text_request(**fields: Any) -> text_pb2.GenerateTextRequest:
    sampling = pb.SamplingParams(**NO_EOS | fields.pop("sampling", {}))
    return text_pb2.GenerateTextRequest(text=text_pb2.TextInput(text=PROMPT), sampling=sampling, **fields)


def tokens_request(**fields: Any) -> engine_pb2.GenerateTokensRequest:
    sampling = pb.SamplingParams(**NO_EOS | fields.pop("sampling", {}))
    return engine_pb2.GenerateTokensRequest(
        prompt_token_ids=hf_tokenizer()(PROMPT)["input_ids"], sampling=sampling, **fields
    )


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("name", CASES)
def test_both_services_answer_as_over_http(server: Server, name: str, stream: bool) -> None:
    over_http = rest(server, prompt=PROMPT, **NO_EOS, **CASES[name][0])
    for make in (text_request, tokens_request):
        fields = {**CASES[name][1], "stream": stream}
        found = generate(server, make(**fields))
        assert (len(found) > 1) == stream
        answer = answer_of(server, make(**fields))
        same(answer, over_http, text=make is text_request)
        assert (
            answer["started"].numerics_id
            == server.post("/v1/completions", {"prompt": "a"}).json()["system_fingerprint"]
        )
        if "seed" in fields:
            assert answer["started"].seed == fields["seed"]
        if name == "logprobs":
            expected = over_http["logprobs"][0]
            found_logprobs = answer["choices"][0]["logprobs"]
            assert [one[0][1] for one in found_logprobs] == pytest.approx(expected["token_logprobs"], abs=0)
            assert [len(one) for one in found_logprobs] == [4] * NO_EOS["max_tokens"]


def test_logprobs_of_the_prompt(server: Server) -> None:
    over_http = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 2}).json()
    expected = [next(iter(one.values()))["logprob"] for one in over_http["choices"][0]["prompt_logprobs"][1:]]
    for make in (text_request, tokens_request):
        for stream in (False, True):
            found = generate(server, make(sampling={"prompt_logprobs": 2}, stream=stream, n=2))
            parts = [one for response in found for one in response.prompt_logprobs]
            columns = [one.logprobs if make is text_request else one for one in parts]
            values = [value for one in columns for value in unpack_f32(one.logprobs)]
            assert values[::3] == pytest.approx(expected, abs=0) and {one.handle for one in columns} == {0}


def test_stop_strings_end_the_text_alone(server: Server) -> None:
    whole = rest(server, prompt=PROMPT, **NO_EOS, temperature=0)["choices"][0]["text"]
    stop = whole[len(whole) // 2 :][:3]
    over_http = rest(server, prompt=PROMPT, **NO_EOS, temperature=0, stop=[stop])
    for stream in (True, False):
        output = text_pb2.OutputSpec(stop=[stop], skip_special_tokens=True)
        answer = answer_of(server, text_request(sampling={"temperature": 0}, output=output, stream=stream))
        same(answer, over_http)
        assert answer["choices"][0]["stop_reason"] == stop
    stop_id = over_http["choices"][0]["token_ids"][0]
    ended = answer_of(server, tokens_request(sampling={"temperature": 0, "stop_token_ids": [stop_id]}))["choices"][0]
    assert (ended["token_ids"], ended["finish_reason"], ended["stop_reason"]) == ([stop_id], "stop", stop_id)


def test_a_chat_gets_its_template_variables(server: Server) -> None:
    for kwargs in ({}, {"enable_thinking": True}):
        messages = [{"role": "user", "content": PROMPT}]
        body = {"messages": messages, "chat_template_kwargs": kwargs, "temperature": 0, **NO_EOS}
        request = text_pb2.GenerateTextRequest(
            chat=chat(PROMPT, **kwargs), sampling=pb.SamplingParams(temperature=0, **NO_EOS)
        )
        answer = answer_of(server, request)
        same(answer, rest(server, "/v1/chat/completions", **body))
        started = answer["started"]
        assert len(started.prompt_token_ids) == answer["usage"].prompt_tokens


def test_a_resume_continues_with_the_same_tokens(server: Server) -> None:
    """A program that sends back what it has received gets the rest, in both services, for each choice."""
    for make in (text_request, tokens_request):
        fields: Json = {"sampling": {"temperature": 1, "logprobs": 1}, "n": 2, "stream": True}
        whole = answer_of(server, make(**fields))
        for cut in (0, 5):
            again = make(**fields)
            again.resume.started.CopyFrom(whole["started"])
            again.resume.choices.add(index=1, token_ids=whole["choices"][1]["token_ids"][:cut])
            rest_of = answer_of(server, again)
            assert rest_of["choices"].keys() == {1}
            assert rest_of["choices"][1]["token_ids"] == whole["choices"][1]["token_ids"][cut:]
            assert rest_of["choices"][1]["logprobs"] == whole["choices"][1]["logprobs"][cut:]
            assert whole["choices"][1]["text"].endswith(rest_of["choices"][1]["text"])
            assert rest_of["usage"].output_tokens == NO_EOS["max_tokens"], "resumed tokens count"
            assert rest_of["usage"].prompt_tokens == whole["usage"].prompt_tokens


def num_used(server: Server) -> int:
    stats = server.stats()
    return stats.num_blocks - stats.num_free_blocks


@pytest.mark.parametrize("way", ["cancel", "deadline"])
@pytest.mark.parametrize("make", [text_request, tokens_request], ids=["text", "tokens"])
def test_an_ended_call_frees_its_blocks(server: Server, make: Any, way: str) -> None:
    wait_for(lambda: num_used(server) == 0, "nothing runs")
    request = make(stream=True, sampling={"max_tokens": 1900})

    async def begin(text: Any, engine: Any) -> float:
        stub = text if make is text_request else engine
        call = stub.Generate(request, timeout=0.5 if way == "deadline" else 60)
        await call.read()
        if way == "cancel":
            call.cancel()
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            while await call.read() is not grpc.aio.EOF:
                pass
        expected = grpc.StatusCode.CANCELLED if way == "cancel" else grpc.StatusCode.DEADLINE_EXCEEDED
        assert await call.code() == expected
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            stats = await engine.GetStats(engine_pb2.GetStatsRequest())
            if not stats.num_running + stats.num_waiting and stats.num_free_blocks == stats.num_blocks:
                return clock() - began
            assert clock() - began < 5, "the blocks were never freed"

    # The best of three: on a busy machine the event loops may wait for a processor.
    times = [run(server, begin) for _ in range(3)]
    assert min(times) < FREE_SECONDS, times


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (text_request(sampling={"temperature": 9}), "sampling.temperature"),
        (tokens_request(sampling={"temperature": 9}), "sampling.temperature"),
        (text_request(n=10**6), "n"),
        (tokens_request(n=10**6), "n"),
        (text_request(output=text_pb2.OutputSpec(stop=[""])), "output.stop"),
        (text_request(output=text_pb2.OutputSpec(stop=["a"] * 65)), "output.stop"),
        (text_request(output=text_pb2.OutputSpec(bad_words=[" "] * 2000)), "output.bad_words"),
        (text_request(sampling={"logprobs": 99}), "sampling.logprobs"),
        (text_request(sampling={"logit_bias_token_ids": b"abc"}), "sampling.logit_bias_token_ids"),
        (text_request(resume=text_pb2.TextResume()), "resume.choices"),
        (tokens_request(resume={"choices": [{"index": 1}]}), "resume.choices"),
        (tokens_request(resume={"choices": [{"index": 0, "token_ids": [9] * 99}]}), "resume.choices"),
        (text_request(priority=3), "priority"),
        (text_pb2.GenerateTextRequest(), "input"),
        (text_pb2.GenerateTextRequest(token_ids=text_pb2.TokenIds(ids=[10**9])), "token_ids"),
        (text_pb2.GenerateTextRequest(chat=text_pb2.ChatInput(messages_json=b"{")), ""),
        (text_pb2.GenerateTextRequest(chat=chat("a", messages=[])), "chat.template_kwargs_json"),
        (engine_pb2.GenerateTokensRequest(), "prompt_token_ids"),
        (engine_pb2.GenerateTokensRequest(prompt_token_ids=[5] * 200_000), "prompt_token_ids"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(server: Server, request_: Any, field: str) -> None:
    error = error_of(server, request_)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    violations: Any = details_of(error)["BadRequest"]
    assert [one.field for one in violations.field_violations] == ([field] if field else [])


def test_a_prompt_that_is_too_long_has_openais_code(server: Server) -> None:
    error = error_of(server, tokens_request(sampling={"max_tokens": 10**6}))
    assert field_of(error) == "sampling.max_tokens"
    info: Any = details_of(error)["ErrorInfo"]
    assert (info.reason, info.domain) == ("CONTEXT_LENGTH_EXCEEDED", "tandem")


def test_compressed_requests_are_accepted(server: Server) -> None:
    async def body(text: Any, engine: Any) -> list[Any]:
        call = text.Generate(text_request(sampling={"temperature": 0}), compression=grpc.Compression.Gzip)
        return [response async for response in call]

    same(
        answer_of(server, text_request(sampling={"temperature": 0})),
        rest(server, prompt=PROMPT, temperature=0, **NO_EOS),
    )
    assert len(run(server, body)) == 1


def test_a_large_compressed_message_is_refused(server: Server) -> None:
    """70 MB of zeros compress to some kilobytes: the limit counts what comes out."""
    request = text_pb2.GenerateTextRequest(text=text_pb2.TextInput(text="\0" * 70_000_000))

    async def body(text: Any, engine: Any) -> grpc.StatusCode:
        folder = server.runtime_dir
        channel = grpc.aio.insecure_channel(
            f"unix:{folder}/tokenizer-0.sock", options=[("grpc.max_send_message_length", -1)]
        )
        async with channel:
            stub = type(text)(channel)
            try:
                async for _ in stub.Generate(request, compression=grpc.Compression.Gzip):
                    pass
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    assert run(server, body) == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_stopping_process_ends_calls_with_unavailable() -> None:
    with Server("--shutdown-timeout=0") as server:

        async def body(text: Any, engine: Any) -> grpc.StatusCode:
            call = text.Generate(text_request(stream=True, sampling={"max_tokens": 1900}))
            await call.read()
            os.kill(server.process.pid, signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:
                    pass
            return await call.code()

        assert run(server, body) == grpc.StatusCode.UNAVAILABLE


def test_a_full_queue_says_when_to_retry() -> None:
    with Server("--max-num-seqs=1", "--max-num-queued-reqs=1") as server:

        async def body(text: Any, engine: Any) -> list[Any]:
            long = text.Generate(text_request(stream=True, sampling={"max_tokens": 1900}))
            await long.read()
            errors = []
            for stub, make in ((text, text_request), (engine, tokens_request)):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.Generate(make()).read()
                errors.append(refused.value)
            long.cancel()
            return errors

        for error in run(server, body):
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            retry: Any = details_of(error)["RetryInfo"]
            assert retry.retry_delay.seconds >= 1


def test_channels_need_no_more_than_an_address(server: Server) -> None:
    """health.v1 names both services; reflection lists them."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async def ask(socket: str, service: str) -> tuple[int, set[str]]:
        async with open_channel(f"unix:{server.runtime_dir}/{socket}") as channel:
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            await call.done_writing()
            listed = (await call.read()).list_services_response.service
            return health.status, {one.name for one in listed}

    for socket, service in (("tokenizer-0.sock", "TextService"), ("engine.sock", "EngineService")):
        status, listed = asyncio.run(ask(socket, f"tandem.v1.{service}"))
        assert status == health_pb2.HealthCheckResponse.SERVING
        assert f"tandem.v1.{service}" in listed


@pytest.mark.parametrize("service", ["text", "engine"])
def test_groups_share_no_cached_prefix(server: Server, service: str) -> None:
    """A request learns nothing of the prompts of another group, whatever its salt."""

    def cached(group: str, salt: str = "") -> int:
        ids = [9, 8, 7, 6, len(service)] * 16
        common: Json = {"cache_group": group, "cache_salt": salt, "sampling": {"max_tokens": 1}}
        if service == "text":
            request: Any = text_pb2.GenerateTextRequest(token_ids={"ids": ids}, **common)
        else:
            request = engine_pb2.GenerateTokensRequest(prompt_token_ids=ids, **common)
        return int(answer_of(server, request)["usage"].cached_tokens)

    assert [cached("a", "b"), cached("a", "b")] == [0, 64]  # of 80: the last block is computed, for its logits
    assert [cached("ab"), cached("", "ab"), cached("a"), cached("")] == [0, 0, 0, 0]
    assert [cached("ab"), cached("", "ab"), cached("a"), cached("")] == [64, 64, 64, 64]


@pytest.mark.parametrize(("field", "limit"), [("cache_group", 256), ("cache_salt", 1024)])
def test_what_separates_caches_is_bounded(server: Server, field: str, limit: int) -> None:
    """The engine checks it, whatever the caller has checked."""
    text = text_pb2.GenerateTextRequest(text={"text": PROMPT}, **{field: "x" * (limit + 1)})
    tokens = engine_pb2.GenerateTokensRequest(prompt_token_ids=[5], **{field: "x" * (limit + 1)})
    assert [field_of(error_of(server, request)) for request in (text, tokens)] == [field, field]
