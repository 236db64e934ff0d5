"""What a grammar of calls lets a model write, its parser reads: in every format, whole calls with valid arguments."""

import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from services.rpc.generated import text_pb2
from services.tokenizer.parsing.catalog import built_in
from services.tokenizer.parsing.functions import MAX_FUNCTIONS
from services.tokenizer.parsing.read_table import table_of
from tests.tokenizer.parsing.forms import Format
from tests.tokenizer.parsing.test_properties import FORMS
from tests.tokenizer.walks import Model, model, parsed, tool, walk

TOOLS_PAGE = Path(__file__).parents[3] / "docs" / "tools.md"
NUM_WALKS = 12
WITH_CALLS = {form.tools: form for form in FORMS.values() if form.tools in built_in().tools}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 12},
        "when": {"anyOf": [{"type": "string", "pattern": "^[a-z]{1,4}$"}, {"type": "null"}]},
        "exact": {"type": "boolean"},
        "places": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/place"}},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number", "minimum": 0, "maximum": 5}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
TOOLS = [tool("get_weather", WEATHER), tool("now", None), tool("pick", {"type": "object", "properties": {
    "a": {"type": ["integer", "string"], "maxLength": 5}, "b": {"const": "x y"}}, "required": ["b"]})]  # fmt: skip
SCHEMAS = {one["function"]["name"]: one["function"].get("parameters", {"type": "object"}) for one in TOOLS}


def spec(choice: int, *allowed: str, tools: list[Any] = TOOLS, **fields: Any) -> text_pb2.OutputSpec:
    return text_pb2.OutputSpec(
        tools_json=json.dumps(tools).encode(),
        tool_choice=text_pb2.ToolChoice.ValueType(choice),
        allowed_tools=allowed,
        separate_reasoning=True,
        skip_special_tokens=True,
        **fields,
    )


def of_form(folder: Path, form: Format, *, as_text: bool) -> Model:
    return model(folder, () if as_text else form.added, form.tools, form.reasoning)


every_format = pytest.mark.parametrize("name", WITH_CALLS)
both_ways = pytest.mark.parametrize("as_text", [False, True], ids=["markers-by-id", "markers-by-text"])


@every_format
@both_ways
def test_required_calls_are_read_whole(tmp_path: Path, name: str, as_text: bool) -> None:
    output = spec(text_pb2.TOOL_CHOICE_REQUIRED)
    of = of_form(tmp_path, WITH_CALLS[name], as_text=as_text)
    grammar = of.grammars.of_request(output, [1])
    assert grammar.ignored_keywords == ()
    num_ended = 0
    for seed in range(NUM_WALKS):
        answer = walk(of, grammar.text, seed)
        found = parsed(of, output, [1], answer)
        if answer.ended:
            num_ended += 1
            assert found.num_broken == 0 and found.answer.calls, (answer.text, found)
            assert not found.answer.content.strip(), (answer.text, found)
            for call in found.answer.calls:
                assert call.ended, (answer.text, found)
                jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    assert num_ended > (0 if as_text else NUM_WALKS // 3)  # reasoning seldom ends where its end is spelled at random


@every_format
@both_ways
def test_a_named_call_is_the_only_one(tmp_path: Path, name: str, as_text: bool) -> None:
    output = spec(text_pb2.TOOL_CHOICE_NAMED, "get_weather")
    of = of_form(tmp_path, WITH_CALLS[name], as_text=as_text)
    grammar = of.grammars.of_request(output, [1])
    for seed in range(NUM_WALKS):
        answer = walk(of, grammar.text, seed)
        found = parsed(of, output, [1], answer)
        if answer.ended:
            (call,) = found.answer.calls
            assert (call.name, call.ended, found.num_broken) == ("get_weather", True, 0), (answer.text, found)
            jsonschema.validate(json.loads(call.arguments), WEATHER)


@every_format
@both_ways
def test_strict_calls_within_text(tmp_path: Path, name: str, as_text: bool) -> None:
    tools = [tool("get_weather", WEATHER, strict=True), tool("now", None)]
    output = spec(text_pb2.TOOL_CHOICE_AUTO, tools=tools)
    of = of_form(tmp_path, WITH_CALLS[name], as_text=as_text)
    grammar = of.grammars.of_request(output, [1])
    source = random.Random(name)
    for _ in range(NUM_WALKS):
        answer = walk(of, grammar.text, source.getrandbits(32))
        found = parsed(of, output, [1], answer)
        if answer.ended:
            for call in found.answer.calls:
                assert call.ended and found.num_broken == 0, (answer.text, found)
                if call.name == "get_weather":
                    jsonschema.validate(json.loads(call.arguments), WEATHER)


def test_the_worked_example_of_the_guide(tmp_path: Path) -> None:
    table, write = re.findall(r"```toml\n(.*?)```", TOOLS_PAGE.read_text(), re.DOTALL)
    of = model(tmp_path, (), table_of(tomllib.loads(table) | tomllib.loads(write)), None)
    output = spec(text_pb2.TOOL_CHOICE_REQUIRED)
    answer = walk(of, of.grammars.of_request(output, [1]).text, seed=1)
    found = parsed(of, output, [1], answer)
    assert answer.ended and found.num_broken == 0
    assert {call.name for call in found.answer.calls} <= SCHEMAS.keys()
    assert answer.text.startswith(f"<call>{found.answer.calls[0].name} {{")


@every_format
def test_as_many_functions_as_are_allowed(tmp_path: Path, name: str) -> None:
    of = of_form(tmp_path, WITH_CALLS[name], as_text=True)
    for choice, strict in [(text_pb2.TOOL_CHOICE_REQUIRED, False), (text_pb2.TOOL_CHOICE_AUTO, True)]:
        output = spec(choice, tools=[tool(f"f{index}", None, strict=strict) for index in range(MAX_FUNCTIONS)])
        walk(of, of.grammars.of_request(output, [1]).text, seed=1, max_tokens=40)
