"""OutputParser beyond single formats: one call only, the worked example of docs/tools.md, limits, and purity."""

import gc
import re
import tomllib
import weakref
from pathlib import Path

import pytest

from services.rpc.pieces import CONTENT, REASONING, TOOL_ARGUMENTS, TOOL_CALL, TOOL_CALL_END, TOOL_NAME
from services.tokenizer.parsing.grammar import build_grammar
from services.tokenizer.parsing.output_parser import MAX_NAME
from services.tokenizer.parsing.read_table import table_of
from tests.tokenizer.parsing.drive import Call, Driver, Token, answer_of, function, grammar_of, parsed

TOOLS_PAGE = Path(__file__).parents[3] / "docs" / "tools.md"
TWO_CALLS = {
    "hermes": '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g"}</tool_call>',
    "pythonic": "[f(), g()]",
    "llama3_json": '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
    "glm45": "<tool_call>f</tool_call><tool_call>g</tool_call>",
    "mistral": "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}",
}


@pytest.mark.parametrize("name", TWO_CALLS)
def test_the_only_call_ends_the_answer(name: str) -> None:
    for text in (TWO_CALLS[name], TWO_CALLS[name] + " and more"):
        driver = Driver(grammar_of(name, None), [function("f"), function("g")], single=True)
        driver.push([Token(one) for one in text])
        assert driver.parser.is_over
        assert answer_of(driver.finish()) == ("", "", [Call("f", "{}")])


@pytest.mark.parametrize("name", TWO_CALLS)
def test_a_parser_is_freed_with_its_answer(name: str) -> None:
    """Nothing in it refers to itself, within a call or behind it."""
    text = TWO_CALLS[name]
    gc.disable()
    try:
        for length in range(1, len(text) + 1):
            driver = Driver(grammar_of(name, None), [function("f"), function("g")])
            driver.push([Token(text[:length])])
            held = [weakref.ref(driver.parser), *map(weakref.ref, filter(None, [driver.parser._call.reader]))]
            del driver
            assert [one() for one in held] == [None] * len(held), text[:length]
    finally:
        gc.enable()


def test_a_broken_call_ends_the_answer_as_well() -> None:
    driver = Driver(grammar_of("hermes", None), single=True)
    driver.push([Token('<tool_call>{"name": "f", "arguments": {]}</tool_call>More')])
    assert driver.parser.is_over
    assert answer_of(driver.finish()) == ("", "", [Call("f", "{]}")])


def test_the_pieces_of_a_call_in_order() -> None:
    driver = Driver(grammar_of("hermes", "qwen3"))
    steps = {
        "<think>a": [(REASONING, "a")],
        "b </think>\n": [(REASONING, "b")],
        "Hi <tool": [(CONTENT, "Hi")],
        '_call>{"name": "f"': [(TOOL_CALL, "id0"), (TOOL_NAME, "f")],
        ', "arguments": {"a"': [(TOOL_ARGUMENTS, '{"a"')],
        ": 1": [(TOOL_ARGUMENTS, ": 1")],
        "}}": [(TOOL_ARGUMENTS, "}"), (TOOL_CALL_END, "")],
        "</tool_call>": [],
    }
    for text, pieces in steps.items():
        driver.parser.text(text)
        assert driver.writer.take() == pieces


def test_in_reasoning() -> None:
    driver = Driver(grammar_of("hermes", "qwen3"))
    for text, expected in [("<think>", True), ("a", True), ("<tool_call>x", True), ("</think>", False), ("b", False)]:
        driver.parser.text(text)
        assert driver.parser.in_reasoning == expected


def test_a_hidden_marker_that_means_nothing_writes_nothing() -> None:
    driver = Driver(grammar_of("mistral", None, ["[ARGS]"]))
    driver.parser.text("a")
    driver.parser.marker("[ARGS]", "")
    driver.parser.text("b")
    assert driver.finish() == [(CONTENT, "ab")]


def test_a_name_that_is_too_long_is_text() -> None:
    for length in (MAX_NAME, MAX_NAME + 1):
        text = f"<tool_call>{'n' * length}</tool_call>"
        for by_character in (False, True):
            found = answer_of(parsed(text, "glm45", by_character=by_character))
            expected = ("", "", [Call("n" * length, "{}")]) if length == MAX_NAME else ("", text, [])
            assert found == expected


def test_markers_within_what_is_no_call_count() -> None:
    text = "<think>a <tool_call> <function=b</think> c <tool_call><function=f></function></tool_call>"
    assert answer_of(parsed(text, "qwen3_coder", "qwen3")) == ("a <tool_call> <function=b", "c", [Call("f", "{}")])


def test_without_formats_that_know_calls_calls_are_content() -> None:
    text = "<think>a</think>" + TWO_CALLS["hermes"]
    assert answer_of(parsed(text, None, "qwen3")) == ("a", TWO_CALLS["hermes"], [])


def test_the_worked_example_of_the_documentation() -> None:
    page = TOOLS_PAGE.read_text()
    blocks = re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL)
    table = table_of(tomllib.loads(next(text for kind, text in blocks if kind == "toml")))
    example = next(text for kind, text in blocks if not kind and "<call>" in text)
    driver = Driver(build_grammar(table, None, {}, ()))
    driver.push([Token(example)])
    assert answer_of(driver.finish()) == ("", "I look it up.", [Call("get_weather", '{"city": "Paris"}')])


def test_layout_behind_python_calls_is_not_text() -> None:
    table = {
        "tools": ["mine"],
        "markers": {"open": "<calls>", "close": "</calls>"},
        "states": {
            "content": {"read": "content", "on": {"open": "calls"}},
            "calls": {"read": "python_calls", "on": {"done": "after"}},
            "after": {"read": "layout", "on": {"close": "content"}},
        },
    }
    driver = Driver(build_grammar(table_of(table), None, {}, ()))
    driver.push([Token("<calls>[f(a=1), g()]\n</calls> More")])
    assert answer_of(driver.finish()) == ("", "More", [Call("f", '{"a": 1}'), Call("g", "{}")])
