"""openai, openai_gptoss: harmony."""

import json

from tests.tokenizer.parsing.drive import Call, answer_of, parsed
from tests.tokenizer.parsing.forms import Format, RandomCall

MARKERS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")


def written(calls: list[RandomCall]) -> str:
    """Writes calls as gpt-oss's template does, several one after the other."""
    return "".join(
        f"⟦<|channel|>⟧commentary to=functions.{call.name} ⟦<|constrain|>⟧json⟦<|message|>⟧"
        f"{json.dumps(call.arguments, ensure_ascii=False)}⟦<|call|>⟧⟦<|start|>⟧assistant"
        for call in calls
    )


FORM = Format(
    tools="openai",
    calls=written,
    reasoning="openai_gptoss",
    opens="⟦<|channel|>⟧analysis⟦<|message|>⟧",
    closes="⟦<|end|>⟧⟦<|start|>⟧assistant",
    content=("⟦<|channel|>⟧final⟦<|message|>⟧", "⟦<|end|>⟧⟦<|start|>⟧assistant"),
    added=MARKERS,
    skips=MARKERS,
)


CALL = "commentary to=functions.f <|constrain|>json<|message|>"


def test_reasoning_preamble_and_calls() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f'<|start|>assistant<|channel|>{CALL}{{"a": 1}}<|call|><|start|>assistant to=functions.g<|channel|>commentary'
        "<|message|><|call|>"
    )
    expected = ("Hm", "I look.", [Call("f", '{"a": 1}'), Call("g", "{}")])
    assert answer_of(parsed(text, "openai", "openai_gptoss")) == expected
    assert answer_of(parsed(text, "openai", "openai_gptoss", by_character=True)) == expected


def test_the_answers_end_is_not_lost() -> None:
    text = "<|channel|>final<|message|>The end"
    assert answer_of(parsed(text, "openai", "openai_gptoss")) == ("", "The end", [])
    assert answer_of(parsed(text + "<|return|>", "openai", "openai_gptoss")) == ("", "The end", [])


def test_text_without_a_header_is_content() -> None:
    assert answer_of(parsed("Hello, to be short.", "openai", "openai_gptoss")) == ("", "Hello, to be short.", [])


def test_arguments_that_are_no_json() -> None:
    text = f"<|channel|>{CALL}foo bar<|call|>"
    assert answer_of(parsed(text, "openai")).calls == [Call("f", "foo bar")]


def test_without_tools_a_call_is_content_and_without_reasoning_thoughts_are() -> None:
    text = f"<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>{CALL}{{}}<|call|>"
    assert answer_of(parsed(text, None, "openai_gptoss")) == ("Hm", "{}", [])
    assert answer_of(parsed(text, "openai", None)) == ("", "Hm", [Call("f", "{}")])
