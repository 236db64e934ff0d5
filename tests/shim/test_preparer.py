"""Bodies on the event loop and in child processes: equal results, short steps, limits that end one request alone."""

import asyncio
import errno
import json
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from starlette.types import Message

from services.options.declarations import ShimOptions
from services.process.task_pool import TaskPool
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.shim import preparer as preparing
from services.shim.apis.all import ALL_APIS, APIS
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.completions.api import COMPLETIONS_API
from services.shim.apis.translation import AnyTranslation, Translation
from services.shim.apis.translations import TRANSLATIONS
from services.shim.bulk import BulkEntry, BulkSubmit
from services.shim.prepare import Prepared
from services.shim.preparer import Preparer
from tests.shim.apis.field_values import BASE, COMMON, rows_of
from tests.shim.calls import CHAT, TEXT
from tests.shim.harness import FACTS, Shim, error_of
from tests.shim.longest_step import longest_step
from tests.shim.test_body import NO_JSON

MIB = 2**20
HI = '{"role":"user","content":"Hi"}'
# Each took a second or more for 28 MB, in one step.
HEAVY = {
    "lists": '{"messages":[' + HI + '],"metadata":{"a":[' + "[1]," * MIB + "1]}}",
    "objects": '{"messages":[{"role":"user","content":"Hi","a":[' + "{}," * MIB + "1]}]}",
    "messages": '{"messages":[' + ",".join([HI] * 100_000) + "]}",
    "unknown": "{" + ",".join(f'"{at}":1' for at in range(200_000)) + "}",
}


@pytest.fixture
async def preparer() -> AsyncIterator[Preparer]:
    made = Preparer(ShimOptions())
    yield made
    await made.close()


async def outcome(preparer: Preparer, translation: AnyTranslation, text: bytes, facts: Any = FACTS) -> Any:
    """Returns what a body becomes: a TandemError's fields, or those of Prepared, with each submit as it is sent."""
    try:
        found = await preparer.prepare(translation, bytearray(text), facts, "a group")
    except TandemError as error:
        return error.code, error.message, error.param, error.reason
    submits = [sent(found, index) for index in range(len(found.submits))]
    return [getattr(found, name) for name in Prepared.__dataclass_fields__ if name not in ("submits", "bulk")], submits


def sent(prepared: Prepared, index: int) -> text_pb2.TextSubmit:
    if (bulk := prepared.bulk.get(index)) is None:
        return prepared.submits[index]
    (entry,) = text_pb2.TextDown.FromString(BulkEntry(BulkSubmit(prepared.submits[index], bulk)).wire).entries
    return entry.submit


# What each translation takes, and what each one refuses.
OTHER_BODIES: list[dict[str, Any]] = [
    *(
        {"prompt": "a"},
        {"prompt": ["a", "b"]},
        {"messages": BASE[CHAT]["messages"]},
        {"tokens": [1, 2]},
        {"tokens": []},
    ),
    *({"messages": [BASE[CHAT]["messages"]] * 2}, {"messages": [BASE[CHAT]["messages"]], "n": 2}),
    *({"token_ids": [5, 6]}, {"token_ids": [5], "sampling_params": {"n": 2, "stop": ["a"]}}, {"token_ids": [5] * 99}),
    *({"token_ids": [5], "sampling_params": {"n": 0}}, {"token_ids": [5], "sampling_params": 5}),
    *({"prompt": "a", "return_token_strs": True}, {"prompt": "a", "temperature": 1}, {"sampling_params": {"x": 1}}),
]


def bodies() -> list[tuple[AnyTranslation, bytes]]:
    """Every value of every field, good and bad, and what is no JSON."""
    found: list[tuple[AnyTranslation, bytes]] = []
    found += [(api.translation, text) for api in APIS for text in [*NO_JSON, b"[]", b"{}", b'{"model": "other"}']]
    for api in APIS:
        for name, good, bad in rows_of(api):
            for value in [*good, *bad]:
                found.append((api.translation, msgspec.json.encode(BASE[api.path.path] | {name: value})))
    others = map(msgspec.json.encode, OTHER_BODIES)
    return [*found, *((one, text) for text in others for one in TRANSLATIONS.values())]


async def test_both_ways_give_the_same(preparer: Preparer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMMON and all(TRANSLATIONS[api.translation.name] is api.translation for api in ALL_APIS)
    texts = bodies()
    monkeypatch.setattr(preparing, "INLINE_BYTES", 10**9)
    inline = [await outcome(preparer, *one) for one in texts]
    monkeypatch.setattr(preparing, "INLINE_BYTES", -1)
    in_child = [await outcome(preparer, *one) for one in texts]
    assert len(texts) > 600
    for one, expected, found in zip(texts, inline, in_child, strict=True):
        assert found == expected, one[1][:300]
    assert (await outcome(preparer, CHAT_API.translation, b"{}", None))[0] == "INVALID_ARGUMENT"
    good = json.dumps(BASE[CHAT]).encode()
    assert await outcome(preparer, CHAT_API.translation, good, None) == (
        "UNAVAILABLE", "the model is still being loaded", "", ""
    )  # fmt: skip


async def test_large_fields_arrive_whole(preparer: Preparer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submit with large fields is sent without being parsed, and equals the one that was."""
    text = "aé👍" * 30_000
    tool = {"type": "function", "function": {"name": "f", "description": text}}
    texts = [
        (CHAT_API.translation, {"messages": [{"role": "user", "content": text}], "n": 2, "stop": ["a"]}),
        (CHAT_API.translation, {"messages": [{"role": "user", "content": text}], "tools": [tool]}),
        (CHAT_API.translation, {"messages": [{"role": "user", "content": "a"}], "tools": [tool]}),
        (COMPLETIONS_API.translation, {"prompt": [text, "a", text], "seed": 5}),
    ]
    for translation, fields in texts:
        body = json.dumps(fields).encode()
        assert len(body) > preparing.INLINE_BYTES
        found = await preparer.prepare(translation, bytearray(body), FACTS)
        assert found.bulk
        in_child = await outcome(preparer, translation, body)
        with monkeypatch.context() as inline:
            inline.setattr(preparing, "INLINE_BYTES", 10**9)
            assert await outcome(preparer, translation, body) == in_child


@pytest.mark.parametrize("name", HEAVY)
async def test_heavy_bodies_do_not_stop_the_event_loop(name: str) -> None:
    shim = Shim(connected=True)
    await shim.preparer.start()
    try:
        async with shim.http() as http, longest_step() as step:
            answer = asyncio.create_task(http.post(CHAT, content=HEAVY[name].encode()))
            sent = asyncio.create_task(shim.link.entries.get())
            await asyncio.wait({answer, sent}, return_when=asyncio.FIRST_COMPLETED)
            assert step.seconds < 0.03, "on the event loop they took 60 ms to 430 ms"
            if not sent.cancel():
                shim.end(sent.result().submit.choices[0].handle)
            assert (await answer).status_code == (400 if name in ("messages", "unknown") else 200)
    finally:
        await shim.preparer.close()


async def test_a_running_request_holds_its_submits_alone() -> None:
    """Fields without an effect, and what the parsed body took, are gone."""
    shim = Shim(connected=True)
    try:
        async with shim.http() as http:
            answer = asyncio.create_task(http.post(CHAT, content=HEAVY["lists"].encode()))
            sent = await shim.sent()
            assert 0 < shim.in_progress.num_bytes < 1000 < 4 * MIB < len(HEAVY["lists"])
            shim.end(sent.submit.choices[0].handle)
            assert (await answer).status_code == 200
        assert shim.in_progress.num_bytes == 0
    finally:
        await shim.preparer.close()


@pytest.mark.parametrize(("memory", "seconds"), [(16, 10.0), (1024, 0.05)], ids=["memory", "time"])
async def test_a_body_beyond_the_limits_of_a_child_ends_alone(
    memory: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "MEMORY_BYTES", memory * MIB)
    monkeypatch.setattr(preparing, "CPU_SECONDS", seconds)
    shim = Shim(connected=True)
    try:
        async with shim.http() as http:
            heavy = asyncio.create_task(http.post(CHAT, content=HEAVY["lists"].encode()))
            other = asyncio.create_task(http.post(TEXT, json={"prompt": "a" * 100_000}))
            shim.end((await shim.sent()).submit.choices[0].handle)
            assert (await other).status_code == 200
            error = error_of(await heavy, 413)
        assert error["message"] == (
            f"the request body of {len(HEAVY['lists'])} bytes could not be read: its child process ended; it"
            f" may use {memory} MiB of memory and {seconds:g} s of CPU time"
        )
    finally:
        await shim.preparer.close()


async def test_a_client_that_hangs_up_frees_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child would go on for up to ten seconds otherwise, and there are two of them."""
    shim = Shim(connected=True)
    freed = asyncio.Event()

    async def endless(self: TaskPool, payload: bytearray) -> bytearray:
        try:
            await asyncio.Event().wait()
        finally:
            freed.set()
        raise AssertionError

    monkeypatch.setattr(TaskPool, "run", endless)
    messages: list[Message] = [{"type": "http.request", "body": HEAVY["lists"].encode()}, {"type": "http.disconnect"}]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"test"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers, "query_string": b""}
    async with asyncio.timeout(10):
        await shim.app(scope, receive, send)
    assert freed.is_set() and shim.in_progress.num_bytes == 0
    assert [message["status"] for message in sent if message["type"] == "http.response.start"] == [499]


async def test_a_bug_in_a_child_is_a_bug(preparer: Preparer) -> None:
    with pytest.raises(RuntimeError, match="KeyError"):
        await preparer.prepare(
            Translation("other", CHAT_API.request, CHAT_API.translation.submits), bytearray(100_000), FACTS
        )


async def test_a_body_for_which_the_system_has_no_process_may_be_sent_again(
    preparer: Preparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", refuse)
    with pytest.raises(TandemError, match="was not read: no process .*Too many open files.*; try again") as caught:
        await preparer.prepare(CHAT_API.translation, bytearray(HEAVY["messages"].encode()), FACTS)
    assert caught.value.code == "UNAVAILABLE" and caught.value.retry_after
