"""mistral: [TOOL_CALLS]f[ARGS]{…}, and the older [TOOL_CALLS][{"name": "f", "arguments": {…}}]."""

import json

from tests.tokenizer.parsing.drive import Call, answer_of, parsed
from tests.tokenizer.parsing.forms import Format, RandomCall


def written(calls: list[RandomCall]) -> str:
    """Writes calls as mistral-common does since version 11 of its tokenizers."""
    return "".join(
        f"⟦[TOOL_CALLS]⟧{call.name}⟦[ARGS]⟧{json.dumps(call.arguments, ensure_ascii=False)}" for call in calls
    )


FORM = Format(
    tools="mistral",
    calls=written,
    reasoning="mistral",
    opens="⟦[THINK]⟧",
    closes="⟦[/THINK]⟧",
    added=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    skips=("[CALL_ID]",),
)


def test_calls_one_after_the_other() -> None:
    text = 'Hi[TOOL_CALLS]f{"a": 3.5}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{"b": {}}[TOOL_CALLS]h[ARGS]'
    expected = [Call("f", '{"a": 3.5}'), Call("g", '{"b": {}}'), Call("h", "{}")]
    assert answer_of(parsed(text, "mistral", by_character=True)) == ("", "Hi", expected)


def test_a_call_that_is_not_finished_before_the_next() -> None:
    text = '[TOOL_CALLS]f[ARGS]{"a": [1[TOOL_CALLS]g[ARGS]{}'
    assert answer_of(parsed(text.replace("[TOOL_CALLS]", "⟦[TOOL_CALLS]⟧"), "mistral", added=FORM.added[:1])).calls == [
        Call("f", '{"a": [1'),
        Call("g", "{}"),
    ]


def test_text_behind_the_marker_is_content() -> None:
    for text in ("[TOOL_CALLS] not a call at all", "[TOOL_CALLS]", "[TOOL_CALLS]two words{}"):
        assert answer_of(parsed(text, "mistral")) == ("", text, [])
