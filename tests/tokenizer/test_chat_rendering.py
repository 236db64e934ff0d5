"""Where chats are rendered, and that a template that takes too much ends its own request alone."""

import asyncio
import errno
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.chat_renderer import RendererSettings
from services.tokenizer.chat_rendering import (
    INLINE_BYTES,
    INLINE_OBJECTS,
    LARGE_BYTES,
    NUM_WORKERS,
    TRUSTED,
    ChatRendering,
    TooManyCharactersError,
)
from services.tokenizer.control_tokens import ControlToken
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.rendering_worker import TextLimits
from tests.tokenizer.loop_lag import measured_lag

SECONDS = 30  # the longest that a test waits
TIMEOUT = 0.4  # of CPU time
MODELS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    "{% for i in range(n or 0) %}{% for j in range(n) %}{% endfor %}{% endfor %}"
)
ANY = TextLimits(2**30)
# What a template of a request may do, each of which held a thread, or the memory, of the tokenizer process.
HOSTILE = {
    "an endless loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "memory": "{% set n = namespace(t='x' * 1000000) %}{% for a in range(40) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "a huge text": "{{ messages[0].content * 10000000000 }}",
    "a call that never returns": "{{ 10 ** 100000000 }}",
}


@pytest.fixture
async def rendering() -> AsyncIterator[ChatRendering]:
    made = ChatRendering(RendererSettings(MODELS, {}, trust_requests=True), TIMEOUT)
    yield made
    await made.close()


def chat(content: str = "Hi", number: int = 1, **fields: Any) -> text_pb2.ChatInput:
    messages = [{"role": "user", "content": content}] * number
    return text_pb2.ChatInput(messages_json=json.dumps(messages).encode(), **fields)


async def render(rendering: ChatRendering, given: text_pb2.ChatInput, limits: TextLimits = ANY) -> str:
    async with asyncio.timeout(SECONDS):
        return (await rendering.render(given, b"", limits)).text


def calls_of_workers(rendering: ChatRendering, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the length of the payload of each call of a worker."""
    calls: list[int] = []
    for pool in rendering._pools.values():
        run = pool.run

        async def counted(payload: bytes, run: Any = run) -> bytearray:
            calls.append(len(payload))
            return bytearray(await run(payload))

        monkeypatch.setattr(pool, "run", counted)
    return calls


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
async def test_a_requests_template_beyond_the_limits_fails_alone(
    hostile: str, rendering: ChatRendering, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, such a template kept a thread and the interpreter's lock for ever, or took the process's memory."""
    await render(rendering, chat())
    await render(rendering, chat(chat_template="{{ messages[0].content }}"))
    began = time.monotonic()
    async with measured_lag() as lag:
        theirs = asyncio.create_task(render(rendering, chat(chat_template=hostile)))
        others = 0
        while not theirs.done():
            assert await render(rendering, chat()) == "user:Hi;"
            assert await render(rendering, chat("long " * INLINE_BYTES)) == f"user:{'long ' * INLINE_BYTES};"
            others += 1
    with pytest.raises(TandemError, match=r"cannot render these messages: .* 512 MiB .* and 0.4 s"):
        await theirs
    assert others and lag.longest < 1.0, lag
    assert time.monotonic() - began < 10
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "--chat-template-timeout" in caplog.text and hostile not in caplog.text
    assert await render(rendering, chat(chat_template="{{ messages[0].content }}")) == "Hi", "the next one is rendered"


@pytest.mark.parametrize(
    "hostile",
    ["{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "{{ [].x.y }}", "{% for a in range(10 ** 9) %}{% endfor %}"],
)
async def test_a_template_that_fails_by_itself_is_refused_with_its_error(
    hostile: str, rendering: ChatRendering
) -> None:
    with pytest.raises(TandemError, match="the chat template refuses these messages") as caught:
        await render(rendering, chat(chat_template=hostile))
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "chat_template")


async def test_a_variable_that_makes_the_models_template_endless_fails_that_request(rendering: ChatRendering) -> None:
    """Before, it ran on the event loop: five billion rounds of an empty loop."""
    await render(rendering, chat())
    async with measured_lag() as lag:
        with pytest.raises(TandemError, match=r"and 0.4 s of CPU time") as caught:
            await render(rendering, chat(template_kwargs_json=b'{"n": 70000}'))
    assert caught.value.param == "messages"
    assert lag.longest < 1.0, lag


async def test_variables_that_take_long_never_come_to_the_event_loop(
    rendering: ChatRendering, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of_workers(rendering, monkeypatch)
    slow, quick = chat(template_kwargs_json=b'{"n": 1500}'), chat(template_kwargs_json=b'{"n": 2}')
    for given in (slow, slow, slow, quick, quick, quick):
        assert await render(rendering, given) == "user:Hi;"
    assert len(calls) in (4, 5), "the slow ones, the first quick one, and perhaps the one after its probes"


async def test_small_usual_chats_are_rendered_here_and_all_others_by_a_worker(
    rendering: ChatRendering, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await render(rendering, chat())
    calls = calls_of_workers(rendering, monkeypatch)
    await render(rendering, chat("other words"))
    assert calls == []
    called = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]
    for number, given in enumerate(
        [
            chat("x" * INLINE_BYTES),
            chat("", INLINE_OBJECTS + 1),
            chat(chat_template="{{ messages[0].content }}"),
            text_pb2.ChatInput(messages_json=json.dumps(called).encode()),
        ]
    ):
        await render(rendering, given)
        assert len(calls) == number + 1


async def usual_chats_pass(rendering: ChatRendering, slow: "list[asyncio.Task[str]]") -> None:
    """Chats that a child process renders have their answers while the slow ones wait for each other to time out."""
    for _ in range(5):
        assert "long" in await render(rendering, chat("long " * INLINE_BYTES))
    assert not slow[-1].done(), "they wait for each other"
    for task in slow:
        with pytest.raises(TandemError, match="CPU time"):
            await task


async def test_templates_of_requests_never_keep_the_models_template_waiting(rendering: ChatRendering) -> None:
    endless = chat(chat_template=HOSTILE["an endless loop"])
    hostile = [asyncio.create_task(render(rendering, endless)) for _ in range(2 * NUM_WORKERS[TRUSTED])]
    await usual_chats_pass(rendering, hostile)


async def test_large_chats_never_keep_usual_ones_waiting(rendering: ChatRendering) -> None:
    """These are too large for their time: many messages, of which the template reads nothing."""
    text = "[" + '{"role": "user", "content": "", "x": [{},{},{},{}]},' * (LARGE_BYTES // 4) + "5]"
    large = [asyncio.create_task(render(rendering, text_pb2.ChatInput(messages_json=text.encode()))) for _ in range(2)]
    await usual_chats_pass(rendering, large)


async def test_variables_that_take_long_never_keep_usual_chats_waiting(rendering: ChatRendering) -> None:
    hostile = [
        asyncio.create_task(render(rendering, chat(template_kwargs_json=f'{{"n": {90000 + number}}}'.encode())))
        for number in range(2)
    ]
    known = chat("long " * INLINE_BYTES, template_kwargs_json=b'{"n": 2}')
    await usual_chats_pass(rendering, hostile)
    await render(rendering, known)
    slow = asyncio.create_task(render(rendering, chat(template_kwargs_json=b'{"n": 90000}')))
    assert "long" in await render(rendering, known)
    assert not slow.done()
    with pytest.raises(TandemError, match="CPU time"):
        await slow


async def test_a_cancelled_rendering_frees_its_process(rendering: ChatRendering) -> None:
    theirs = asyncio.create_task(render(rendering, chat(chat_template="{{ messages[0].content }}")))
    await asyncio.sleep(0)
    theirs.cancel()
    with pytest.raises(asyncio.CancelledError):
        await theirs
    assert await render(rendering, chat(chat_template="{{ messages[0].content }}")) == "Hi"


async def test_a_text_beyond_its_limit_does_not_come_back(rendering: ChatRendering) -> None:
    theirs = chat(chat_template="{{ messages[0].content * 100000 }}")
    with pytest.raises(TooManyCharactersError) as caught:
        await render(rendering, theirs, TextLimits(199_999))
    assert caught.value.num_characters == 200_000
    assert len(await render(rendering, theirs, TextLimits(200_000))) == 200_000


async def test_what_cannot_be_read_is_refused_by_a_worker_too(rendering: ChatRendering) -> None:
    for messages in (b"[" * INLINE_BYTES, b"[5]", b"5"):
        with pytest.raises(TandemError) as caught:
            await render(rendering, text_pb2.ChatInput(messages_json=messages))
        assert caught.value.code == "INVALID_ARGUMENT"


async def test_a_template_that_leaves_tools_out_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rendering = ChatRendering(RendererSettings(MODELS, {}), TIMEOUT)
    try:
        for _ in range(3):
            await rendering.render(chat(), b'[{"function": {"name": "f"}}]', ANY)
    finally:
        await rendering.close()
    [line] = caplog.messages
    assert "leaves tools out" in line and "--chat-template" in line


async def test_no_process_is_left() -> None:
    rendering = ChatRendering(RendererSettings(MODELS, {}), TIMEOUT)
    await rendering.start()
    pid = rendering._server.pid
    os.kill(pid, 0)
    await rendering.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("number", [1, INLINE_OBJECTS + 1], ids=["inline", "by a worker"])
async def test_control_tokens_in_content_are_plain_wherever_a_chat_is_rendered(number: int) -> None:
    made = ChatRendering(RendererSettings(MODELS, {}, control_tokens=(ControlToken("<|end|>", True),)), 30)
    try:
        for _ in range(2):  # the first one is rendered by a worker in any case
            prompt = await made.render(chat("a<|end|>", number), b"", ANY)
            spans = tuple((index * 14 + 6, index * 14 + 13) for index in range(number))
            assert prompt == PromptText("user:a<|end|>;" * number, spans)
    finally:
        await made.close()


async def test_a_chat_for_which_the_system_has_no_process_may_be_sent_again(
    rendering: ChatRendering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", refuse)
    with pytest.raises(TandemError, match="no process could be forked for a call .*Too many open files") as caught:
        await render(rendering, chat(chat_template="{{ messages[0].content }}"))
    assert caught.value.code == "UNAVAILABLE" and caught.value.retry_after
    monkeypatch.undo()
    assert await render(rendering, chat(chat_template="{{ messages[0].content }}")) == "Hi"
