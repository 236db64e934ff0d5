"""A short fuzzer of chat templates and of what a tokenizer gets: nothing is raised but INVALID_ARGUMENT, and no
stand-in for a control token's characters stays in a prompt."""

import asyncio
import json
import re
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import demo
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.chat_renderer import ChatRenderer, RendererSettings
from services.tokenizer.find_template import find_template
from services.tokenizer.guarded_encoding import GuardedEncoding
from services.tokenizer.prompt_encoder import PromptEncoder
from services.tokenizer.unreadable import refusing_unreadable
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.parts import InlineRendering, connected
from tests.tokenizer.templates import LLAMA3, MISTRAL, QWEN3

some = settings(max_examples=250, deadline=None, derandomize=True, database=None)
PRIVATE = re.compile("[\ue000-\uf8ff]|u(?:e[0-9a-f]|f[0-8])[0-9a-f]{2}", re.IGNORECASE)
PIECES = st.sampled_from(
    [
        *("<|im_end|>", "<|im_", "end|>", "<think>", "</think>", "<tool_call>", "<", ">", "\ue000", "\ue001", "\uf8ff"),
        *("\\ue000", "\\", '"', "\ud800", "\udfff", "\0", "\n", " ", "a" * 5000, "<" * 3000, "🙂", "\u202e", "\ufffe"),
    ]
)
TEXTS = st.lists(PIECES, max_size=6).map("".join) | st.text(max_size=20)
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"]) | TEXTS, "content": VALUES},
        optional={"reasoning": VALUES, "tool_calls": VALUES, "name": VALUES, "tool_call_id": VALUES},
    ),
    max_size=4,
)
PARTS = st.sampled_from(
    [
        *("{{ messages[0].content }}", "{{ messages | tojson }}", "{{ messages }}", "{{", "{% if %}", "<|im_end|>"),
        *("{% for m in messages %}", "{% endfor %}", "{{ m.content | trim | reverse }}", "{{ '%c' % 57344 }}"),
        *("{{ messages[0].content | tojson(ensure_ascii=true) | upper }}", "{{ '\\ue000' }}", "\ue001"),
        "{{ messages[0].content | urlencode }}",
    ]
)


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(demo.CHECKPOINT)


@cache
def guard() -> GuardedEncoding:
    return GuardedEncoding(vocabulary())


@cache
def renderer(template: str | None) -> ChatRenderer:
    return ChatRenderer(RendererSettings(template, {}, trust_requests=True, control_tokens=guard().control_tokens))


TEMPLATES = [find_template(demo.CHECKPOINT, None), QWEN3, LLAMA3, MISTRAL]


async def _encoded(template: str | None, submit: text_pb2.TextSubmit) -> list[int]:
    engines, link = connected()
    link.peer.engine.max_model_len = 10**6
    return await PromptEncoder(vocabulary(), InlineRendering(renderer(template)), engines, guard()).encode(submit)


def ids_of(template: str | None, chat: text_pb2.ChatInput, tools: bytes = b"") -> list[int] | None:
    """Returns the ids; None: the chat was refused."""
    submit = text_pb2.TextSubmit(chat=chat, output=text_pb2.OutputSpec(tools_json=tools))
    try:
        with refusing_unreadable():
            return asyncio.run(_encoded(template, submit))
    except TandemError as error:
        assert error.code == "INVALID_ARGUMENT"
        return None


def _own(chat: text_pb2.ChatInput, tools: bytes) -> set[str]:
    """Returns the request's own private-use characters, and their escapes."""
    raw = [chat.messages_json, chat.template_kwargs_json, chat.documents_json, tools]
    found = set(PRIVATE.findall(b" ".join(raw).decode(errors="replace")))
    escaped = {chr(int(one[1:], 16)) for one in found if len(one) > 1}
    return found | escaped | {f"u{ord(one):x}" for one in found | escaped if len(one) == 1}


@some
@given(messages=MESSAGES, tools=VALUES, kwargs=st.dictionaries(TEXTS, VALUES, max_size=2), which=st.integers(0, 3))
def test_chats_of_any_values(messages: Any, tools: Any, kwargs: Any, which: int) -> None:
    chat = text_pb2.ChatInput(
        messages_json=json.dumps(messages).encode(),
        template_kwargs_json=json.dumps(kwargs).encode(),
        documents_json=json.dumps(tools).encode(),
        add_generation_prompt=True,
    )
    tools_json = json.dumps(tools).encode()
    ids = ids_of(TEMPLATES[which], chat, tools_json)
    if ids is not None:
        assert set(PRIVATE.findall(vocabulary().decode(ids, False))) <= _own(chat, tools_json)


@some
@given(raw=st.binary(max_size=40) | TEXTS.map(lambda text: text.encode(errors="surrogatepass")))
def test_chats_of_any_bytes(raw: bytes) -> None:
    ids_of(TEMPLATES[0], text_pb2.ChatInput(messages_json=raw))
    content = b'[{"role": "user", "content": "' + raw + b'"}]'
    ids_of(TEMPLATES[1], text_pb2.ChatInput(messages_json=content))
    ids_of(TEMPLATES[0], text_pb2.ChatInput(messages_json=content, template_kwargs_json=raw), raw)


@settings(some, max_examples=150)
@given(template=st.lists(PARTS, max_size=5).map("".join), content=TEXTS)
def test_templates_of_requests(template: str, content: str) -> None:
    messages = json.dumps([{"role": "user", "content": content}]).encode()
    chat = text_pb2.ChatInput(messages_json=messages, chat_template="{{ messages[0].content }}" + template)
    ids_of(TEMPLATES[0], chat)


def test_very_long_runs() -> None:
    for part in ("<|im_end|>", "<", ">", "\ue000", "<|im_end|> ", "a"):
        text = part * (300_000 // len(part))
        chat = text_pb2.ChatInput(messages_json=json.dumps([{"role": "user", "content": text}]).encode())
        ids = ids_of(TEMPLATES[0], chat)
        assert ids is not None and [one for one in ids if one < 9] == [1, 2]
