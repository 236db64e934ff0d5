"""What a checkpoint's own template writes for calls and reasoning is parsed back into the same calls and reasoning."""

import json
from typing import Any

import pytest

from services.rpc.generated import text_pb2
from services.rpc.pieces import CONTENT, REASONING, TOOL_ARGUMENTS, TOOL_CALL, TOOL_CALL_END, TOOL_NAME, Piece, text_of
from services.tokenizer.answer_divider import AnswerDivider
from services.tokenizer.choice_output import ChoiceOutput, OutputRules
from services.tokenizer.parsing.answer_format import AnswerFormats
from services.tokenizer.parsing.catalog import built_in
from tests.tokenizer.checkpoint_templates import (
    CALLS_AS_TEXT,
    NAMES,
    SOURCES,
    WITHOUT_CONTENT,
    assistant_text,
    vocabulary,
)

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object"},
        "exact": {"type": "boolean"},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": PARAMETERS}}
    for name in ("get_weather", "get_time")
]
CALLS: list[tuple[str, dict[str, Any]]] = [
    (
        "get_weather",
        {"city": 'São "Paulo"', "days": 3, "units": ["°C", "K"], "place": {"lat": -23.5, "tags": [None, {}]}},
    ),
    ("get_time", {"city": "Köln\nam Rhein 🌧", "exact": True}),
]
REASONED = "They ask for two things.\nSo I call <both>."
# Templates that write one call in a message.
SINGLE = frozenset({"llama3.1", "llama3.2", "gpt-oss"})
# vLLM's templates for these write no `functools`, nested values as Python prints them, and every value as a string.
OTHERWISE = frozenset({"phi4-mini", "llama3.2-pythonic", "llama4-pythonic"})
# Templates that leave reasoning out, or read it from the content.
WITHOUT_REASONING = frozenset({"qwq", "deepseek-r1", "ministral3"})
WITH_CALLS = [
    name for name in NAMES if SOURCES[name]["tool_format"] in built_in().tools and name not in CALLS_AS_TEXT | OTHERWISE
]
WITH_REASONING = [
    name
    for name in NAMES
    if SOURCES[name]["reasoning_format"] in built_in().reasoning and name not in WITHOUT_REASONING
]


def parsed(name: str, message: dict[str, Any], tools: list[dict[str, Any]]) -> list[Piece]:
    turn = assistant_text(name, message, tools or None)
    words, source, catalog = vocabulary(name), SOURCES[name], built_in()
    formats = AnswerFormats(
        words, catalog.tools.get(source["tool_format"]), catalog.reasoning.get(source["reasoning_format"])
    )
    output = text_pb2.OutputSpec(
        tool_choice=text_pb2.TOOL_CHOICE_AUTO if tools else text_pb2.TOOL_CHOICE_NONE,
        separate_reasoning=True,
        tools_json=json.dumps(tools).encode(),
    )
    prompt = words.encode(turn.prompt_tail, add_special_tokens=False)
    answer_format = formats.of_request(output, prompt)
    assert answer_format is not None
    rules = OutputRules([], False, True, True, frozenset(), 0)
    out = ChoiceOutput(words.tokenizer, prompt, rules, AnswerDivider(answer_format, 0))
    pieces = out.push(words.encode(turn.text + turn.end, add_special_tokens=False)).pieces
    return [*pieces, *out.flush(stopped=True)]


def calls_of(pieces: list[Piece]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the calls of an answer. Asserts that each one is whole."""
    names = [text for kind, text in pieces if kind == TOOL_NAME]
    arguments: list[str] = []
    for kind, text in pieces:
        if kind == TOOL_CALL:
            arguments.append("")
        elif kind == TOOL_ARGUMENTS:
            arguments[-1] += text
    assert len([kind for kind, _ in pieces if kind == TOOL_CALL_END]) == len(names)
    return [(name, json.loads(one)) for name, one in zip(names, arguments, strict=True)]


def message_of(calls: list[tuple[str, dict[str, Any]]], **fields: Any) -> dict[str, Any]:
    tool_calls = [
        {"id": f"call{index:05}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for index, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": tool_calls, **fields}


@pytest.mark.parametrize("name", WITH_CALLS)
def test_calls_come_back(name: str) -> None:
    calls = CALLS[:1] if name in SINGLE else CALLS
    assert calls_of(parsed(name, message_of(calls), TOOLS)) == calls


@pytest.mark.parametrize("name", [name for name in WITH_CALLS if name not in WITHOUT_CONTENT | SINGLE])
def test_text_before_calls_comes_back(name: str) -> None:
    """With reasoning where the prompt begins it: minimax-m2 writes no end of it otherwise."""
    pieces = parsed(name, message_of(CALLS, content="I look.", reasoning_content=REASONED), TOOLS)
    assert (calls_of(pieces), text_of(pieces, CONTENT).strip()) == (CALLS, "I look.")


@pytest.mark.parametrize("name", [name for name in WITH_REASONING if name in WITH_CALLS])
def test_reasoning_before_calls_comes_back(name: str) -> None:
    calls = CALLS[:1] if name in SINGLE else CALLS
    pieces = parsed(name, message_of(calls, reasoning_content=REASONED), TOOLS)
    assert calls_of(pieces) == calls and text_of(pieces, REASONING) == REASONED


@pytest.mark.parametrize("name", WITH_REASONING)
def test_an_answer_after_reasoning_comes_back(name: str) -> None:
    pieces = parsed(name, {"role": "assistant", "content": "Sunny.", "reasoning_content": REASONED}, [])
    assert text_of(pieces, CONTENT) == "Sunny."
    assert text_of(pieces, REASONING) in ("", REASONED)


def test_many_families_come_back() -> None:
    assert len({SOURCES[name]["tool_format"] for name in WITH_CALLS}) >= 9
    assert len(WITH_CALLS) >= 15 and len(WITH_REASONING) >= 8
