"""glm45, glm47: <tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>, with or without line breaks."""

from tests.tokenizer.parsing.drive import Call, answer_of, function, parsed
from tests.tokenizer.parsing.forms import THINK, Format, RandomCall, text_of


def written(calls: list[RandomCall], space: str = "\n") -> str:
    """Writes calls as GLM-4.5's template does; without space as GLM-4.7's."""
    texts = []
    for call in calls:
        values = [
            f"⟦<arg_key>⟧{key}⟦</arg_key>⟧{space}⟦<arg_value>⟧{text_of(value)}⟦</arg_value>⟧{space}"
            for key, value in call.arguments.items()
        ]
        texts.append(f"⟦<tool_call>⟧{call.name}{space}{''.join(values)}⟦</tool_call>⟧")
    return "\n".join(texts)


FORM = Format(
    tools="glm45",
    calls=written,
    reasoning="glm45",
    opens="⟦<think>⟧",
    closes="⟦</think>⟧\n",
    added=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", *THINK),
    value_end="</arg_value>",
    value_types=True,
)


TOOLS = [function("f", n="integer", s="string")]


def test_both_ways_of_writing() -> None:
    old = "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>"
    for text in (old, old.replace("\n", "")):
        found = answer_of(parsed(text, "glm45", tools=TOOLS))
        assert found == ("", "", [Call("f", '{"n": 1}'), Call("g", "{}")])


def test_a_value_is_passed_on_exactly() -> None:
    text = "<tool_call>f<arg_key>s</arg_key><arg_value>\n a</tool_call>\n</arg_value></tool_call>"
    assert answer_of(parsed(text, "glm47", tools=TOOLS)).calls == [Call("f", '{"s": "\\n a</tool_call>\\n"}')]


def test_a_parameter_without_its_value_breaks_the_call() -> None:
    text = "<tool_call>f<arg_key>n</arg_key></tool_call>Bye"
    assert answer_of(parsed(text, "glm45", tools=TOOLS)) == ("", "Bye", [Call("f", '{"n": ')])


def test_words_behind_the_marker_are_no_name() -> None:
    text = "<tool_call>is a marker</tool_call>"
    assert answer_of(parsed(text, "glm45")) == ("", text, [])


def test_a_call_that_begins_within_another_one_ends_it() -> None:
    """Its parameters are no further ones of the first call."""
    text = "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value>\n<tool_call>g</tool_call>"
    assert answer_of(parsed(text, "glm45", tools=TOOLS)) == ("", "", [Call("f", '{"n": 1}'), Call("g", "{}")])
