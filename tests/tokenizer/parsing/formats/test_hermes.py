"""hermes: <tool_call>{"name": "f", "arguments": {…}}</tool_call>."""

import pytest

from tests.tokenizer.parsing.drive import Call, Driver, Token, answer_of, grammar_of, parsed
from tests.tokenizer.parsing.forms import THINK, Format, RandomCall


def written(calls: list[RandomCall]) -> str:
    """Writes calls as Qwen3's template does."""
    return "\n".join(f"⟦<tool_call>⟧\n{call.json()}\n⟦</tool_call>⟧" for call in calls)


FORM = Format(
    tools="hermes",
    calls=written,
    reasoning="qwen3",
    opens="⟦<think>⟧\n",
    closes="\n⟦</think>⟧\n\n",
    added=("<tool_call>", "</tool_call>", *THINK),
)


def test_calls_and_text_between_them() -> None:
    text = (
        'I look.\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\nAnd then\n'
        '<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>'
    )
    found = answer_of(parsed(text, "hermes"))
    assert found.calls == [Call("a", '{"x": 1}'), Call("b", "{}")]
    assert found.content == "I look.\nAnd then"


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ('{"arguments": {"name": "g"}, "name": "f"}', '{"name": "g"}'),  # the name comes last
        ('{"name": "f", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"id": 7, "name": "f", "arguments": {"a": 1}, "why": "because"}', '{"a": 1}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),  # JSON within a string
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f", "arguments": ""}', "{}"),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": {"a": 1}', '{"a": 1}'),  # the last brace is missing
        ('{"name": "f"', "{}"),
        ('{"name": "f", "arguments": {"a": "</tool_call>"}}', '{"a": "</tool_call>"}'),
    ],
)
def test_a_call_that_clients_can_use(call: str, arguments: str) -> None:
    for by_character in (False, True):
        text = f"<tool_call>\n{call}\n</tool_call>\nBye"
        found = answer_of(parsed(text, "hermes", by_character=by_character))
        assert found == ("", "Bye", [Call("f", arguments)])


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ('{"name": "f", "arguments": {"a": 1,}}', '{"a": 1,}'),
        ('{"name": "f", "arguments": {\'a\': 1}}', "{'a': 1}}\n"),  # up to the closing marker
        ('{"name": "f", "arguments": [1, 2]}', "[1, 2]"),
        ('{"name": "f", "arguments": "hello"}', '"hello"'),
        ('{"name": "f", arguments: {"a": 1}}', 'arguments: {"a": 1}}\n'),
        ('{"name": "f", "arguments": }', "}\n"),
    ],
)
def test_arguments_that_do_not_parse_are_passed_on_and_counted(call: str, arguments: str) -> None:
    driver = Driver(grammar_of("hermes", None))
    driver.push([Token(f"<tool_call>\n{call}\n</tool_call>\nBye")])
    assert answer_of(driver.finish()) == ("", "Bye", [Call("f", arguments)])
    assert driver.writer.num_broken == 1


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n</tool_call>",
        "<tool_call> is a marker",
        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
        '<tool_call>{"function": "f"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        "a </tool_call> b",
        "<tool_cal",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    for added in ((), FORM.added):
        markup = text.replace("<tool_call>", "⟦<tool_call>⟧").replace("</tool_call>", "⟦</tool_call>⟧")
        assert answer_of(parsed(markup, "hermes", added=added)) == ("", text, [])


def test_an_extra_brace_is_content_and_the_end_still_belongs_to_the_call() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}}</tool_call>'
    assert answer_of(parsed(text, "hermes")) == ("", "}", [Call("f", "{}")])


def test_a_call_that_the_model_stops_in() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1'
    assert answer_of(parsed(text, "hermes")).calls == [Call("f", '{"a": 1', ended=False)]
    assert answer_of(parsed(text + "}", "hermes")).calls == [Call("f", '{"a": 1}')]
    assert answer_of(parsed('<tool_call>\n{"name": "f', "hermes")) == ("", '<tool_call>\n{"name": "f', [])


def test_markers_that_are_added_tokens_do_not_count_as_text() -> None:
    text = 'Write <tool_call>{"name": "f"}</tool_call>'
    assert answer_of(parsed(text, "hermes", added=FORM.added)) == ("", text, [])
