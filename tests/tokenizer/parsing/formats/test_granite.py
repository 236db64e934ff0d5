"""granite: <|tool_call|>[{"name": "f", "arguments": {…}}]."""

from tests.tokenizer.parsing.drive import Call, answer_of, parsed
from tests.tokenizer.parsing.forms import Format, RandomCall


def written(calls: list[RandomCall]) -> str:
    """Writes calls as Granite 3.3's template does."""
    return f"⟦<|tool_call|>⟧[{', '.join(call.json() for call in calls)}]"


FORM = Format(tools="granite", calls=written, added=("<|tool_call|>",))


def test_calls() -> None:
    text = '<|tool_call|> [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'
    expected = [Call("f", '{"a": 1}'), Call("g", "{}")]
    assert answer_of(parsed(text, "granite")).calls == expected
    assert answer_of(parsed(text.replace("<|tool_call|>", "<tool_call>"), "granite")).calls == expected
    single = '<|tool_call|>{"name": "f", "arguments": {"a": 1}}'
    assert answer_of(parsed(single, "granite")).calls == expected[:1]


def test_a_marker_without_a_list_is_content() -> None:
    assert answer_of(parsed("<|tool_call|> none", "granite")) == ("", "<|tool_call|> none", [])
