"""Random chats, variables, templates and texts: nothing but a prompt or a TandemError comes out."""

import json
from functools import cache
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demo
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.chat_renderer import ChatRenderer, RendererSettings
from services.tokenizer.chat_rendering import ChatRendering
from services.tokenizer.prompt_encoder import PromptEncoder
from services.tokenizer.unreadable import refusing_unreadable
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.checkpoint_templates import NAMES, SOURCES, source
from tests.tokenizer.parts import connected, inline_rendering

NUM_TEMPLATES = 60
VOCABULARY = Vocabulary(demo.CHECKPOINT)
BOUNDED = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
TEXTS = st.text(max_size=8) | st.sampled_from(
    [
        "",
        "<think>",
        "</think>",
        "<|im_end|>",
        "{{ 1 }}",
        "{% if %}",
        "\0",
        "\ud800",
        "\ue000\uf8ff",
        "user",
        "{}",
        "null",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
# Values of any type, but often those that templates expect.
CALLS = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": TEXTS, "arguments": TEXTS | VALUES})}) | VALUES,
    max_size=2,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "developer", "function"]) | VALUES},
        optional={
            "content": TEXTS | VALUES,
            "tool_calls": CALLS | VALUES,
            "tool_call_id": TEXTS,
            "name": VALUES,
            "reasoning_content": TEXTS | VALUES,
        },
    )
    | VALUES,
    max_size=4,
)
TOOLS = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": TEXTS}, optional={"parameters": VALUES})})
    | VALUES,
    max_size=2,
)
VARIABLES = st.dictionaries(
    st.sampled_from(
        ["enable_thinking", "documents", "reasoning_effort", "tools_in_user_message", "date_string", "range"]
    ),
    VALUES,
    max_size=2,
)
# Of templates of requests: they may fit together, and may take all time and memory.
PIECES = (
    *("{{ messages }}", "{{ messages[0].content }}", "{% for m in messages %}", "{% endfor %}", "{% if tools %}"),
    *(
        "{% endif %}",
        "{% set x = messages %}",
        "{{ x|tojson }}",
        "{{ x[1:]|length }}",
        "{% macro f(a) %}",
        "{{ f(1) }}",
    ),
    *("{% endmacro %}", "{{ 'a' * 10 ** 9 }}", "{{ x.__class__ }}", "{% break %}", "{{ range(99999)|list }}"),
    *(
        "{{ namespace(a=1) }}",
        "{{ raise_exception('no') }}",
        "{{ strftime_now('%999999d') }}",
        "{% generation %}",
        "{#",
    ),
    *(
        "{% endgeneration %}",
        "{{ '%s' % x }}",
        "{{ '%99999999d' % 1 }}",
        "{{ '\\ud800' }}",
        "{{ lipsum(9) }}",
        "{{ f(f) }}",
    ),
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
)


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@cache
def renderer(name: str) -> ChatRenderer:
    return ChatRenderer(RendererSettings(source(name), SOURCES[name]["variables"]))


@settings(BOUNDED, max_examples=150)
@given(st.sampled_from(NAMES), MESSAGES, TOOLS, VARIABLES, st.booleans())
def test_any_chat_with_the_templates_of_checkpoints(
    name: str, messages: list[Any], tools: list[Any], variables: dict[str, Any], continues: bool
) -> None:
    chat = text_pb2.ChatInput(
        messages_json=encoded(messages), template_kwargs_json=encoded(variables), continue_final_message=continues
    )
    try:
        with refusing_unreadable():
            assert renderer(name).render(chat, encoded(tools)).text.encode() is not None
    except TandemError as error:
        assert error.code == "INVALID_ARGUMENT" and error.message


async def test_any_template_of_a_request() -> None:
    """In a worker with little time: whatever ends it, the request gets an error and the next one its answer."""
    rendering = ChatRendering(RendererSettings(None, {}, trust_requests=True), 0.2)
    encoder = PromptEncoder(VOCABULARY, rendering, connected()[0])
    random = Random(7)
    hello = text_pb2.ChatInput(messages_json=b'[{"role": "user", "content": "Hi"}]')
    try:
        for _ in range(NUM_TEMPLATES):
            hello.chat_template = "".join(random.choices(PIECES, k=random.randint(1, 6)))
            try:
                assert isinstance(await encoder.render(hello, b"[]"), str)
            except TandemError as error:
                assert error.code == "INVALID_ARGUMENT" and error.message
        hello.chat_template = "{{ messages[0].content }}"
        assert await encoder.render(hello, b"") == "Hi"
    finally:
        await rendering.close()


@BOUNDED
@given(st.lists(TEXTS | st.text(), max_size=6), st.integers(1, 30), st.booleans())
async def test_any_text(parts: list[str], longest: int, drop_end: bool) -> None:
    engines, link = connected()
    link.peer.engine.max_model_len = 2**20
    encoder = PromptEncoder(VOCABULARY, inline_rendering(None), engines)
    text = "".join(parts).encode(errors="replace").decode()
    whole = await encoder.encode(text_pb2.TextSubmit(text=text_pb2.TextInput(text=text)))
    assert VOCABULARY.decode(whole, skip_special_tokens=False) == text
    truncation = text_pb2.Truncation(max_tokens=longest, drop_end=drop_end)
    part = await encoder.encode(text_pb2.TextSubmit(text=text_pb2.TextInput(text=text), truncation=truncation))
    assert part == (whole[:longest] if drop_end else whole[max(0, len(whole) - longest) :])
