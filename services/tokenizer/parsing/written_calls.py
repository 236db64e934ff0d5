"""Tool calls of a format as expressions of a grammar, so that the format's parser reads each as a whole call."""

import json
import re
from collections.abc import Mapping, Sequence

from services.grammar.fragment import literal
from services.tokenizer.parsing.functions import Function
from services.tokenizer.parsing.table import CONTENT, REASONING, Read, State, Table, Write
from services.tokenizer.parsing.value_types import Tools
from services.tokenizer.parsing.written_arguments import WrittenArguments
from services.tokenizer.parsing.written_text import ANY, Markup, Piece, RuleBook, joined, text_expression, without
from services.tokenizer.structured.settings import JsonForm

_JSON_CALL = re.compile(r'\{"name": "\$name", "(?P<key>\w+)": \$arguments\}')


def way_to_write(table: Table, added: Mapping[str, int]) -> Write | None:
    """Returns how the model writes calls in this format; None: that is not known. `added`: its added tokens."""
    return next((way for way in table.ways_to_write if {*way.needs} <= added.keys()), None)


def opening_texts(table: Table, added: Mapping[str, int]) -> list[str]:
    """Returns the markers that begin a call within content, as far as they are text: prose must not have them."""
    state = table.states.get(CONTENT, State(Read.CONTENT))
    begins = [event for event in state.on if any(rule.to not in (CONTENT, REASONING) for rule in state.rules(event))]
    return sorted(table.markers[event] for event in begins if table.markers[event] not in added)


class WrittenCalls:
    """Calls of some functions. `by_schema`: the names of those whose arguments follow their schemas.

    Every function can be written (written_arguments.unwritable). Raises TandemError (INVALID_ARGUMENT) for a schema
    that cannot be used.
    """

    def __init__(
        self,
        table: Table,
        write: Write,
        added: Mapping[str, int],
        functions: Sequence[Function],
        tools: Tools,
        by_schema: frozenset[str],
        form: JsonForm,
    ) -> None:
        self._table = table
        self._write = write
        self._book = RuleBook("call")
        self._markup = Markup(table.markers.values(), added)
        self._openings = opening_texts(table, added)
        self._functions = functions
        self._by_schema = by_schema
        self._arguments = WrittenArguments(self._book, table, write, self._markup, form)
        written = {
            function.name: self._arguments.expression(function, tools, by_schema=function.name in by_schema)
            for function in functions
        }
        self.ignored_keywords = tuple(dict.fromkeys(self._arguments.ignored))
        self._first = self._markup.pieces(write.first)
        call, self._lead = self._markup.pieces(write.call), list[Piece]()
        while call and not call[0].is_slot:  # the same in all calls
            self._lead.append(call.pop(0))
        self._call = self._book.rule(" | ".join(_filled(call, name, text) for name, text in written.items()))

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that the expressions need; read it when all expressions have been made."""
        return self._book.rules

    def calls(self, *, several: bool) -> str:
        """Returns one or several calls, and nothing else."""
        return self._calls(self._first, self._lead, several=several)

    def _calls(self, first: Sequence[Piece], lead: Sequence[Piece], *, several: bool) -> str:
        """`first`, `lead`: the text before all calls and before a call's name, as far as it is to be written."""
        texts = [piece.expression for piece in (*first, *lead)]
        call = joined([*(piece.expression for piece in self._lead), self._call])
        between = self._markup.expression(self._write.between)
        more = f"({joined([between, call])})*" if several and self._write.several else ""
        return joined([*texts, self._call, more, self._markup.expression(self._write.last)])

    def within_text(self, *, several: bool) -> str:
        """Returns text with any number of calls in it, or at most one; in formats with calls only at the answer's
        beginning: calls, or text."""
        if self._table.states.get(self._table.start, State(Read.CONTENT)).read is Read.START:
            return f"({self.calls(several=several)} | {self._text_alone()})"
        text = without(self._openings)
        opening, *rest = (*self._first, *self._lead)
        repeat = "*" if several and self._write.several else "?"
        num_first = len(self._first)
        if opening.token_id >= 0:
            terminal = self._book.terminal(text)
            return f"{terminal} ({self.calls(several=several)} {terminal}){repeat}"
        begin = self._book.terminal(f"({text}) {text_expression(opening.text)}")
        first, lead = (rest[: num_first - 1], rest[num_first - 1 :]) if num_first else ([], rest)
        calls = self._calls(first, lead, several=several)
        return f"({begin} {calls}){repeat} {self._book.terminal(text)}"

    def _text_alone(self) -> str:
        """Returns an answer without calls, in a format in which what comes first decides."""
        if self._write.content:
            text = self._book.terminal(without(self._openings))
            return joined([self._markup.expression(self._write.content), text])
        first = [self._table.markers[event] for event in self._table.states[self._table.start].on]
        starts = " | ".join(literal(marker) for marker in first)
        return self._book.terminal(without(self._openings, excluded=[rf"(/[ \t\n\r\f]*/ ({starts}) {ANY})"]))

    def or_content(self, content: str, *, several: bool) -> str:
        """Returns calls, or content with what the format writes before it."""
        found = _JSON_CALL.fullmatch(self._write.call)
        if found is not None and not self._write.first:
            calls = [self._json_call(function, found["key"]) for function in self._functions]
            return f"{' | '.join(calls)} | {content}"
        before = self._markup.expression(self._write.content)
        return f"{self.calls(several=several)} | {joined([before, f'({content})'])}"

    def _json_call(self, function: Function, key: str) -> str:
        return self._arguments.json_call(function, key, by_schema=function.name in self._by_schema)


def _filled(call: Sequence[Piece], name: str, arguments: str) -> str:
    """Returns one call from its name on. `call`: the template's pieces from there on. Names that a JSON string cannot
    have as they are come in fallback_tables.py only, whose calls are JSON."""
    slots = {
        "$name": literal(json.dumps(name, ensure_ascii=False)[1:-1]),
        "$arguments": arguments,
        "$parameters": arguments,
    }
    return joined(slots[piece.text] if piece.is_slot else piece.expression for piece in call)
