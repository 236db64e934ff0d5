"""Calls and results of a conversation reach the model with every template: none is lost, none is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rpc.errors import TandemError
from services.tokenizer.render import ChatTemplate
from tests.tokenizer import checkpoint_templates
from tests.tokenizer.checkpoint_templates import NAMES, WITHOUT_CONTENT, rendered
from tests.tokenizer.templates import CHATML, LLAMA3, QWEN3

GPT_OSS = checkpoint_templates.source("gpt-oss")
USER = {"role": "user", "content": "Hi."}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
OPENAI_ID = "call_0123456789abcdefghijABCD"


def call(arguments: str, name: str = "f", identity: str = "abcdefgh1") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def result(content: str, identity: str = "abcdefgh1", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content, **more}


def render(source: str, *messages: dict[str, Any]) -> str:
    return ChatTemplate(source, {}).render(
        list(messages), None, {}, add_generation_prompt=False, continue_final_message=False
    )


PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}<CALL>{% endfor %};"
PLAIN += "{% endfor %}"
AS_TEXT = PLAIN.replace("CALL", "{{ c.function.name }} {{ c.function.arguments }}")
AS_OBJECT = PLAIN.replace("CALL", "{{ c.function.name }} {{ c.function.arguments | tojson }}")


@pytest.mark.parametrize(
    ("arguments", "as_object", "as_text"),
    [
        ('{"b":1,"a":"ß"}', '{"b": 1, "a": "ß"}', '{"b":1,"a":"ß"}'),
        ({"b": 1, "a": "ß"}, '{"b": 1, "a": "ß"}', '{"b": 1, "a": "ß"}'),
        ("", "{}", "{}"),
        (None, "{}", "{}"),
        ({}, "{}", "{}"),
    ],
)
def test_arguments_are_an_object_or_text_as_the_template_wants(arguments: Any, as_object: str, as_text: str) -> None:
    message = calling(call(arguments))
    assert render(AS_OBJECT, USER, message) == f"user:Hi.;assistant:<f {as_object}>;"
    assert render(AS_TEXT, USER, message) == f"user:Hi.;assistant:<f {as_text}>;"


BROKEN = ['{"city": "Kö', "Köln", "[1, 2]", '"text"', "null", "[" * 100_000, "1" * 5000, '{"a": "\\ud800"}']


@pytest.mark.parametrize("arguments", BROKEN)
def test_broken_arguments_are_text(arguments: str) -> None:
    """Verbatim in the call if the template prints text as it is; otherwise in the content."""
    message = calling(call(arguments), content="So:")
    assert render(AS_TEXT, USER, message) == f"user:Hi.;assistant:So:<f {arguments}>;"
    line = f'{{"name": "f", "arguments": {arguments}}}'
    assert render(AS_OBJECT, USER, message) == f"user:Hi.;assistant:So:\n{line};"
    assert render(AS_OBJECT, USER, calling(call(arguments))) == f"user:Hi.;assistant:{line};"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arguments", [*BROKEN[:5], BROKEN[-1]])
def test_no_template_refuses_or_loses_a_broken_call(name: str, arguments: str) -> None:
    messages = [
        *(USER, calling(call(arguments, "get_weather")), result("No JSON.")),
        *({"role": "assistant", "content": "Sorry."}, {"role": "user", "content": "Again."}),
    ]
    text = rendered(name, messages, TOOLS)
    assert [part for part in ("get_weather", arguments, "No JSON.", "Sorry.", "Again.") if part not in text] == []


def test_calls_that_a_template_leaves_out_are_lines_of_the_content() -> None:
    lines = '{"name": "f", "arguments": {"a": 1}}\n{"name": "ü\\"", "arguments": {}}'
    message = calling(call('{"a": 1}'), call("{}", 'ü"', "abcdefgh2"), content="So:")
    text = render(CHATML, USER, message, result("7"), result("8", "abcdefgh2"))
    assert f"assistant\nSo:\n{lines}<|im_end|>" in text
    assert "<|im_start|>tool\n7<|im_end|>\n<|im_start|>tool\n8<|im_end|>" in text


def test_results_that_a_template_leaves_out_are_one_message_of_the_user() -> None:
    source = AS_OBJECT.replace("{{ m.role }}", "{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.role }}")
    messages = [USER, calling(call("{}"), call("{}", "g", "abcdefgh2")), result("7"), result("8", "abcdefgh2"), USER]
    assert render(source, *messages) == (
        "user:Hi.;assistant:<f {}><g {}>;user:Result of f:\n7\n\nResult of g:\n8;user:Hi.;"
    )


def test_results_after_a_call_that_became_text_are_text_where_the_template_refuses_them() -> None:
    """gpt-oss' template takes results only after calls."""
    text = render(GPT_OSS, USER, calling(call("{")), result("No JSON."), {"role": "assistant", "content": "b"})
    assert '<|message|>{"name": "f", "arguments": {}' in text
    assert "<|start|>user<|message|>Result of f:\nNo JSON.<|end|>" in text


@pytest.mark.parametrize("source", [LLAMA3, GPT_OSS], ids=["refused", "left out"])
def test_several_calls_become_messages_of_one_call_each(source: str) -> None:
    messages = [
        *(USER, calling(call('{"a": 1}', "f"), call('{"a": 2}', "g", "abcdefgh2"))),
        *(result("second", "abcdefgh2"), result("first"), USER),
    ]
    parts = [
        *(USER, calling(call('{"a": 1}', "f")), result("first")),
        *(calling(call('{"a": 2}', "g", "abcdefgh2")), result("second", "abcdefgh2"), USER),
    ]
    text = render(source, *messages)
    assert text == render(source, *parts)
    assert [text.count(part) for part in ("first", "second")] == [1, 1]


def test_reasoning_and_content_beside_a_call_are_one_where_the_template_takes_one() -> None:
    message = calling(call("{}", "f"), content="I look.", reasoning="They ask.")
    text = rendered("gpt-oss", [USER, message], TOOLS, prompt=False)
    assert "<|channel|>analysis<|message|>They ask.\n\nI look.<|end|>" in text and "to=functions.f" in text


def test_content_that_is_null_is_empty_text_where_the_template_needs_some() -> None:
    """Qwen 3's own template raises for a message without content."""
    without = {"role": "assistant", "tool_calls": [call("{}")]}
    assert rendered("qwen3", [USER, without], None) == rendered("qwen3", [USER, {**without, "content": ""}], None)


def test_ids_that_a_template_refuses_become_nine_letters_and_digits() -> None:
    text = rendered("mistral-small-3.2", [USER, calling(call("{}", "f", OPENAI_ID)), result("7", OPENAI_ID)], TOOLS)
    identity = text.partition("[CALL_ID]")[2].partition("[ARGS]")[0]
    assert len(identity) == 9 and identity.isalnum() and f"[TOOL_RESULTS]{identity}[TOOL_CONTENT]7" in text
    assert "abcdefgh1" in rendered("mistral-small-3.2", [USER, calling(call("{}")), result("7")], TOOLS)
    assert OPENAI_ID in rendered("kimi-k2", [USER, calling(call("{}", "f", OPENAI_ID)), result("7", OPENAI_ID)], TOOLS)


def test_the_older_functions_equal_tools() -> None:
    older = [
        *(USER, {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}),
        {"role": "function", "name": "f", "content": "seven"},
    ]
    newer = [USER, calling(call('{"a": 1}')), result("seven")]
    assert render(QWEN3, *older) == render(QWEN3, *newer)


def test_a_name_comes_from_the_call() -> None:
    source = AS_OBJECT.replace("{{ m.content }}", "{{ m.name }}={{ m.content }}")
    text = render(source, USER, calling(call("{}", "get_weather")), result("7"))
    assert text.endswith("tool:get_weather=7;")


def test_an_error_names_the_message_of_the_request() -> None:
    """The calls of message 1 became two messages."""
    messages = [USER, calling(call("{}"), call("{}", "g", "abcdefgh2")), result("1"), result("2", "abcdefgh2")]
    with pytest.raises(TandemError, match=r"messages\[4\]: the chat template renders no message of role 'martian'"):
        render(GPT_OSS, *messages, {"role": "martian", "content": "x"})


def test_messages_are_not_changed() -> None:
    messages = [USER, calling(call('{"a": 1}'), call("{"), content="b"), result("1"), {"role": "tool", "content": "2"}]
    before = json.dumps(messages)
    for source in (AS_OBJECT, AS_TEXT, LLAMA3, CHATML):
        render(source, *messages)
    assert json.dumps(messages) == before


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Returns messages, the words that must be in the prompt, and those that templates may leave out."""
    words: list[str] = []

    def word() -> str:
        words.append(f"word{len(words):03}x")
        return words[-1]

    messages: list[dict[str, Any]] = [{"role": "user", "content": word()}]
    optional: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        calls, results = [], []
        for _ in range(draw(st.integers(1, 3))):
            identity = draw(st.sampled_from([f"id{len(words):07}", f"call_{len(words):024}"]))
            name, text = word(), word()
            arguments = draw(
                st.sampled_from([f'{{"k": "{text}"}}', f'{{"k": "{text}', f'["{text}"]', f'{{"{text}": {{}}}}'])
            )
            calls.append(call(arguments, name, identity))
            results.append(result(word(), identity, **draw(st.sampled_from([{}, {"name": name}]))))
        more: dict[str, Any] = {}
        if draw(st.booleans()):
            more["content"] = word()
            optional.append(more["content"])
        if draw(st.booleans()):
            more["reasoning"] = "thoughts"
        messages += [calling(*calls, **more), *draw(st.permutations(results))]
    messages += [{"role": "assistant", "content": word()}, {"role": "user", "content": word()}]
    return messages, [one for one in words if one not in optional], optional


@given(conversations())
def test_nothing_is_lost_with_any_template(conversation: tuple[list[dict[str, Any]], list[str], list[str]]) -> None:
    messages, words, optional = conversation
    for name in NAMES:
        text = rendered(name, messages, TOOLS)
        assert [word for word in words if word not in text] == [], name
        if name not in WITHOUT_CONTENT | {"gpt-oss"}:
            assert [word for word in optional if word not in text] == [], name
