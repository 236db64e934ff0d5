"""Templates as expressions of a grammar: markers by id or as text, optional line breaks, texts that lack others."""

import pytest

from services.grammar.errors import GrammarError
from services.grammar.matcher import Matcher
from services.tokenizer.parsing.written_text import Markup, Piece, RuleBook, joined, text_expression, without
from tests.grammar.vocabularies import END, demo_tokens, ids_of


def accepted(grammar: str, text: str) -> bool:
    matcher = Matcher(demo_tokens(), grammar)
    try:
        matcher.replay(ids_of(text))
        if not matcher.is_complete:
            matcher.replay([END])
    except GrammarError:
        return False
    return True


def test_a_template_is_divided_at_markers_and_slots() -> None:
    markup = Markup(["<c>", "<c", "</c>"], {"<c>": 7})
    assert markup.pieces("<c>$name <c$arguments</c>x") == [
        Piece("<c>", is_marker=True, token_id=7),
        Piece("$name", is_slot=True),
        Piece(" "),
        Piece("<c", is_marker=True),
        Piece("$arguments", is_slot=True),
        Piece("</c>", is_marker=True),
        Piece("x"),
    ]
    assert markup.pieces("") == []
    assert markup.expression('<c>a"\n</c>') == '<[7]> "a\\"" "\\n"? "</c>"'


def test_line_breaks_are_optional_and_all_else_is_exact() -> None:
    grammar = f"start: {text_expression(chr(10) + 'a/b' + chr(10) + chr(10) + 'é ')}\n"
    assert [accepted(grammar, text) for text in ("\na/b\n\né ", "a/bé ", "a/b\né ")] == [True] * 3
    assert [accepted(grammar, text) for text in ("a/bé", "a/b\n\n\né ", "\n\na/bé ")] == [False] * 3


@pytest.mark.parametrize(
    ("text", "expected"), [("", True), ("</en", True), ("a<end>", True), ("</end>", False), ("a\n[X]b", False)]
)
def test_text_without_some_texts(text: str, expected: bool) -> None:
    book = RuleBook("t")
    name = book.terminal(without(["</end>", "[X]"]))
    assert accepted("\n".join([f"start: {name}", *book.rules]), text) is expected


def test_a_definition_has_one_name() -> None:
    book = RuleBook("r")
    assert book.rule('"a"') == book.rule('"a"') == "r_0"
    assert book.terminal('"a"') == "R_1"
    assert book.rules == ('r_0: "a"', 'R_1: "a"')


def test_empty_expressions_are_left_out() -> None:
    assert joined(["", '"a"', "", '"b"']) == '"a" "b"'
