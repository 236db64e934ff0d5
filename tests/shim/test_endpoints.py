"""The routes' handlers, with the test as the tokenizer: responses, streams, refusals, and work that is aborted."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from starlette.types import Message

from services.rpc.columns import unpack_u32
from services.rpc.errors import CONTEXT_LENGTH_EXCEEDED, TandemError, invalid, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.telemetry.spans import NoTracing
from services.version import VERSION
from tests.shim.calls import BODIES, CHAT, TEXT, both, handles_of, post
from tests.shim.harness import FACTS, LIMITS, Shim, error_of


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

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": TEXT, "headers": headers, "query_string": b""}
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


async def statuses(http: httpx.AsyncClient) -> list[int]:
    return [(await http.get(path)).status_code for path in ("/live", "/ready", "/health", "/ping")]


async def test_health_before_the_first_tokenizer() -> None:
    async with Shim().http() as http:
        assert await statuses(http) == [200, 503, 503, 503]


async def test_readiness_is_strict_and_health_waits_through_a_restart() -> None:
    shim = Shim(connected=True, resume_wait=0.3)
    async with shim.http() as http:
        shim.link.is_ready = False
        assert await statuses(http) == [200, 503, 200, 200], "the engine has no worker"
        shim.link.is_served = False
        assert await statuses(http) == [200, 503, 503, 503], "the wait for a worker is given up"
        shim.link.is_ready = shim.link.is_served = True
        assert await statuses(http) == [200, 200, 200, 200]
        shim.client.link_down(shim.link, died=True)
        assert await statuses(http) == [200, 503, 200, 200]
        with pytest.raises(TandemError):
            await shim.client.dispatcher.outage.wait()
        assert await statuses(http) == [200, 503, 503, 503]
        shim.client.link_up(shim.link)
        assert await statuses(http) == [200, 200, 200, 200]


async def test_a_server_that_drains_is_neither_ready_nor_healthy_and_takes_no_request(
    shim: Shim, http: httpx.AsyncClient
) -> None:
    answer = asyncio.create_task(http.post(TEXT, json={"prompt": "a"}))
    handle = (await shim.sent()).submit.choices[0].handle
    drained = asyncio.create_task(shim.in_progress.drain(unavailable("the server is stopping")))
    await asyncio.sleep(0)
    assert await statuses(http) == [200, 503, 503, 503]
    refused = await http.post(TEXT, json={"prompt": "a"})
    assert error_of(refused, 503)["message"] == "the server is stopping" and refused.headers["retry-after"] == "2"
    assert not drained.done()
    shim.accept(handle, [1], seed=5)
    shim.event(handle, 0, [7], "a")
    shim.end(handle)
    assert (await answer).status_code == 200
    async with asyncio.timeout(10):
        await drained


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
