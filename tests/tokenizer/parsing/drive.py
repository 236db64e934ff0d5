"""Drives a parser of answers: tokens in, pieces out.

An answer is written with its markup in ⟦…⟧. Markup that is an added token of the model's tokenizer becomes one token;
all else is ordinary text, which tokens divide anywhere.
"""

import random
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from services.rpc import pieces as kinds
from services.rpc.pieces import Piece, add_pieces
from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.catalog import built_in
from services.tokenizer.parsing.grammar import Grammar, Start, build_grammar
from services.tokenizer.parsing.output_parser import OutputParser
from services.tokenizer.parsing.table import Read
from services.tokenizer.parsing.value_types import Tools

_MARKUP = re.compile("⟦(.*?)⟧", re.DOTALL)


class Token(NamedTuple):
    text: str
    is_marker: bool = False


class Call(NamedTuple):
    name: str
    arguments: str
    ended: bool = True


class Answer(NamedTuple):
    """What a client puts together from the pieces."""

    reasoning: str
    content: str
    calls: list[Call]


def function(name: str, **types: Any) -> dict[str, Any]:
    """Returns a tool with parameters of these JSON schemas; a text is the name of a type."""
    schemas = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in types.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": schemas}}}


def grammar_of(tools: str | None, reasoning: str | None, added: Iterable[str] = ()) -> Grammar:
    """Returns the grammar of built-in formats. `added`: the markers that are added tokens."""
    catalog = built_in()
    return build_grammar(
        catalog.tools[tools] if tools else None,
        catalog.reasoning[reasoning] if reasoning else None,
        {text: index for index, text in enumerate(added)},
        (),
    )


class Driver:
    """One answer's parser."""

    def __init__(
        self, grammar: Grammar, tools: Sequence[Any] = (), *, start: Start | None = None, single: bool = False
    ):
        first = start or Start(grammar.start, fresh=grammar.start.read is Read.REASONING)
        self.writer = PieceWriter(lambda number: f"id{number}")
        self.parser = OutputParser(grammar, first, Tools(list(tools)), self.writer, single_call=single)
        self.pieces: list[Piece] = []

    def push(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            if token.is_marker:
                self.parser.marker(token.text, token.text)
            else:
                self.parser.text(token.text)
        add_pieces(self.pieces, self.writer.take())

    def finish(self, *, stopped: bool = True) -> list[Piece]:
        self.parser.finish(stopped=stopped)
        add_pieces(self.pieces, self.writer.take())
        return self.pieces


def tokens_of(text: str, added: Iterable[str]) -> list[Token]:
    """Returns an answer's markup and texts; only markup that is in `added` is a marker by its id."""
    known = frozenset(added)
    tokens: list[Token] = []
    for index, part in enumerate(_MARKUP.split(text)):
        is_marker = index % 2 == 1 and part in known
        if not is_marker and tokens and not tokens[-1].is_marker:
            tokens[-1] = Token(tokens[-1].text + part)
        elif part:
            tokens.append(Token(part, is_marker))
    return tokens


def divided(tokens: Iterable[Token], longest: int, seed: int) -> list[Token]:
    """Returns the tokens with their ordinary text divided at random, into at most `longest` characters."""
    source, found = random.Random(seed), []
    for token in tokens:
        at = 0
        while at < len(token.text):
            end = len(token.text) if token.is_marker else at + source.randint(1, longest)
            found.append(Token(token.text[at:end], token.is_marker))
            at = end
    return found


def parsed(
    text: str, tools_format: str | None, reasoning: str | None = None, *, added: Iterable[str] = (),
    tools: Sequence[Any] = (), stopped: bool = True, single: bool = False, by_character: bool = False,
) -> list[Piece]:  # fmt: skip
    """Returns the pieces of a whole answer."""
    driver = Driver(grammar_of(tools_format, reasoning, added), tools, single=single)
    tokens = tokens_of(text, added)
    driver.push(divided(tokens, 1, 0) if by_character else tokens)
    return driver.finish(stopped=stopped)


def answer_of(pieces: Iterable[Piece]) -> Answer:
    """Returns what the pieces are, put together; checks their order."""
    reasoning, content, calls = "", "", list[Call]()
    open_call, needs_name = False, False
    for kind, text in pieces:
        text.encode()
        assert needs_name == (kind == kinds.TOOL_NAME), "a name follows its call's id, and nothing else does"
        needs_name = False
        if kind == kinds.REASONING:
            reasoning += text
        elif kind == kinds.CONTENT:
            content += text
        elif kind == kinds.TOOL_CALL:
            assert text == f"id{len(calls)}"
            calls.append(Call("", "", ended=False))
            open_call, needs_name = True, True
        elif kind == kinds.TOOL_NAME:
            assert text
            calls[-1] = calls[-1]._replace(name=text)
        elif kind == kinds.TOOL_ARGUMENTS:
            assert open_call and text
            calls[-1] = calls[-1]._replace(arguments=calls[-1].arguments + text)
        else:
            assert kind == kinds.TOOL_CALL_END and open_call and not text
            calls[-1] = calls[-1]._replace(ended=True)
            open_call = False
    return Answer(reasoning, content, calls)


def is_prefix(first: Sequence[Piece], whole: Sequence[Piece]) -> bool:
    """Returns whether `whole` only adds to `first`."""
    if not first:
        return True
    *full, (kind, text) = first
    if list(whole[: len(full)]) != full or len(whole) <= len(full):
        return False
    return whole[len(full)][0] == kind and whole[len(full)][1].startswith(text)
