"""What a worker answers: prompts, refusals, parts of long texts, and the results of probes."""

import json
from typing import Any

import msgspec
import pytest

from services.rpc.generated import text_pb2
from services.tokenizer import rendering_worker
from services.tokenizer.chat_renderer import RendererSettings
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.rendering_worker import MAX_PROBES, Call, Reply, TextLimits, cut_prompt, make
from services.tokenizer.text_length import CUT_WINDOW

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
ANY = TextLimits(2**30)


def answered(*calls: tuple[list[Any] | bytes, TextLimits], tools: bytes = b"") -> Reply:
    """Returns the reply to the last of these calls of one worker: messages, or bytes instead of JSON, and limits."""
    answer = make(msgspec.msgpack.encode(RendererSettings(TEMPLATE, {})))
    replies = []
    for messages, limits in calls:
        given = messages if isinstance(messages, bytes) else json.dumps(messages).encode()
        chat = text_pb2.ChatInput(messages_json=given).SerializeToString()
        replies.append(answer(msgspec.msgpack.encode(Call(chat, tools, limits))))
    return msgspec.msgpack.decode(replies[-1], type=Reply)


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def test_a_prompt_comes_back() -> None:
    reply = answered(([user("a😀")], ANY))
    assert (reply.prompt, reply.refusal, reply.leaves_tools_out) == (PromptText("a😀"), None, False)


@pytest.mark.parametrize(
    "wrong", [b"{", b"5", b"[5]", b"\xff", b'[{"role": "user", "content": "\\ud800"}]', b"[" * 9999]
)
def test_an_error_is_a_refusal(wrong: bytes) -> None:
    reply = answered((wrong, ANY))
    assert reply.prompt is None and reply.refusal is not None and reply.probes == {}


def test_an_error_may_quote_what_is_no_text() -> None:
    answer = make(msgspec.msgpack.encode(RendererSettings("{{ raise_exception(messages[0].content) }}", {})))
    chat = text_pb2.ChatInput(messages_json=b'[{"role": "user", "content": "a\\ud800"}]').SerializeToString()
    reply = msgspec.msgpack.decode(answer(msgspec.msgpack.encode(Call(chat, b"", ANY))), type=Reply)
    assert reply.refusal is not None and reply.refusal.message.endswith("a?")


def test_a_long_text_is_counted_or_cut() -> None:
    text = "one two " * 20_000
    reply = answered(([user(text)], TextLimits(len(text) - 1)))
    assert (reply.prompt, reply.num_characters) == (None, len(text))
    for drop_end in (False, True):
        reply = answered(([user(text)], TextLimits(100 + CUT_WINDOW, 100, drop_end)))
        assert reply.prompt is not None and 100 <= len(reply.prompt.text) <= 100 + CUT_WINDOW
        assert (text.startswith if drop_end else text.endswith)(reply.prompt.text)


def test_a_cut_keeps_the_spans_of_what_is_left() -> None:
    prompt = PromptText("one two three four five", ((0, 3), (4, 13), (19, 23)))
    assert cut_prompt(prompt, 14, drop_end=True) == PromptText("one two three four", ((0, 3), (4, 13)))
    cut = cut_prompt(prompt, 12, drop_end=False)
    assert cut == PromptText(" two three four five", ((1, 10), (16, 20)))
    assert cut_prompt(prompt, 99, drop_end=False) == prompt


def test_results_of_probes_come_back_with_each_quick_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering_worker, "QUICK_SECONDS", 10)
    first, again = answered(([user("a")], ANY)), answered(*[([user("a")], ANY)] * 2)
    assert first.probes == again.probes and len(first.probes) == 2, "the variables, and the role at the beginning"
    roles = [{"role": f"role{number}", "content": "a"} for number in range(MAX_PROBES)]
    assert answered((roles, ANY)).probes == {}
    monkeypatch.setattr(rendering_worker, "QUICK_SECONDS", -1)
    assert answered(([user("a")], ANY)).probes == {}


def test_tools_that_are_left_out_are_told() -> None:
    assert answered(([user("a")], ANY), tools=b"[{}]").leaves_tools_out
