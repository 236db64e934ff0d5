"""mistral: [THINK]…[/THINK]; here with the older form of its calls."""

from tests.tokenizer.parsing.drive import Call, answer_of, parsed
from tests.tokenizer.parsing.forms import Format, RandomCall


def written(calls: list[RandomCall]) -> str:
    """Writes calls as the templates of Mistral's models up to version 7 of the tokenizers do."""
    return f"⟦[TOOL_CALLS]⟧ [{', '.join(call.json() for call in calls)}]"


FORM = Format(
    tools="mistral",
    calls=written,
    reasoning="mistral",
    opens="⟦[THINK]⟧",
    closes="⟦[/THINK]⟧",
    added=("[TOOL_CALLS]", "[THINK]", "[/THINK]"),
    skips=("[CALL_ID]",),
)


def test_the_older_form() -> None:
    text = '[TOOL_CALLS] [{"arguments": {"name": "x"}, "name": "f"}, {"name": "g", "arguments": {}}]\nMore'
    assert answer_of(parsed(text, "mistral")) == ("", "More", [Call("f", '{"name": "x"}'), Call("g", "{}")])


def test_reasoning() -> None:
    text = "[THINK]a [TOOL_CALLS] b[/THINK]c[/THINK]"
    assert answer_of(parsed(text, None, "mistral")) == ("a [TOOL_CALLS] b", "c[/THINK]", [])
