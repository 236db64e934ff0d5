"""granite: Here is my thought process: … Here is my response: …, as ordinary text."""

from tests.tokenizer.parsing.drive import answer_of, parsed
from tests.tokenizer.parsing.formats.test_granite import written
from tests.tokenizer.parsing.forms import Format

FORM = Format(
    tools="granite",
    calls=written,
    reasoning="granite",
    opens="⟦Here is my thought process:⟧",
    closes="⟦Here is my response:⟧",
    added=("<|tool_call|>",),
)


def test_both_spellings_at_the_beginning_only() -> None:
    for here in ("Here is", "Here's"):
        text = f"{here} my thought process: a\n{here} my response: b"
        assert answer_of(parsed(text, None, "granite", by_character=True)) == ("a", "b", [])
    text = "So: Here is my thought process: a Here is my response: b"
    assert answer_of(parsed(text, None, "granite")) == ("", text, [])
