"""phi4_mini_json: functools[{"name": "f", "arguments": {…}}]."""

from tests.tokenizer.parsing.drive import Call, answer_of, parsed
from tests.tokenizer.parsing.forms import Format, RandomCall


def written(calls: list[RandomCall]) -> str:
    """Writes calls as Phi-4-mini's model card has them."""
    return f"⟦functools⟧[{', '.join(call.json() for call in calls)}]"


FORM = Format(tools="phi4_mini_json", calls=written, added=("<|tool_call|>", "<|/tool_call|>"))


def test_both_ways_of_writing() -> None:
    calls = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'
    for text in (f"functools{calls}", f"<|tool_call|>{calls}<|/tool_call|>"):
        assert answer_of(parsed(text, "phi4_mini_json")) == ("", "", [Call("f", '{"a": 1}'), Call("g", "{}")])


def test_the_word_alone_is_content() -> None:
    text = "import functools\nfunctools.cache(f) functools[0]"
    assert answer_of(parsed(text, "phi4_mini_json")) == ("", text, [])
