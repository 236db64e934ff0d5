"""A parameter's value as formats without JSON write it, as an expression: text as it is, all else as JSON.

The parser reads the value by the types that its schema names (value_types.py), so what is written here is read as a
value of the schema: text that would be read as another one of several types is not written.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from services.grammar.fragment import literal
from services.rpc.errors import invalid
from services.tokenizer.parsing.value_types import MAX_NESTING, STRING
from services.tokenizer.parsing.written_text import ANY, Piece, RuleBook, joined, text_expression, without

MAX_SCHEMAS = 10_000  # that are read for the texts of one call
_SPACE = r"[ \t\n\r\f\x{b}]*"
# Texts that are read as a value of another type, if the schema allows that one too; and those that begin as its JSON
# does, because a lexer takes the longest text.
_READ_AS = {
    "null": rf"/(?s:null.*)|{_SPACE}(?i:null|none){_SPACE}/",
    "boolean": rf"/(?s:(true|false).*)|{_SPACE}(?i:true|false){_SPACE}/",
    "integer": rf"/(?s:{_SPACE}[+-]?\d.*)/",
    "number": rf"/(?s:{_SPACE}([+-]?[\d.]|[+-]?(?i:inf|nan)).*)/",
    "object": rf"/(?s:{_SPACE}\{{.*)/",
    "array": rf"/(?s:{_SPACE}[\[(].*)/",
}
_WITHOUT_BREAKS = r"/([^\n]((?s:.*)[^\n])?)?/"  # at the beginning and end
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z]{2,63})+"
FORMATS = {
    "uuid": r"/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/",
    "ipv4": rf"/({_BYTE}\.){{3}}{_BYTE}/",
    "email": rf"/[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{_HOST}/",
    "hostname": f"/{_HOST}/",
}
Schema = Mapping[str, Any]


class ParameterValues:
    """`root`: the prepared schema of all arguments, with `x-guidance` and `$defs`. `trims`: the parser takes a line
    break at the value's beginning and end as layout."""

    def __init__(self, book: RuleBook, root: Schema, trims: bool) -> None:
        self._book = book
        self._root = root
        self._trims = trims
        self._num_read = 0  # schemas of texts

    def expression(self, schema: Any, types: frozenset[str], layout: str, end: Piece) -> str:
        """Returns a value of a prepared schema, the text `layout` behind it, and the marker `end`.

        `types`: what the parser takes the value for.
        """
        alternatives = []
        others = types - STRING
        if others:
            behind = joined([text_expression(layout), end.expression])
            restriction = {"type": sorted(others)}
            narrowed = schema if types == others else {"allOf": [schema, restriction]}
            alternatives.append(joined([self.json(narrowed), behind]))
        if types >= STRING:
            alternatives.append(self._text(schema, others, layout, end))
        return alternatives[0] if len(alternatives) == 1 else f"({' | '.join(alternatives)})"

    def json(self, schema: Any) -> str:
        """Returns the name of a rule for JSON by a part of the root's schema."""
        shared = {key: self._root[key] for key in ("x-guidance", "$defs") if key in self._root}
        body = schema if isinstance(schema, dict) else {} if schema else {"not": {}}
        return self._book.rule("%json " + json.dumps({**shared, **body}, ensure_ascii=False))

    def _text(self, schema: Any, others: frozenset[str], layout: str, end: Piece) -> str:
        """Returns a text and the marker behind it. One terminal has both, where the marker is text: a text that may
        be anything goes on to the longest one, and only together they have one end."""
        parts = list(self._constraints(schema, MAX_NESTING))
        if parts and self._trims:
            parts.append(_WITHOUT_BREAKS)
        read_as = [_READ_AS[kind] for kind in sorted(others) if kind in _READ_AS]
        text = without([end.text], " & ".join(parts) or ANY, read_as)
        tail = text_expression(layout)
        if end.token_id >= 0:
            return joined([self._book.terminal(text), tail, end.expression])
        return self._book.terminal(joined([f"({text})", tail, end.expression]))

    def _constraints(self, schema: Any, depth: int) -> Iterator[str]:
        """Yields expressions that all match a text of the schema; none: any text does."""
        self._num_read += 1
        if self._num_read > MAX_SCHEMAS:
            raise invalid("tools: the schema of a text has too many alternatives", "tools")
        if not isinstance(schema, dict) or depth == 0:
            return
        yield from _own_constraints(schema)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            name = reference.removeprefix("#/$defs/")
            yield from self._constraints(self._root.get("$defs", {}).get(name), depth - 1)
        for part in schema.get("allOf", ()):
            yield from self._constraints(part, depth - 1)
        options = schema.get("anyOf", ())
        alternatives = []
        for option in options:
            if not isinstance(option, dict) or not self._may_be_text(option, depth - 1):
                continue
            inner = list(self._constraints(option, depth - 1))
            if not inner:
                return
            alternatives.append(f"({' & '.join(inner)})")
        if alternatives:
            yield f"({' | '.join(alternatives)})"

    def _may_be_text(self, schema: Any, depth: int) -> bool:
        """Whether the types that a schema names have text among them."""
        if not isinstance(schema, dict) or depth == 0:
            return bool(schema)
        types = schema.get("type")
        if types is not None and "string" not in (types if isinstance(types, list) else [types]):
            return False
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None and not any(isinstance(value, str) for value in values):
            return False
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._may_be_text(self._root.get("$defs", {}).get(reference.removeprefix("#/$defs/")), depth - 1)
        return True


def _own_constraints(schema: Schema) -> Iterator[str]:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        texts = [literal(value) for value in values if isinstance(value, str)]
        yield f"({' | '.join(texts)})" if texts else f"(~{ANY})"
    if "pattern" in schema:
        yield _searched(schema["pattern"])
    if "minLength" in schema or "maxLength" in schema:
        yield f"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})/"
    if schema.get("format") in FORMATS:
        yield FORMATS[schema["format"]]


def _searched(pattern: str) -> str:
    """Returns an expression of the texts in which a prepared pattern is found; `^` and `$` stand only at its ends."""
    alternatives = []
    for one in _alternatives(pattern):
        begins, ends = one.startswith("^"), one.endswith("$") and not one.endswith("\\$")
        body = one[begins : len(one) - ends]
        parts = ["" if begins else "(?s:.*)", f"(?:{body})", "" if ends else "(?s:.*)"]
        alternatives.append("/" + "".join(parts) + "/")
    return f"({' | '.join(alternatives)})"


def _alternatives(pattern: str) -> list[str]:
    """Returns what stands between the `|` outside of brackets."""
    depth, start, at, found, in_class = 0, 0, 0, list[str](), False
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            at += 1
        elif in_class:
            in_class = sign != "]"
        elif sign == "[":
            in_class = True
        elif sign in "()":
            depth += 1 if sign == "(" else -1
        elif sign == "|" and depth == 0:
            found.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*found, pattern[start:]]
