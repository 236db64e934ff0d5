"""What holds for every format: random answers in a format, and random soups of its markers.

- The whole answer gives its reasoning, its content and its calls.
- The pieces, joined, are the same for every division into tokens and pushes.
- Pieces are final: those after some tokens are the beginning of those after more. So a replay gives the same pieces.
- An answer that is cut anywhere gives the beginning of the whole answer's calls; nothing raises.
- No word is lost, also of broken output.
"""

import json
import math
import random
import re
from typing import Any

from services.rpc import pieces as kinds
from services.rpc.pieces import Piece
from services.tokenizer.parsing.grammar import Grammar
from tests.tokenizer.parsing.drive import Driver, Token, answer_of, divided, function, grammar_of, is_prefix, tokens_of
from tests.tokenizer.parsing.forms import Format, RandomAnswer, RandomCall
from tests.tokenizer.parsing.random_answers import tools_of


def can_be_written(form: Format, answer: RandomAnswer, *, as_text: bool) -> bool:
    """Returns whether the format can say this: no value has its own end, and no prose is markup by its text."""
    prose = [answer.reasoning, answer.before, answer.after]
    if as_text and any(marker in one for one in prose for marker in form.markers if len(marker) > 1):
        return False
    return not form.value_end or form.value_end not in _values(answer)


def check_answer(form: Format, answer: RandomAnswer, seed: int, *, as_text: bool) -> None:
    """Checks the properties of one random answer in a format."""
    added = () if as_text else form.added
    text = form.write(answer)
    grammar, tools = grammar_of(form.tools, form.reasoning, added), tools_of(answer)
    tokens = tokens_of(text, added)
    whole = Driver(grammar, tools)
    whole.push(tokens)
    pieces = whole.finish()
    _check_whole(form, answer, pieces, whole.writer.num_broken, tools)
    check_divisions(grammar, tools, tokens, pieces, seed)


def check_divisions(grammar: Grammar, tools: list[Any], tokens: list[Token], pieces: list[Piece], seed: int) -> None:
    """Checks that tokens, pushes and cuts change nothing."""
    source = random.Random(seed)
    fine = divided(tokens, source.choice([1, 2, 3, 5, 9]), seed)
    driver, before = Driver(grammar, tools), list[Piece]()
    at = 0
    while at < len(fine):
        end = at + source.choice([1, 1, 2, 4, 16])
        driver.push(fine[at:end])
        at = end
        assert is_prefix(before, driver.pieces), (before, driver.pieces)
        before = list(driver.pieces)
    assert driver.finish() == pieces
    for _ in range(3):
        cut = fine[: source.randint(0, len(fine))]
        stopped = source.random() < 0.5
        first, again = Driver(grammar, tools), Driver(grammar, tools)
        first.push(cut)
        for token in cut:
            again.push([token])
        assert first.pieces == again.pieces and first.parser.in_reasoning == again.parser.in_reasoning
        assert is_prefix(first.pieces, pieces)
        ended = first.finish(stopped=stopped)
        assert ended == again.finish(stopped=stopped)
        answer_of(ended)


def _check_whole(form: Format, answer: RandomAnswer, pieces: list[Piece], num_broken: int, tools: list[Any]) -> None:
    found = answer_of(pieces)
    assert found.reasoning == answer.reasoning.strip()
    assert _squeezed(found.content) == _squeezed(answer.before) + _squeezed(answer.after)
    content = found.content.strip()
    assert content.startswith(answer.before.strip()) and content.endswith(answer.after.strip())
    assert [call.name for call in found.calls] == [call.name for call in answer.calls]
    assert all(call.ended for call in found.calls)
    assert num_broken == 0
    for written, call in zip(answer.calls, found.calls, strict=True):
        arguments = json.loads(call.arguments)
        if form.value_types:
            _check_typed(written, arguments, tools)
        else:
            assert _same(arguments, written.arguments), (arguments, written.arguments)


def _check_typed(written: RandomCall, arguments: dict[str, Any], tools: list[Any]) -> None:
    """Values come back as they were, but where their schema has several types: then text may look like another type."""
    assert list(arguments) == list(written.arguments)
    for tool in tools:
        if tool["function"]["name"] == written.name:
            properties = tool["function"]["parameters"]["properties"]
    for key, value in written.arguments.items():
        if len(properties[key]["type"]) == 1:
            assert _same(arguments[key], value), (arguments[key], value)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other) and type(one) is type(other)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _values(answer: RandomAnswer) -> str:
    return " ".join(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for call in answer.calls
        for value in call.arguments.values()
    )


def check_soup(form: Format, text: str, seed: int, *, as_text: bool, calls: bool) -> None:
    """Checks that nonsense raises nothing, and, unless it has `calls`, loses no word."""
    added = () if as_text else form.added
    grammar = grammar_of(form.tools, form.reasoning, added)
    tokens = tokens_of(text, added)
    tools = [function("f", a="integer", b="string")]
    driver = Driver(grammar, tools)
    driver.push(tokens)
    pieces = driver.finish()
    answer_of(pieces)
    check_divisions(grammar, tools, tokens, pieces, seed)
    if not calls:
        _check_words(form, text, pieces)


def _check_words(form: Format, text: str, pieces: list[Piece]) -> None:
    """Checks that all words are there, in order. A word behind the last marker may belong to markup that was cut."""
    plain = text.replace("⟦", "").replace("⟧", "")
    last = max((plain.rfind(marker) for marker in form.markers), default=0)
    written = re.findall(r"w\d+w", plain)
    sure = len(re.findall(r"w\d+w", plain[: max(last, 0)]))
    found = re.findall(r"w\d+w", "".join(text for kind, text in pieces if kind != kinds.TOOL_CALL))
    assert found == written[: len(found)] and len(found) >= sure, (written, found, pieces)
