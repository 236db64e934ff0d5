"""llama3_json: {"name": "f", "parameters": {…}} at the answer's beginning, several separated by semicolons."""

from services.rpc.pieces import CONTENT
from tests.tokenizer.parsing.drive import Call, Driver, Token, answer_of, function, grammar_of, parsed
from tests.tokenizer.parsing.forms import Format, RandomCall


def written(calls: list[RandomCall]) -> str:
    """Writes calls as Llama 3.1's template does."""
    return "; ".join(call.json(arguments="parameters") for call in calls)


FORM = Format(tools="llama3_json", calls=written, added=("<|python_tag|>",), before=False, after=False, known=True)


TOOLS = [function("f", a="integer"), function("g")]


def test_calls() -> None:
    text = '{"name": "f", "parameters": {"a": 1}}; {"type": "function", "name": "g", "arguments": {}}'
    expected = [Call("f", '{"a": 1}'), Call("g", "{}")]
    assert answer_of(parsed(text, "llama3_json", tools=TOOLS)) == ("", "", expected)
    tagged = "<|python_tag|>" + text.replace("; ", "\n")
    assert answer_of(parsed(tagged, "llama3_json", tools=TOOLS)) == ("", "", expected)


def test_json_that_is_no_offered_call_is_content() -> None:
    for text in ('{"name": "h", "parameters": {}}', '{"answer": 42}', "{", 'Look: {"name": "f", "parameters": {}}'):
        assert answer_of(parsed(text, "llama3_json", tools=TOOLS)) == ("", text, [])


def test_json_that_is_no_call_is_released_at_its_first_key() -> None:
    driver = Driver(grammar_of("llama3_json", None), TOOLS)
    driver.push([Token('{"answer": [1, ')])
    assert driver.pieces == [(CONTENT, '{"answer": [1,')]
