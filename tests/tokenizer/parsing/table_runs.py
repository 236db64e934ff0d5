"""Runs tables on answers: the pieces that a table makes of a text."""

import contextlib
import json
import signal
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from services.rpc.pieces import CONTENT, REASONING, TOOL_ARGUMENTS, TOOL_CALL, TOOL_CALL_END, TOOL_NAME, Piece
from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.grammar import Start, build_grammar
from services.tokenizer.parsing.output_parser import OutputParser
from services.tokenizer.parsing.table import Read, Table
from services.tokenizer.parsing.value_types import Tools

KINDS = {CONTENT, REASONING, TOOL_CALL, TOOL_NAME, TOOL_ARGUMENTS, TOOL_CALL_END}


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in a body that does not end: a parser that does not get on would hang the test."""

    def stop(signum: int, frame: Any) -> None:
        raise TimeoutError(f"no end after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pieces_of(
    tools: Table | None,
    reasoning: Table | None,
    parts: Sequence[str],
    *,
    functions: Any = (),
    added: Collection[str] = (),
    stopped: bool = True,
) -> list[Piece]:
    """Returns the pieces of an answer that comes in these parts. Those that are one of `added` are added tokens."""
    ids = {text: index for index, text in enumerate(added)}
    grammar = build_grammar(tools, reasoning, ids, ids.values())
    writer = PieceWriter(str)
    start = Start(grammar.start, fresh=grammar.start.read is Read.REASONING)
    parser = OutputParser(grammar, start, Tools(list(functions)), writer)
    pieces = []
    for part in parts:
        if part in grammar.marker_ids.values():
            parser.marker(part, part)
        else:
            parser.text(part)
        pieces += writer.take()
    parser.finish(stopped=stopped)
    return pieces + writer.take()


def message_of(pieces: Sequence[Piece]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Returns (content, reasoning, calls with their parsed arguments)."""
    texts = {kind: "".join(text for of, text in pieces if of == kind) for kind in (CONTENT, REASONING)}
    calls: list[list[str]] = []
    for kind, text in pieces:
        if kind == TOOL_NAME:
            calls.append([text, ""])
        elif kind == TOOL_ARGUMENTS:
            calls[-1][1] += text
    return texts[CONTENT], texts[REASONING], [(name, json.loads(arguments)) for name, arguments in calls]
