"""The routes' handlers, with the test as the tokenizer: responses, streams, refusals, and work that is aborted."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.types import Message

from services.rpc.columns import unpack_u32
from services.rpc.errors import CONTEXT_LENGTH_EXCEEDED, TandemError, invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.telemetry.spans import NoTracing
from services.version import VERSION
from tests.shim.harness import FACTS, LIMITS, Shim, error_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": [{"role": "user", "content": "Hi"}]}, TEXT: {"prompt": "Hi"}}
both = pytest.mark.parametrize("path", [CHAT, TEXT])


@pytest.fixture
async def shim() -> Shim:
    return Shim(connected=True)


@pytest.fixture
async def http(shim: Shim) -> AsyncIterator[httpx.AsyncClient]:
    async with shim.http() as client:
        yield client


def post(http: httpx.AsyncClient, path: str, **body: Any) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(http.post(path, json=BODIES[path] | body))


async def handles_of(shim: Shim) -> list[int]:
    """Of the next submit."""
    return [choice.handle for choice in (await shim.sent()).submit.choices]


async def test_a_chat_completion(shim: Shim, http: httpx.AsyncClient) -> None:
    answer = post(http, CHAT)
    (handle,) = await handles_of(shim)
    shim.accept(handle, [1, 2])
    shim.event(handle, 0, [7], "Hello")
    shim.end(handle, prompt_tokens=2, output_tokens=1)
    response = await answer
    assert response.status_code == 200 and response.headers["content-type"] == "application/json"
    body = response.json()
    assert body["id"].startswith("chatcmpl-") and body["model"] == "fake"
    assert body["choices"][0]["message"]["content"] == "Hello"
    assert not shim.open_generations


async def test_completions_of_two_prompts(shim: Shim, http: httpx.AsyncClient) -> None:
    answer = post(http, TEXT, prompt=[[3, 4], [5]], n=2)
    submits = [(await shim.sent()).submit for _ in range(2)]
    assert [unpack_u32(submit.prompt_token_ids) for submit in submits] == [[3, 4], [5]]
    handles = [choice.handle for submit in submits for choice in submit.choices]
    shim.accept(handles[0])
    for number, handle in enumerate(handles):
        shim.event(handle, 0, [7], str(number))
        shim.end(handle)
    body = (await answer).json()
    assert body["id"].startswith("cmpl-")
    assert [choice["text"] for choice in body["choices"]] == ["0", "1", "2", "3"]


async def test_a_stream(shim: Shim, http: httpx.AsyncClient) -> None:
    answer = post(http, TEXT, stream=True, stream_options={"include_usage": True})
    (handle,) = await handles_of(shim)
    shim.event(handle, 0, [7], "Hello")
    shim.end(handle, prompt_tokens=2, output_tokens=1)
    response = await answer
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [chunk["usage"] and chunk["usage"]["total_tokens"] for chunk in chunks] == [None, 3]
    assert chunks[0]["choices"][0]["text"] == "Hello" and chunks[1]["choices"] == []
    assert len({chunk["id"] for chunk in chunks}) == 1 and not shim.open_generations


@both
async def test_an_error_before_the_start_is_the_status(shim: Shim, http: httpx.AsyncClient, path: str) -> None:
    for stream in (False, True):
        answer = post(http, path, stream=stream)
        (handle,) = await handles_of(shim)
        shim.fail(handle, invalid("the prompt is empty", "prompt"))
        error = error_of(await answer, 400)
        assert (error["message"], error["param"]) == ("the prompt is empty", "messages" if path == CHAT else "prompt")
        assert not shim.open_generations


@both
async def test_an_error_after_the_start_of_a_stream_is_its_last_chunk(
    shim: Shim, http: httpx.AsyncClient, path: str
) -> None:
    answer = post(http, path, stream=True)
    (handle,) = await handles_of(shim)
    shim.accept(handle)
    shim.event(handle, 0, [7], "a")
    await until_read(shim)
    shim.fail(handle, TandemError("INTERNAL", "the worker is gone"))
    response = await answer
    assert response.status_code == 200
    *_, last, rest = response.text.split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "the worker is gone"
    assert rest == "" and "[DONE]" not in response.text, "an answer that was cut must not look whole"


async def until_read(shim: Shim) -> None:
    """Waits until the response has taken all updates."""
    (generation,) = shim.open_generations
    async with asyncio.timeout(10):
        while generation._updates._pending:  # noqa: ASYNC110 - a mailbox wakes its reader alone
            await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_aborts_its_choices(shim: Shim, stream: bool) -> None:
    disconnected = asyncio.Event()
    body = json.dumps(BODIES[TEXT] | {"n": 2, "stream": stream}).encode()
    messages: list[Message] = [{"type": "http.request", "body": body}]
    sent: list[Message] = []

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": TEXT, "headers": [], "query_string": b""}
    request = asyncio.create_task(shim.app(scope, receive, send))  # type: ignore[arg-type]
    handles = await handles_of(shim)
    shim.accept(handles[0])
    shim.event(handles[0], 0, [7], "a")
    await until_read(shim)
    disconnected.set()
    assert [(await shim.sent()).abort.handle for _ in handles] == handles
    await asyncio.wait_for(request, 10)
    assert not shim.open_generations
    assert [message["status"] for message in sent if "status" in message] == [200 if stream else 499]


async def test_more_choices_than_the_queue_holds_are_refused(shim: Shim, http: httpx.AsyncClient) -> None:
    assert LIMITS.max_num_queued_reqs == 640
    response = await http.post(TEXT, json={"prompt": ["a"] * 6, "n": 107})
    error = error_of(response, 400)
    assert (error["param"], error["message"]) == (
        "n",
        "the request asks for 642 choices, but max_num_queued_reqs is 640",
    )
    assert shim.link.entries.empty()


async def test_token_ids_that_do_not_fit_are_refused_by_the_shim(shim: Shim, http: httpx.AsyncClient) -> None:
    error = error_of(await http.post(TEXT, json={"prompt": [1] * FACTS.max_model_len}), 400)
    assert f"maximum context length is {FACTS.max_model_len}" in error["message"]
    assert shim.link.entries.empty()


async def test_models(http: httpx.AsyncClient) -> None:
    page = (await http.get("/v1/models")).json()
    assert page["object"] == "list"
    (card,) = page["data"]
    assert (card["id"], card["root"], card["max_model_len"]) == ("fake", "/models/fake", 64)
    assert abs(card["created"] - time.time()) < 60
    assert (await http.get("/v1/models/fake")).json() == card


@both
@pytest.mark.parametrize("param", ["prompt", "max_tokens"])
async def test_too_long_a_context_has_openais_code(shim: Shim, http: httpx.AsyncClient, path: str, param: str) -> None:
    """The engine names its own field; in chat, OpenAI names messages."""
    answer = post(http, path)
    (handle,) = await handles_of(shim)
    shim.fail(handle, invalid("too long", param, CONTEXT_LENGTH_EXCEEDED))
    error = error_of(await answer, 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages" if path == CHAT else param)


@both
async def test_other_errors_keep_their_field(shim: Shim, http: httpx.AsyncClient, path: str) -> None:
    answer = post(http, path)
    (handle,) = await handles_of(shim)
    shim.fail(handle, invalid("token id 99 is not in the vocabulary", "logit_bias"))
    error = error_of(await answer, 400)
    assert (error["param"], error["code"]) == ("logit_bias", None)


async def test_token_ids_that_do_not_fit_have_openais_code(http: httpx.AsyncClient) -> None:
    error = error_of(await http.post(TEXT, json={"prompt": [1] * FACTS.max_model_len}), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


async def finished(shim: Shim, path: str = CHAT, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    """Returns the response to a request whose choices all end after one token."""
    async with shim.http() as http:
        answer = asyncio.create_task(http.post(path, json=BODIES[path] | body, headers=headers or {}))
        for handle in await handles_of(shim):
            shim.accept(handle, [1, 2], cached_tokens=1)
            shim.event(handle, 0, [7], "a")
            shim.end(handle, prompt_tokens=2, output_tokens=1, cached_tokens=1)
        return await answer


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@both
async def test_forced_usage(path: str) -> None:
    assert "usage" not in chunks_of(await finished(Shim(connected=True), path, stream=True))[-1]
    forced = Shim(connected=True, enable_force_include_usage=True)
    *chunks, last = chunks_of(await finished(forced, path, stream=True))
    assert chunks and all(chunk["usage"] for chunk in chunks)
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 3


@both
async def test_continuous_usage(path: str) -> None:
    options: dict[str, Any] = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = chunks_of(await finished(Shim(connected=True), path, stream=True, stream_options=options))
    assert chunks and all(chunk["usage"]["prompt_tokens"] == 2 for chunk in chunks)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == sorted(
        chunk["usage"]["completion_tokens"] for chunk in chunks
    )
    assert chunks[-1]["usage"]["total_tokens"] == last["usage"]["total_tokens"] == 3
    without = chunks_of(
        await finished(Shim(connected=True), path, stream=True, stream_options={"continuous_usage_stats": True})
    )
    assert not [chunk for chunk in without if "usage" in chunk], "only together with include_usage"


@both
@pytest.mark.parametrize("shown", [True, False])
async def test_cached_tokens_in_the_usage(path: str, shown: bool) -> None:
    shim = Shim(connected=True, enable_prompt_tokens_details=shown)
    usage = (await finished(shim, path)).json()["usage"]
    assert usage["prompt_tokens_details"] == ({"cached_tokens": 1} if shown else None)


async def test_the_response_role() -> None:
    shim = Shim(connected=True, response_role="bot")
    assert (await finished(shim)).json()["choices"][0]["message"]["role"] == "bot"
    assert chunks_of(await finished(shim, stream=True))[0]["choices"][0]["delta"]["role"] == "bot"
    continued: Any = {"add_generation_prompt": False, "messages": [{"role": "narrator", "content": "Once"}]}
    body = (await finished(shim, **continued)).json()
    assert body["choices"][0]["message"]["role"] == "narrator", "as in vLLM: the last message's, which goes on"


@both
@pytest.mark.parametrize("name", ["whatever", "chat", "str", ""])
async def test_unknown_fields_may_be_ignored(path: str, name: str) -> None:
    shim = Shim(connected=True, ignore_unknown_fields=True)
    assert (await finished(shim, path, **{name: {"a": [1]}})).status_code == 200
    async with Shim(connected=True).http() as http:
        error = error_of(await http.post(path, json=BODIES[path] | {name: 1}), 400)
        assert error["message"] == f"unsupported parameter: {name}"


async def test_only_unknown_fields_are_ignored() -> None:
    async with Shim(connected=True, ignore_unknown_fields=True).http() as http:
        for body, param in (
            ({"temperature": 3, "other": 1}, "temperature"),
            ({"use_beam_search": True}, "use_beam_search"),
            ({"stream": True, "stream_options": {"other": 1, "include_usage": 1}}, "stream_options.include_usage"),
        ):
            assert error_of(await http.post(TEXT, json=BODIES[TEXT] | body), 400)["param"] == param


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_request_ids(path: str, stream: bool) -> None:
    """The header wins over the field; both become a part of the response's id."""
    prefix = "chatcmpl-" if path == CHAT else "cmpl-"

    async def id_of(headers: dict[str, str], **body: Any) -> str:
        response = await finished(Shim(connected=True), path, headers, stream=stream, **body)
        assert "x-request-id" not in response.headers, "only with --enable-request-id-headers"
        return str((chunks_of(response)[0] if stream else response.json())["id"])

    assert await id_of({}, request_id="body") == prefix + "body"
    assert await id_of({"X-Request-Id": "head"}, request_id="body") == prefix + "head"
    first, second = await id_of({}), await id_of({})
    assert first.startswith(prefix) and first != second


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_the_header_with_the_request_id(path: str, stream: bool) -> None:
    shim = Shim(connected=True, enable_request_id_headers=True)
    response = await finished(shim, path, {"x-request-id": "mine"}, stream=stream)
    assert response.headers["x-request-id"] == "mine"
    response = await finished(shim, path, request_id="field")
    assert response.headers["x-request-id"] == "field"
    response = await finished(shim, path)
    assert response.json()["id"].endswith("-" + response.headers["x-request-id"])


async def test_every_response_has_the_request_id() -> None:
    """Refusals as well: an operator looks for them by this id."""
    async with Shim(connected=True, enable_request_id_headers=True, api_key="key").http() as http:
        key = {"authorization": "Bearer key"}
        for path, status in (("/health", 200), ("/v1/models", 401), ("/nothing", 404)):
            response = await http.get(path, headers={"x-request-id": "mine"})
            assert (response.status_code, response.headers["x-request-id"]) == (status, "mine")
        response = await http.post(TEXT, json={"prompt": 5}, headers=key | {"x-request-id": "mine"})
        assert (response.status_code, response.headers["x-request-id"]) == (400, "mine")
        response = await http.post(TEXT, json={"prompt": 5}, headers=key | {"x-request-id": "not valid"})
        assert response.status_code == 400 and len(response.headers["x-request-id"]) == 32
        assert len((await http.get("/health")).headers["x-request-id"]) == 32


@both
async def test_the_submits_have_the_request_id(shim: Shim, http: httpx.AsyncClient, path: str) -> None:
    answer = post(http, path, request_id="mine")
    submit = (await shim.sent()).submit
    assert submit.request_id == ("chatcmpl-mine" if path == CHAT else "cmpl-mine")
    shim.end(submit.choices[0].handle)
    await answer


async def test_bad_request_ids(http: httpx.AsyncClient) -> None:
    error = error_of(await http.post(TEXT, json=BODIES[TEXT] | {"request_id": "a\nb"}), 400)
    assert error["param"] == "request_id"


async def test_effective_parameters(shim: Shim, http: httpx.AsyncClient) -> None:
    answer = post(http, TEXT, return_effective_parameters=True)
    submit = (await shim.sent()).submit
    assert submit.return_sampling
    handle = submit.choices[0].handle
    shim.accept(handle, [1], seed=5, sampling=pb.SamplingParams(temperature=0.5, max_tokens=16))
    shim.event(handle, 0, [7], "a")
    shim.end(handle)
    (choice,) = (await answer).json()["choices"]
    found = choice["effective_parameters"]
    assert (found["seed"], found["temperature"], found["max_tokens"]) == (5, 0.5, 16)


@pytest.mark.parametrize("name", ["other", "org/other"])
async def test_an_unknown_model(http: httpx.AsyncClient, name: str) -> None:
    for response in (await http.get(f"/v1/models/{name}"), await http.post(TEXT, json={"prompt": "a", "model": name})):
        error = error_of(response, 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert error["message"] == f"the model {name!r} is not served; served models: fake"


async def test_health_follows_the_link(shim: Shim, http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).status_code == 200
    shim.client.link_down(shim.link, died=True)
    assert (await http.get("/health")).status_code == 503


async def test_the_version(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version")).json() == {"version": VERSION}


async def test_a_reset_takes_no_parameter(http: httpx.AsyncClient) -> None:
    error = error_of(await http.post("/reset_prefix_cache?device=cpu"), 400)
    assert (error["param"], error["message"]) == ("device", "unsupported parameter: device")
    assert (await http.post("/reset_prefix_cache")).json() == {"success": True}


class RecordedSpan:
    traceparent = "00-trace-span-01"

    def __init__(self, name: str, parent: str) -> None:
        self.name, self.parent = name, parent
        self.attributes: dict[str, Any] = {}
        self.ends: list[str] = []

    def set(self, attributes: dict[str, Any]) -> None:
        self.attributes |= attributes

    def end(self, at: int | None = None, *, error: str = "") -> None:
        self.ends.append(error)


class RecordedTracing(NoTracing):
    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []

    def start(self, name: str, parent: str, *, at: int | None = None, server: bool = False) -> RecordedSpan:
        self.spans.append(RecordedSpan(name, parent))
        return self.spans[-1]


async def test_a_refused_request_leaves_a_span() -> None:
    tracing = RecordedTracing()
    async with Shim(connected=True, tracing=tracing).http() as http:
        await http.post(TEXT, json={"prompt": "a", "n": 0}, headers={"traceparent": "parent"})
    (span,) = tracing.spans
    assert (span.name, span.parent, span.ends) == ("text_completion", "parent", ["INVALID_ARGUMENT"])
    assert span.attributes["error.type"] == "INVALID_ARGUMENT"


async def test_the_span_of_a_request_is_the_parent_of_its_submits() -> None:
    tracing = RecordedTracing()
    shim = Shim(connected=True, tracing=tracing)
    async with shim.http() as http:
        answer = post(http, CHAT)
        submit: text_pb2.TextSubmit = (await shim.sent()).submit
        assert submit.traceparent == RecordedSpan.traceparent
        shim.end(submit.choices[0].handle)
        await answer
    (span,) = tracing.spans
    assert (span.name, span.ends) == ("chat fake", [""])
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"]
