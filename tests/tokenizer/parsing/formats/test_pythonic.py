"""pythonic: [f(a=1), g(b="x")] at the answer's beginning."""

from tests.tokenizer.parsing.drive import Call, answer_of, function, parsed
from tests.tokenizer.parsing.forms import Format, RandomCall


def written(calls: list[RandomCall]) -> str:
    """Writes calls as Llama 3.2's model card has them."""
    texts = [f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})" for call in calls]
    return f"[{', '.join(texts)}]"


FORM = Format(tools="pythonic", calls=written, before=False, known=True)


TOOLS = [function("f"), function("g")]


def test_calls() -> None:
    text = "[f(a = 1, b='it\\'s', c=[True, None, (1.5,)], d={'k': -2}), g()]\nDone"
    expected = [Call("f", '{"a": 1, "b": "it\'s", "c": [true, null, [1.5]], "d": {"k": -2}}'), Call("g", "{}")]
    for by_character in (False, True):
        found = answer_of(parsed(text, "pythonic", tools=TOOLS, by_character=by_character))
        assert found == ("", "Done", expected)


def test_lists_that_are_no_calls_of_offered_functions_are_content() -> None:
    for text in ("[1, 2]", "[h(a=1)]", "[f]", '[f("x")]', "[]", "It is [f(a=1)]"):
        assert answer_of(parsed(text, "pythonic", tools=TOOLS)) == ("", text, [])


def test_a_call_behind_one_that_is_not_offered_is_content() -> None:
    assert answer_of(parsed("[f(a=1), h()]", "pythonic", tools=TOOLS)) == ("", ", h()]", [Call("f", '{"a": 1}')])


def test_what_cannot_be_read_is_passed_on_as_it_is() -> None:
    found = answer_of(parsed("[f(a=1, b=x + y)] more", "pythonic", tools=TOOLS)).calls
    assert found == [Call("f", '{"a": 1, "b": x + y)] more', ended=False)]
