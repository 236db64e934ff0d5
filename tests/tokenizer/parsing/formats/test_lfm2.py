"""lfm2: <|tool_call_start|>[f(a=1)]<|tool_call_end|>."""

from tests.tokenizer.parsing.drive import Call, answer_of, parsed
from tests.tokenizer.parsing.formats.test_pythonic import written as written_calls
from tests.tokenizer.parsing.forms import Format, RandomCall


def written(calls: list[RandomCall]) -> str:
    """Writes calls as LFM2's template does."""
    return f"⟦<|tool_call_start|>⟧{written_calls(calls)}⟦<|tool_call_end|>⟧"


FORM = Format(
    tools="lfm2",
    calls=written,
    added=("<|tool_call_start|>", "<|tool_call_end|>"),
)


def test_functions_need_not_be_offered() -> None:
    text = 'Sure.<|tool_call_start|>[f(a="x"), g()]<|tool_call_end|>Wait.'
    assert answer_of(parsed(text, "lfm2")) == ("", "Sure.Wait.", [Call("f", '{"a": "x"}'), Call("g", "{}")])


def test_what_is_no_call_is_content() -> None:
    text = "<|tool_call_start|>[1]<|tool_call_end|>"
    assert answer_of(parsed(text, "lfm2")) == ("", text, [])
