"""qwen3_coder: <tool_call><function=f><parameter=a>1</parameter></function></tool_call>."""

from tests.tokenizer.parsing.drive import Call, answer_of, function, parsed
from tests.tokenizer.parsing.forms import THINK, Format, RandomCall, text_of


def written(calls: list[RandomCall]) -> str:
    """Writes calls as Qwen3-Coder's template does."""
    texts = []
    for call in calls:
        values = [f"⟦<parameter=⟧{key}⟦>⟧\n{text_of(value)}\n⟦</parameter>⟧\n" for key, value in call.arguments.items()]
        texts.append(f"⟦<tool_call>⟧\n⟦<function=⟧{call.name}⟦>⟧\n{''.join(values)}⟦</function>⟧\n⟦</tool_call>⟧")
    return "\n".join(texts)


FORM = Format(
    tools="qwen3_coder",
    calls=written,
    reasoning="qwen3",
    opens="⟦<think>⟧\n",
    closes="\n⟦</think>⟧\n\n",
    added=("<tool_call>", "</tool_call>", *THINK),
    value_end="</parameter>",
    value_types=True,
)


TOOLS = [function("f", n="integer", s="string", o="object", either={"type": ["integer", "null"]})]


def call(*parameters: tuple[str, str], name: str = "f") -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def test_values_have_the_types_of_the_schema() -> None:
    text = call(("n", "12"), ("s", "12"), ("o", "{'k': True}"), ("either", "None"), ("unknown", "1"))
    found = answer_of(parsed(text, "qwen3_coder", tools=TOOLS)).calls
    assert found == [Call("f", '{"n": 12, "s": "12", "o": {"k": true}, "either": null, "unknown": "1"}')]


def test_line_breaks_of_a_value_stay_but_for_the_layout() -> None:
    text = call(("s", "\nfirst\n\n"))
    assert answer_of(parsed(text, "qwen3_coder", tools=TOOLS)).calls == [Call("f", '{"s": "\\nfirst\\n\\n"}')]


def test_only_a_values_own_end_ends_it() -> None:
    text = call(("s", "<parameter=x></function></tool_call>"))
    arguments = '{"s": "<parameter=x></function></tool_call>"}'
    assert answer_of(parsed(text, "qwen3_coder", tools=TOOLS)).calls == [Call("f", arguments)]


def test_a_call_without_parameters_and_without_its_outer_marker() -> None:
    text = "<function=g>\n</function>\nBye"
    assert answer_of(parsed(text, "qwen3_coder")) == ("", "Bye", [Call("g", "{}")])


def test_a_call_in_the_middle_of_the_reasoning_ends_it() -> None:
    text = f"<think>\nI call\n{call(('n', '1'))}"
    assert answer_of(parsed(text, "qwen3_coder", "qwen3", tools=TOOLS)) == ("I call", "", [Call("f", '{"n": 1}')])


def test_reasoning_about_a_marker_goes_on() -> None:
    text = "<think>a <tool_call> or <function= b</think>c"
    assert answer_of(parsed(text, "qwen3_coder", "qwen3")) == ("a <tool_call> or <function= b", "c", [])


def test_text_within_a_call_is_content_and_the_call_goes_on() -> None:
    text = "<tool_call>\n<function=f>\nhm\n<parameter=n>1</parameter>\n</function>\n</tool_call>"
    assert answer_of(parsed(text, "qwen3_coder", tools=TOOLS)) == ("", "hm", [Call("f", '{"n": 1}')])


def test_the_end_of_the_answer_behind_a_complete_value() -> None:
    text = "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n"
    assert answer_of(parsed(text, "qwen3_coder", tools=TOOLS)).calls == [Call("f", '{"n": 1}')]
    cut = answer_of(parsed(text, "qwen3_coder", tools=TOOLS, stopped=False)).calls
    assert cut == [Call("f", '{"n": 1', ended=False)]
    assert answer_of(parsed(text[:-14], "qwen3_coder", tools=TOOLS)).calls == [Call("f", '{"n": 1', ended=False)]


def test_a_call_that_begins_within_another_one_ends_it() -> None:
    """Its parameters are no further ones of the first call."""
    for between in ("", "<tool_call>\n", "</tool_call>\n<tool_call>\n"):
        first = "<tool_call>\n<function=f>\n<parameter=n>1</parameter>\n"
        text = f"{first}{between}<function=g>\n</function>\n</tool_call>"
        found = answer_of(parsed(text, "qwen3_coder", tools=TOOLS))
        assert found == ("", "", [Call("f", '{"n": 1}'), Call("g", "{}")])
