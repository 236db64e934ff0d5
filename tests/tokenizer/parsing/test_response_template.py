"""response_template: the templates that transformers documents, or tests itself with, parse as it parses them.

What tandem keeps and transformers drops, or what has no table, is said where it is tested.
"""

import copy
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.parsing.response_pattern import Anything, Gap, Group, Text, Untranslatable, elements_of
from services.tokenizer.parsing.response_template import reasoning_table, tools_table
from tests.tokenizer.parsing.table_runs import deadline, message_of, pieces_of

parse_response = pytest.importorskip("transformers.utils.chat_parsing", reason="in newer versions").parse_response

CALL = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
XML = r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>"
GLM_XML = r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
THINK = {"open": "<think>", "close": "</think>", "content": "text"}
# The shapes of transformers' tests/utils/test_chat_parsing.py, and of the same templates with other markers.
SMOLLM: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": THINK,
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": CALL,
        },
        "content": {"close": "<|im_end|>", "content": "text"},
    },
}
ERNIE: dict[str, Any] = {
    "start_anchor": "Assistant:",
    "fields": {
        "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>", "content": "text"},
        "content": {"open": "<response>\n", "close_pattern": r"\n?</response>", "content": "text"},
        "tool_calls": SMOLLM["fields"]["tool_calls"],
    },
}
QWEN3_XML: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": THINK,
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": XML,
                "value_parser": {"name": "json", "args": {"allow_non_json": True}},
            },
            "transform": NAMED,
        },
        "content": {},
    },
}
GLM: dict[str, Any] = {
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<tool_call>(?P<name>[^\n<]+)",
            "close": "</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": GLM_XML,
                "value_parser": {"name": "json", "args": {"allow_non_json": True}},
            },
            "transform": NAMED,
        },
        "content": {},
    },
}
LIST: dict[str, Any] = {
    "start_anchor": "[/INST]",
    "fields": {
        "tool_calls": {
            "open": "[TOOL_CALLS]",
            "content": "json",
            "transform_each": True,
            "transform": {"function": {"name": "{name}", "arguments": "{arguments}"}},
        },
        "content": {},
    },
}
NAME_JSON: dict[str, Any] = {
    "start_anchor": "[/INST]",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\[TOOL_CALLS\](?P<name>[\w.-]+)\[ARGS\]",
            "close_pattern": r"\[END\]",
            "repeats": True,
            "content": "json",
            "transform": NAMED,
        },
        "content": {},
    },
}
COHERE: dict[str, Any] = {
    "start_anchor": "<|CHATBOT_TOKEN|>",
    "fields": {
        "content": {"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>"},
        "thinking": {"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
        "tool_calls": {
            "open": "<|START_ACTION|>",
            "close": "<|END_ACTION|>",
            "content": "json",
            "transform_each": True,
            "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
        },
    },
}
GPT_OSS: dict[str, Any] = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
        "content": {"open": "<|channel|>final<|message|>", "close": "<|end|>"},
        "tool_calls": {
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
            "close": "<|call|>",
            "repeats": True,
            "content": "json",
            "transform": NAMED,
        },
    },
}
GEMMA4_CALLS: dict[str, Any] = {
    "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
    "close": "<tool_call|>",
    "repeats": True,
    "content": "json",
    "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
    "transform": NAMED,
}
PARIS = '{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2]}}'
OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
XML_PARIS = (
    "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>"
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"properties": {"days": {"type": "integer"}}}},
    }
]
SAME: list[tuple[dict[str, Any], str]] = [
    (SMOLLM, f"<think>\nHm.\n</think>\n\n<tool_call>{PARIS}</tool_call>"),
    (SMOLLM, f"<think>a</think>Let me look.<tool_call>\n{PARIS}\n</tool_call><tool_call>\n{OSLO}\n</tool_call>"),
    (SMOLLM, "Just content."),
    (ERNIE, f"I reason.\n</think>\n\n<tool_call>\n{PARIS}\n</tool_call>\n"),
    (ERNIE, "I reason.\n</think>\n\n<response>\nHello!\n</response>\n"),
    (QWEN3_XML, f"<think>\na\n</think>\n\n<tool_call>\n{XML_PARIS}\n</tool_call>"),
    (QWEN3_XML, f"Look: <tool_call>{XML_PARIS}</tool_call><tool_call>\n{XML_PARIS}\n</tool_call>"),
    (GLM, "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"),
    (GLM, "Yes.<tool_call>get_weather<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"),
    (GLM, "<tool_call>get_weather</tool_call>"),
    (LIST, f"[TOOL_CALLS][{PARIS}, {OSLO}]"),
    (NAME_JSON, '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[END][TOOL_CALLS]now[ARGS]{}[END]'),
]


def ours(template: dict[str, Any], parts: list[str], added: set[str]) -> tuple[str, str, list[tuple[str, Any]]]:
    tools, reasoning = tools_table(template, added), reasoning_table(template, added)
    content, thinking, calls = message_of(pieces_of(tools, reasoning, parts, functions=TOOLS, added=added))
    return content.strip(), thinking.strip(), calls


def theirs(template: dict[str, Any], text: str) -> tuple[str, str, list[tuple[str, Any]]]:
    message = parse_response(text, template, prefix="", tools=TOOLS)
    thinking = message.get("thinking") or message.get("reasoning_content") or ""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return message.get("content") or "", thinking, calls


@pytest.mark.parametrize(("template", "text"), SAME)
def test_answers_are_parsed_as_by_transformers(template: dict[str, Any], text: str) -> None:
    expected = theirs(template, text)
    assert ours(template, [text], set()) == expected
    assert ours(template, list(text), set()) == expected


def test_markers_that_are_added_tokens() -> None:
    parts = ["<think>", "a", "</think>", "\n", "<tool_call>", PARIS, "</tool_call>"]
    assert ours(SMOLLM, parts, {"<think>", "</think>", "<tool_call>", "</tool_call>"}) == theirs(SMOLLM, "".join(parts))
    parts = ["thought", "</think>", "<response>", "\nYes"]
    assert ours(ERNIE, parts, {"</think>", "<response>"}) == ("Yes", "thought", [])


def test_added_tokens_of_whitespace_are_no_part_of_a_marker() -> None:
    template = {"fields": {"thinking": {"open": "Here I  think:", "close": "\nDone"}}}
    assert ours(template, ["Here I  think: hm", "\nDone", " yes"], {"  ", "\n"}) == ("yes", "hm", [])


def test_a_name_of_more_than_the_pattern_is_no_call() -> None:
    content, _, calls = ours(NAME_JSON, ["[TOOL_CALLS]two names[ARGS]{}[END]"], set())
    assert (content, calls) == ("[TOOL_CALLS]two names[ARGS]{}[END]", [])


def test_text_outside_of_all_fields_is_kept() -> None:
    """transformers drops it."""
    template = {**QWEN3_XML, "fields": {**QWEN3_XML["fields"]}}
    del template["fields"]["content"]
    assert ours(template, ["Hello"], set()) == ("Hello", "", []) != theirs(template, "Hello")


def test_text_before_and_after_calls_is_kept() -> None:
    """transformers keeps the last text only, also if it is a line break."""
    text = f"Let me look.<tool_call>{PARIS}</tool_call>\nDone."
    assert ours(SMOLLM, [text], set())[0] == "Let me look.\nDone."
    assert theirs(SMOLLM, text)[0] == "Done."


def test_only_what_a_template_has() -> None:
    assert tools_table({"fields": {"thinking": THINK}}) is None
    assert reasoning_table({"fields": {"content": {}}}) is None


def without(template: dict[str, Any], field: str, **changes: Any) -> dict[str, Any]:
    changed = copy.deepcopy(template)
    changed["fields"][field] = {**changed["fields"][field], **changes}
    return changed


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (COHERE, "tool_calls is read as 'json' and becomes {'name': '{tool_name}'"),
        ({"fields": {"tool_calls": GEMMA4_CALLS}}, "tool_calls is JSON of a dialect"),
        (GPT_OSS, "the marker '<|channel|>final<|message|>' is more than the token '<|"),
        (without(SMOLLM, "tool_calls", content_args=1), "`content_args` is no object"),
        ({"fields": {"citations": {}}}, "the field 'citations' is not known"),
        ({"version": 2, "fields": {}}, "no response template of version 1"),
        (without(SMOLLM, "tool_calls", open_pattern="a|b"), "the regular expression 'a|b' is none of those"),
        (without(SMOLLM, "tool_calls", open=[]), "nothing opens tool_calls"),
        (without(SMOLLM, "tool_calls", content="kv-lines"), "tool_calls is read as 'kv-lines'"),
        (without(SMOLLM, "tool_calls", transform=None), "tool_calls has no `transform` with a function"),
        (without(QWEN3_XML, "tool_calls", close=[]), "the parameters of tool_calls are no tags"),
        (
            without(QWEN3_XML, "tool_calls", content_args={"tag_pattern": "<(?P<key>a)>"}),
            "are no tags with a key and a",
        ),
    ],
)
def test_calls_without_a_table(template: dict[str, Any], message: str) -> None:
    with pytest.raises(Untranslatable) as found:
        tools_table(template, {"<|channel|>", "<|message|>"})
    assert message in str(found.value)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"open": "<think>"}, "nothing closes thinking"),
        ({**THINK, "content": "json"}, "thinking is read as 'json'"),
        ({"open": "<a>", "close_pattern": "x+"}, "the regular expression 'x+' is none of those"),
        ({"open": " ", "close": "</a>"}, "`open` is no text"),
        ({"open": "</think>", "close": "</think>"}, ""),
    ],
)
def test_reasoning_without_a_table(field: dict[str, Any], message: str) -> None:
    template = {"fields": {"thinking": field}}
    if not message:
        assert reasoning_table(template) is not None
        return
    with pytest.raises(Untranslatable, match=message.replace("+", r"\+")):
        reasoning_table(template)


def test_the_elements_of_regular_expressions() -> None:
    assert elements_of(r"<\|a\|>\s*b=(?P<n>[^\s>]+).*?\n") == [
        Text("<|a|>"), Gap(), Text("b="), Group("n", r"[^\s>]+"), Anything(), Text("\n"),
    ]  # fmt: skip
    assert elements_of(r"(?P<n>[]*+?{]\+[\]*]*?)") == [Group("n", r"[]*+?{]\+[\]*]*?")]
    # Groups that repeat more than one thing took hours to find no end in a name of 256 characters.
    for pattern in (r"(?P<n>\w*\w*)", r"(?P<n>a?a?)", r"(?P<n>[*]+a{2,})"):
        with pytest.raises(Untranslatable, match="repeats more than one thing"):
            elements_of(pattern)
    for pattern in (r"a+", r"(a)", r"a|b", r"^a", r"\d", r"[ab]", r"(?P<n>(a))", r"a{2}", "\\"):
        with pytest.raises(Untranslatable):
            elements_of(pattern)


STRANGE: list[Any] = [None, 1, "", " ", "(", "{content}", [], {}, ["a"], "json", "text", True, r"(?P<name>\w+)"]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([template for template, _ in SAME]), st.integers(0, 2**32), st.integers(1, 3))
def test_any_template_has_a_table_or_a_reason(template: dict[str, Any], seed: int, num_changes: int) -> None:
    random, changed = Random(seed), json.loads(json.dumps(template))
    for _ in range(num_changes):
        container = changed
        while isinstance(container, dict) and container:
            key = random.choice(sorted(container))
            if random.random() < 0.4 or not isinstance(container[key], dict):
                container[key] = random.choice(STRANGE)
                break
            container = container[key]
    with deadline(10):
        for translate in (tools_table, reasoning_table):
            try:
                translate(changed)
            except Untranslatable as error:
                assert str(error)
