"""JsonCall: arguments are passed on as soon as they are certain; broken ones as they are."""

import pytest

from services.rpc.pieces import Piece
from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.json_call import JsonCall
from tests.tokenizer.parsing.drive import answer_of


def read(*texts: str, functions: set[str] | None = None) -> tuple[JsonCall, list[Piece], str]:
    """Returns the reader, its pieces, and the text that it left."""
    writer = PieceWriter(lambda number: f"id{number}")
    reader = JsonCall(writer, functions.__contains__ if functions is not None else None)
    for index, text in enumerate(texts):
        used = reader.read(text)
        if used < len(text):
            return reader, writer.take(), text[used:] + "".join(texts[index + 1 :])
    return reader, writer.take(), ""


def arguments_of(pieces: list[Piece]) -> str:
    return answer_of(pieces).calls[0].arguments


def test_arguments_are_passed_on_as_they_come() -> None:
    reader, pieces, rest = read('{"name": "f", "arguments": {"a": ["x')
    assert arguments_of(pieces) == '{"a": ["x' and rest == "" and reader.in_string
    assert not reader.complete and not reader.may_end


def test_a_call_is_complete_with_its_arguments() -> None:
    reader, pieces, _ = read('{"name": "f", "arguments": {}')
    assert reader.complete and reader.may_end and not reader.done
    assert arguments_of(pieces) == "{}"


def test_a_call_without_arguments_may_end() -> None:
    reader, _, _ = read('{"name": "f"')
    assert reader.may_end and not reader.complete


def test_what_follows_the_call_is_left() -> None:
    reader, _, rest = read('{"name": "f", "arguments": {}}} x')
    assert reader.done and rest == "} x"


@pytest.mark.parametrize("text", ["x", "[", '{"a": 1}', "{'name': 1}", '{"name": ""}', '{"name": null}', '{"a": 1;'])
def test_no_call(text: str) -> None:
    reader, pieces, _ = read(text)
    assert reader.failed and not reader.broken and pieces == []


def test_functions_that_are_not_offered() -> None:
    assert read('{"name": "g", "parameters": {}}', functions={"f"})[0].failed
    assert not read('{"type": "function", "name": "f"', functions={"f"})[0].failed
    assert read('{"title":', functions={"f"})[0].failed


@pytest.mark.parametrize(
    ("text", "written", "rest"),
    [
        ('{"name": "f", "arguments": {"a": \'x\'}}', '{"a": ', "'x'}}"),
        ('{"name": "f", "arguments": [1, (2)]}', "[1, ", "(2)]}"),
        ('{"name": "f", why: 1}', "", "why: 1}"),
        ('{"name": "f" "arguments": {}}', "", '"arguments": {}}'),
    ],
)
def test_broken(text: str, written: str, rest: str) -> None:
    for parts in ([text], list(text)):
        reader, pieces, left = read(*parts)
        assert reader.broken and arguments_of(pieces) == written and left == rest


def test_cut_writes_what_was_not_passed_on() -> None:
    writer = PieceWriter(str)
    reader = JsonCall(writer, None)
    reader.read('{"name": "f", "arguments": "{\\"a\\": 1')
    writer.take()
    reader.cut()
    assert writer.take()[0][1] == '"{\\"a\\": 1'


def test_half_of_a_surrogate_pair_is_no_character() -> None:
    _, pieces, _ = read('{"name": "f\\ud800", "arguments": "{\\"a\\": \\"\\udc00\\"}"}')
    assert answer_of(pieces).calls[0] == ("f\ufffd", '{"a": "\ufffd"}', False)
