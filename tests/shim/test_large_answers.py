"""Large answers: no step of the event loop is long, their memory counts while they run, their logprobs are bounded."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message

from services.rpc.columns import pack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim import in_progress
from services.shim.apis.chat.schema import ChatRequest
from services.shim.apis.completions.schema import CompletionRequest
from services.shim.logprob_entries import check_logprob_entries
from services.shim.updates import UNCOUNTED_TOKENS
from tests.shim.apis.answers import logprobs
from tests.shim.calls import BODIES, CHAT, TEXT, both, post
from tests.shim.harness import EPOCH, FACTS, Shim, error_of
from tests.shim.longest_step import longest_step

DEFAULT_ENTRIES = 4_000_000
JSON_HEADERS = [(b"host", b"test"), (b"content-type", b"application/json")]
ENTRY = logprobs("a", -1.5, *((f"token {at}", -2.5) for at in range(20)))


@contextlib.asynccontextmanager
async def large_shim(monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Shim]:
    """Yields a shim whose engine takes more prompts and longer ones than that of other tests."""
    shim = Shim(connected=True, **options)
    facts = pb.EngineFacts()
    facts.CopyFrom(FACTS)
    facts.max_model_len, facts.limits.max_num_queued_reqs, facts.limits.max_logprobs = 8192, 2000, 20
    monkeypatch.setattr(shim.link, "peer", pb.Hello(epoch=EPOCH, engine=facts))
    monkeypatch.setattr(shim.client.dispatcher, "peer", shim.link.peer)
    try:
        yield shim
    finally:
        await shim.preparer.close()


def batch(handles: list[int], start: int, *, last: bool, entries: int = 0) -> text_pb2.TextBatch:
    """Returns a message with one token for each choice; with `last`, the choices end."""
    count = len(handles)
    return text_pb2.TextBatch(
        epoch=EPOCH,
        handles=pack_u32(handles),
        start_indices=pack_u32([start] * count),
        counts=pack_u32([1] * count),
        token_ids=pack_u32([7] * count),
        piece_counts=pack_u32([1] * count),
        pieces=["a"] * count,
        logprob_counts=pack_u32([entries] * count) if entries else b"",
        logprobs=[ENTRY] * (count * entries),
        terminals=[text_pb2.TextTerminal(handle=one, reason=pb.FINISH_REASON_LENGTH) for one in handles if last],
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_many_prompts_with_their_ids(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is linear in the ids, and no step is long: 1,024 prompts of 1,000 ids took one of 90 ms."""
    ids = [[at % 50] * 1000 for at in range(1024)]
    async with large_shim(monkeypatch) as shim:
        await shim.preparer.start()
        async with shim.http() as http, longest_step() as step:
            body = {"prompt": ids, "max_tokens": 1, "return_token_ids": True, "stream": stream}
            content = str(body).replace("'", '"').replace("True", "true").replace("False", "false").encode()
            answer = asyncio.create_task(http.post(TEXT, content=content))
            handles = [(await shim.sent()).submit.choices[0].handle for _ in ids]
            for start in range(0, len(ids), 128):
                shim.receive(batch(handles[start : start + 128], 0, last=True))
                await asyncio.sleep(0)
            response = await answer
            assert step.seconds < 0.03
    if stream:
        assert response.text.count('"prompt_token_ids":[') == 1024 and response.text.count('"token_ids":[7]') == 1024
    else:
        choices = response.json()["choices"]
        assert [choice["prompt_token_ids"] for choice in choices] == ids
        assert [choice["token_ids"] for choice in choices] == [[7]] * 1024


@both
async def test_many_logprobs(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """128 choices of 20 tokens with 20 logprobs: the last step took 160 ms and more."""
    asked = {"logprobs": True, "top_logprobs": 20} if path == CHAT else {"logprobs": 20}
    async with large_shim(monkeypatch) as shim, shim.http() as http, longest_step() as step:
        answer = post(http, path, n=128, max_tokens=20, **asked)
        handles = [choice.handle for choice in (await shim.sent()).submit.choices]
        for at in range(20):
            shim.receive(batch(handles, at, last=at == 19, entries=1))
            await asyncio.sleep(0)
        response = await answer
        assert step.seconds < 0.03
        assert "content-length" not in response.headers
        assert shim.in_progress.num_bytes == 0
    for choice in response.json()["choices"]:
        found = choice["logprobs"]["content" if path == CHAT else "tokens"]
        assert len(found) == 20 and choice["finish_reason"] == "length"


@both
async def test_the_memory_of_an_answer_counts(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that goes beyond the total fails; another one goes on."""
    monkeypatch.setattr(in_progress, "MAX_HELD_BYTES", 20_000)
    monkeypatch.setattr(in_progress, "SMALL_BYTES", 0)
    asked = {"logprobs": True, "top_logprobs": 20} if path == CHAT else {"logprobs": 20}
    async with large_shim(monkeypatch) as shim, shim.http() as http:
        other = post(http, TEXT, max_tokens=5)
        first = (await shim.sent()).submit.choices[0].handle
        large = post(http, path, max_tokens=100, **asked)
        handle = (await shim.sent()).submit.choices[0].handle
        for at in range(100):
            if not shim.client.dispatcher.find(shim.link, handle):
                break
            shim.receive(batch([handle], at, last=False, entries=1))
            for _ in range(5):
                await asyncio.sleep(0)
        error = error_of(await large, 429)
        assert error["message"] == "the bodies and answers in progress have more than 20000 bytes; try again later"
        assert (await shim.sent()).abort.handle == handle
        shim.receive(batch([first], 0, last=True))
        assert (await other).json()["choices"][0]["text"] == "a"
        assert shim.in_progress.num_bytes == 0


class StoppedReader:
    """A client over ASGI that sends a body and takes nothing of the answer until `go_on`."""

    def __init__(self, body: bytes) -> None:
        self._body = [{"type": "http.request", "body": body}]
        self.go_on, self._gone = asyncio.Event(), asyncio.Event()
        self.received = b""

    async def receive(self) -> Message:
        if self._body:
            return self._body.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.received += message.get("body", b"")
        if message.get("body"):
            await self.go_on.wait()


async def test_what_waits_for_a_stopped_reader_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream ends with an error, and its choices are aborted at once."""
    monkeypatch.setattr(in_progress, "MAX_HELD_BYTES", 200_000)
    monkeypatch.setattr(in_progress, "SMALL_BYTES", 0)
    async with large_shim(monkeypatch) as shim:
        reader = StoppedReader(b'{"prompt": "a", "stream": true, "logprobs": 20, "max_tokens": 1000}')
        scope = {"type": "http", "method": "POST", "path": TEXT, "headers": JSON_HEADERS, "query_string": b""}
        running = asyncio.create_task(shim.app(scope, reader.receive, reader.send))
        handle = (await shim.sent()).submit.choices[0].handle
        shim.accept(handle, [1])
        num_tokens = 0
        while shim.client.dispatcher.find(shim.link, handle):
            assert num_tokens < 1000
            shim.receive(batch([handle], num_tokens, last=False, entries=1))
            num_tokens += 1
            for _ in range(5):
                await asyncio.sleep(0)
        assert UNCOUNTED_TOKENS < num_tokens < 200
        assert (await shim.sent()).abort.handle == handle
        shim.receive(batch([handle], num_tokens, last=False, entries=1))  # it was under way, and is dropped
        reader.go_on.set()
        await asyncio.wait_for(running, 10)
        assert b"the bodies and answers in progress have more than 200000 bytes" in reader.received
        assert b"[DONE]" not in reader.received and shim.in_progress.num_bytes == 0


async def test_a_slow_reader_gets_every_logprob(monkeypatch: pytest.MonkeyPatch) -> None:
    """What merged meanwhile is one chunk, which is written in several steps."""
    async with large_shim(monkeypatch) as shim:
        reader = StoppedReader(b'{"prompt": "a", "stream": true, "logprobs": 20, "max_tokens": 1000}')
        scope = {"type": "http", "method": "POST", "path": TEXT, "headers": JSON_HEADERS, "query_string": b""}
        running = asyncio.create_task(shim.app(scope, reader.receive, reader.send))
        handle = (await shim.sent()).submit.choices[0].handle
        async with longest_step() as step:
            for at in range(400):
                shim.receive(batch([handle], at, last=at == 399, entries=1))
                await asyncio.sleep(0)
            assert shim.in_progress.num_bytes > 300 * 20 * 100
            reader.go_on.set()
            await asyncio.wait_for(running, 10)
        assert step.seconds < 0.03
        assert reader.received.count(b'"token 19":-2.5') == 400 and reader.received.endswith(b"data: [DONE]\n\n")
        assert shim.in_progress.num_bytes == 0


TEXT_SUBMIT = text_pb2.TextSubmit(text=text_pb2.TextInput(text="a" * 84))


def entries_refused(
    request: Any, num_prompts: int, limit: int = DEFAULT_ENTRIES, submit: text_pb2.TextSubmit = TEXT_SUBMIT
) -> TandemError:
    facts = pb.EngineFacts(max_model_len=40_960, vocab_size=1000)
    with pytest.raises(TandemError) as caught:
        check_logprob_entries(request, [submit] * num_prompts, facts, limit)
    assert caught.value.code == "INVALID_ARGUMENT"
    return caught.value


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "a", **fields})


def test_the_default_lets_large_answers_pass() -> None:
    facts = pb.EngineFacts(max_model_len=131_072, vocab_size=150_000)
    chat = ChatRequest.model_validate(BODIES[CHAT] | {"logprobs": True, "top_logprobs": 20})
    check_logprob_entries(chat, [text_pb2.TextSubmit()], facts, DEFAULT_ENTRIES)  # as long as the context
    check_logprob_entries(completion(n=16, max_tokens=4096, logprobs=20), [TEXT_SUBMIT], facts, DEFAULT_ENTRIES)
    check_logprob_entries(
        completion(n=1024, max_tokens=2**31 - 1), [TEXT_SUBMIT], facts, DEFAULT_ENTRIES
    )  # no logprobs at all


def test_too_many_logprobs_are_refused_with_all_factors() -> None:
    error = entries_refused(completion(n=128, max_tokens=200, logprobs=20), 8)
    assert error.param == "logprobs"
    assert error.message == (
        "1024 choices (8 prompts times n = 128) x 200 max_tokens x 21 logprobs per token = 4300800, but"
        " max_logprob_entries is 4000000: lower max_tokens, n or logprobs"
    )
    unlimited = {"logprobs": True, "top_logprobs": 4, "n": 30}
    error = entries_refused(ChatRequest.model_validate(BODIES[CHAT] | unlimited), 1)
    assert error.param == "max_tokens"
    assert (
        "30 choices (1 prompts times n = 30) x 40960 tokens of the context, as max_tokens is not set" in error.message
    )
    by_ids = completion(n=1, max_tokens=100, logprobs=0, logprob_token_ids=list(range(99)))
    assert "x 100 logprobs per token = 10000" in entries_refused(by_ids, 1, 9999).message
    assert "x 1001 logprobs per token" in entries_refused(completion(logprobs=-1), 1, 9999).message


def test_the_logprobs_of_prompts_count() -> None:
    """A text has at most one token per byte, and a few more; a chat may be as long as the context."""
    error = entries_refused(completion(prompt_logprobs=4, max_tokens=10), 2, 999)
    assert error.param == "prompt_logprobs"
    assert error.message.startswith("up to 200 prompt tokens x 5 logprobs per token = 1000, but")
    error = entries_refused(completion(echo=True, logprobs=1, max_tokens=0), 1, 199)
    assert "1 choices (1 prompts times n = 1) x 0 max_tokens" in error.message and "up to 100 prompt" in error.message
    chat = ChatRequest.model_validate(BODIES[CHAT] | {"prompt_logprobs": 20})
    long, short = (text_pb2.TextSubmit(chat=text_pb2.ChatInput(messages_json=b"a" * size)) for size in (10**6, 10))
    message = entries_refused(chat, 1, 800_000, long).message
    assert "up to 40960 prompt tokens x 21 logprobs" in message and "lower prompt_logprobs, the prompts, " in message
    check_logprob_entries(chat, [short], pb.EngineFacts(max_model_len=262_144), DEFAULT_ENTRIES)
    long.truncation.max_tokens = 100
    check_logprob_entries(chat, [long], pb.EngineFacts(max_model_len=262_144), 2100)
    check_logprob_entries(completion(prompt_logprobs=4), [TEXT_SUBMIT], pb.EngineFacts(max_model_len=99), 99 * 5)


async def test_max_logprob_entries_is_checked_over_http() -> None:
    async with Shim(connected=True, max_logprob_entries=99).http() as http:
        error = error_of(await post(http, TEXT, max_tokens=50, logprobs=1), 400)
        assert "= 100, but max_logprob_entries is 99" in error["message"]
