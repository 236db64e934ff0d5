"""The arguments of one call as an expression: a JSON object, parameters one by one, or those of a Python call.

Properties come in the order of the schema; those that are not required may be left out.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from services.tokenizer.parsing.functions import Function
from services.tokenizer.parsing.table import Read, Table, Write
from services.tokenizer.parsing.value_types import STRING, Tools
from services.tokenizer.parsing.written_text import Markup, Piece, RuleBook, joined
from services.tokenizer.parsing.written_values import FORMATS, ParameterValues
from services.tokenizer.structured.json_schema import prepared_schema
from services.tokenizer.structured.settings import JsonForm

ANY_OBJECT: dict[str, Any] = {"type": "object"}
NAME = re.compile(r"[\w.:/-]{1,200}")  # of a function that can be written
PYTHON_NAME = re.compile(r"[^\W\d][\w.-]*")
KEY = re.compile(r"[\w.:$@-]{1,200}")  # of a parameter
PYTHON_KEY = re.compile(r"[^\W\d]\w*")
ANY_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
# Keywords with which an object's properties depend on each other, or are not known one by one.
_JOINING = ("$ref", "$dynamicRef", "anyOf", "oneOf", "allOf", "not", "if", "patternProperties", "minProperties")
_JOINING_MORE = ("maxProperties", "propertyNames", "dependentRequired", "dependentSchemas", "enum", "const")


def unwritable(write: Write, function: Function) -> str:
    """Returns why a format cannot write calls of the function by its schema; empty: it can."""
    names = PYTHON_NAME if write.arguments == "python" else NAME
    if "$name" in write.call and not names.fullmatch(function.name):
        return f"the name {function.name!r} cannot be written"
    if "$parameters" not in write.call and write.arguments == "json":
        return ""
    parameters = function.parameters
    if not isinstance(parameters, dict):
        return "its parameters are not written one by one"
    joining = next((keyword for keyword in (*_JOINING, *_JOINING_MORE) if keyword in parameters), None)
    if joining is not None:
        return f"its parameters are not written one by one, because of {joining!r}"
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or {*map(str, required)} - properties.keys():
        return "a required parameter has no schema"
    keys = PYTHON_KEY if write.arguments == "python" else KEY
    odd = next((key for key in properties if not keys.fullmatch(key)), None)
    return f"the parameter {odd!r} cannot be written" if odd is not None else ""


class WrittenArguments:
    """`ignored`: keywords of the schemas so far that have no effect."""

    def __init__(self, book: RuleBook, table: Table, write: Write, markup: Markup, form: JsonForm) -> None:
        self._book = book
        self._write = write
        self._markup = markup
        self._form = form
        self._trims = any(state.trim for state in table.states.values() if state.read is Read.VALUE)
        self._parameter = markup.pieces(write.parameter)
        self.ignored: list[str] = []

    def expression(self, function: Function, tools: Tools, *, by_schema: bool) -> str:
        """Returns the arguments of a call. Raises TandemError (INVALID_ARGUMENT) for a schema that cannot be used.

        `by_schema`: they follow the function's schema; else they are any.
        """
        root = self._prepared(function) if by_schema else self._any()
        if "$parameters" not in self._write.call and self._write.arguments == "json":
            return self._book.rule("%json " + json.dumps(root, ensure_ascii=False))
        values = ParameterValues(self._book, root, self._trims)
        properties = root.get("properties", {})
        if not properties and root.get("additionalProperties") is not False:
            return self._any_parameters(values)
        types = {key: tools.types(function.name, key) for key in properties}
        if self._write.arguments == "python":
            written = {key: f'"{key}=" {self._python(values, schema)}' for key, schema in properties.items()}
            return self._separated(list(written.items()), root.get("required", ()))
        self.ignored += (
            function.ignored(f"/properties/{key}: format")
            for key, schema in properties.items()
            if isinstance(schema, dict)
            and "format" in schema
            and schema["format"] not in FORMATS
            and types[key] >= STRING
        )
        return joined(
            self._filled(key, schema, types[key], values) + ("" if key in root.get("required", ()) else "?")
            for key, schema in properties.items()
        )

    def json_call(self, function: Function, key: str, *, by_schema: bool) -> str:
        """Returns a whole call as one JSON object, with its arguments behind `key`. Where content may be JSON as well,
        a lexer must find the same parts in both."""
        root = self._prepared(function) if by_schema else self._any()
        shared = {name: root.pop(name) for name in ("x-guidance", "$defs") if name in root}
        call = {"name": {"const": function.name}, key: root}
        body = {"type": "object", "properties": call, "required": [*call], "additionalProperties": False}
        return self._book.rule("%json " + json.dumps({**shared, **body}, ensure_ascii=False))

    def _prepared(self, function: Function) -> dict[str, Any]:
        text, ignored = prepared_schema(function.parameters, function.strict, function.place, self._form)
        self.ignored += map(function.ignored, ignored)
        root: dict[str, Any] = json.loads(text)
        return root

    def _any(self) -> dict[str, Any]:
        root: dict[str, Any] = json.loads(prepared_schema(ANY_OBJECT, False, "tools", self._form)[0])
        return root

    def _any_parameters(self, values: ParameterValues) -> str:
        """Returns any number of parameters, with any names and values."""
        if self._write.arguments == "python":
            one = f'{self._book.terminal(ANY_KEY)} "=" {values.json({})}'
            one = self._book.rule(one)
            return f'({one} (", " {one})*)?'
        return self._filled(None, {}, STRING, values) + "*"

    def _filled(self, key: str | None, schema: Any, types: frozenset[str], values: ParameterValues) -> str:
        """Returns the name of a rule for one parameter; key None: of any name."""
        found, rest = list[str](), iter(self._parameter)
        for piece in rest:
            if piece.text == "$key" and piece.is_slot:
                found.append(self._book.terminal(ANY_KEY) if key is None else Piece(key).expression)
            elif piece.is_slot:
                layout, end = self._behind_value(rest)
                found.append(values.expression(schema, types, layout, end))
            else:
                found.append(piece.expression)
        return self._book.rule(joined(found))

    @staticmethod
    def _behind_value(rest: Iterator[Piece]) -> tuple[str, Piece]:
        """Returns the text behind a value, and the marker that ends it."""
        layout = ""
        for piece in rest:
            if piece.is_marker:
                return layout, piece
            layout += piece.text
        raise ValueError("no marker follows a value")

    def _python(self, values: ParameterValues, schema: Any) -> str:
        """Returns a Python literal: JSON, of which Python's own words replace true, false and null."""
        if schema == {"type": "boolean"}:
            return '("True" | "False")'
        return '"None"' if schema == {"type": "null"} else values.json(schema)

    def _separated(self, written: Sequence[tuple[str, str]], required: Sequence[str]) -> str:
        """Returns the parameters with commas between those that are there."""
        first, later = "", ""  # from here on, if none or some came before; empty: nothing may follow
        for key, one in reversed(written):
            one = self._book.rule(one)
            now_first, now_later = joined([one, later]), joined(['", "', one, later])
            if key not in required:
                now_first = self._book.rule(f"({now_first}) | {first}" if first else f"({now_first})?")
                now_later = self._book.rule(f"({now_later}) | {later}" if later else f"({now_later})?")
            first, later = now_first, now_later
        return first
