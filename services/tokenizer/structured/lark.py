"""Grammars of clients in llguidance's form of Lark, checked and written anew, nested in the answer's grammar.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md. Not there: special tokens (a client must not force
the model's markers), parameters, nested grammars, attributes but `lazy` and `capture`, of which the latter has no
effect. Writing them anew makes sure that llguidance reads what was checked.
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.rpc.errors import TandemError, invalid
from services.tokenizer.structured.json_schema import prepared_schema
from services.tokenizer.structured.literals import unquoted
from services.tokenizer.structured.regex import whole_regex
from services.tokenizer.structured.settings import JsonForm

MAX_SEPARATOR = 8  # characters
MAX_DEPTH = 100  # of brackets
MAX_REPEAT = 10_000
MAX_EXPANDED = 2_000  # parts of a terminal, once the terminals that it names are written out
MAX_RULES = 1_000
MAX_QUANTIFIERS = 2_000
MAX_OPERATIONS = 8  # & and ~
ATTRIBUTES = ("lazy",)
NO_EFFECT = ("capture",)  # names a part of the answer: clients that send it read the answer themselves

_TOKEN = re.compile(
    r"""(?P<skip>(?:\#|//)[^\n]*|[ \t]+)
    |(?P<newline>(?:\r?\n)+[ \t]*)
    |(?P<directive>%[a-z]+)
    |(?P<string>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<special><[^<>\s]*>)
    |(?P<reference>@[\w-]*)
    |(?P<name>[!?]*_?[A-Za-z][A-Za-z0-9_-]*)
    |(?P<number>\d+)
    |(?P<operator>->|\.\.|::|[+*?~&|:(){}\[\],.=_])""",
    re.VERBOSE | re.ASCII,
)
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


def _step(token: _Token) -> int:
    """Returns by how much brackets are deeper behind the token."""
    return (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))


def checked_lark(text: str, where: str, form: JsonForm) -> str:
    """Returns the grammar in a form that means the same. Raises TandemError (INVALID_ARGUMENT)."""
    return _Lark(text, where, form).written()


class _Lark:
    def __init__(self, text: str, where: str, form: JsonForm) -> None:
        self._text = text
        self._where = where
        self._form = form
        self._position = 0

    def written(self) -> str:
        tokens = self._without_attributes(list(self._within_depth()))
        depth = 0
        parts: list[str] = []
        for token in tokens:
            depth += _step(token)
            if depth < 0:
                raise self._error("brackets do not match")
            if token.kind == "number" and int(token.text[:9]) > MAX_REPEAT:
                raise self._error(f"a count is larger than {MAX_REPEAT}")
            if token.text in ("::", "=", "_"):
                raise self._error(f'"{token.text}" is not supported')
            if token.kind == "newline" and depth:
                continue
            parts.append(self._one(token))
        if depth:
            raise self._error("brackets do not match")
        if sum(token.text in ("&", "~") for token in tokens) > MAX_OPERATIONS:
            raise self._error(f'there are more than {MAX_OPERATIONS} "&" and "~"')
        if sum(token.text in ("*", "+", "?", "{") for token in tokens) > MAX_QUANTIFIERS:
            raise self._error(f"there are more than {MAX_QUANTIFIERS} quantifiers")
        self._check_terminals(tokens)
        return " ".join(parts)

    def _within_depth(self) -> Iterator[_Token]:
        """Yields the tokens. Brackets are nested at most MAX_DEPTH deep."""
        depth = 0
        for token in self._tokens():
            depth += _step(token)
            if depth > MAX_DEPTH:
                raise self._error(f"brackets are nested over {MAX_DEPTH} deep")
            yield token

    def _check_terminals(self, tokens: list[_Token]) -> None:
        """Refuses terminals that double again and again: llguidance writes them out."""
        named: dict[str, list[str]] = {}
        parts: list[str] = []
        for before, token in itertools.pairwise([_Token("newline", ""), *tokens]):
            if token.kind == "name":
                if before.kind == "newline":
                    parts = named.setdefault(token.text, [])
                else:
                    parts.append(token.text)
        if len(named) > MAX_RULES:
            raise self._error(f"there are more than {MAX_RULES} rules and terminals")
        sizes: dict[str, int] = {}
        for _ in named:
            sizes = {
                name: 1 + sum(sizes.get(part, 1) for part in parts) for name, parts in named.items() if name.isupper()
            }
            if max(sizes.values(), default=0) > MAX_EXPANDED:
                raise self._error(f"a terminal has more than {MAX_EXPANDED} parts")

    def _error(self, message: str) -> TandemError:
        return invalid(f"{self._where}: {message}", self._where)

    def _tokens(self) -> Iterator[_Token]:
        text = self._text
        while self._position < len(text):
            match = _TOKEN.match(text, self._position)
            if match is None:
                line = text.count("\n", 0, self._position) + 1
                raise self._error(f"line {line}: {text[self._position : self._position + 20]!r} is no Lark")
            self._position = match.end()
            kind = str(match.lastgroup)
            if kind == "directive":
                yield from self._directive(match[0])
            elif kind == "special":
                raise self._error(f"special tokens are not supported: {match[0][:50]}")
            elif kind == "reference":
                raise self._error(f"references to other grammars are not supported: {match[0][:50]}")
            elif kind != "skip":
                yield _Token(kind, match[0])

    def _directive(self, name: str) -> Iterator[_Token]:
        if name in ("%ignore", "%import"):
            yield _Token("directive", name)
        elif name == "%json":
            schema = self._json(name)
            schema, _ = prepared_schema(schema, True, self._where, self._json_form(schema))
            yield _Token("written", f"%json {schema}")
        elif name == "%regex":
            yield _Token("written", f"%regex {json.dumps(self._json(name))}")
        elif name == "%llguidance" and self._json(name) == {}:
            pass
        else:
            raise self._error(f"{name} is not supported")

    def _json_form(self, schema: Any) -> JsonForm:
        """Returns how the JSON is written: llguidance's `whitespace_flexible: false`, in the schema, has no whitespace
        but that of its separators. Its other options have no effect."""
        options = schema.get("x-guidance") if isinstance(schema, dict) else None
        if not isinstance(options, dict) or options.get("whitespace_flexible") is not False:
            return self._form
        item, key = options.get("item_separator", ","), options.get("key_separator", ":")
        for separator, mark in ((item, ","), (key, ":")):
            if not isinstance(separator, str) or len(separator) > MAX_SEPARATOR or separator.strip() != mark:
                raise self._error(f"x-guidance: {str(separator)[:20]!r} is no separator of JSON")
        return dataclasses.replace(self._form, whitespace="", separators=(item, key))

    def _json(self, name: str) -> Any:
        start = self._position
        while self._text[start : start + 1].isspace():
            start += 1
        try:
            value, self._position = _DECODER.raw_decode(self._text, start)
        except (ValueError, RecursionError) as error:
            raise self._error(f"after {name}: {str(error)[:100]}") from None
        return value

    def _without_attributes(self, tokens: list[_Token]) -> list[_Token]:
        """Returns the tokens; a rule's attributes, which are before its colon, become part of its name."""
        index, starts = 0, True
        written: list[_Token] = []
        while index < len(tokens):
            token = tokens[index]
            if starts and token.kind == "name" and [each.text for each in tokens[index + 1 : index + 2]] == ["["]:
                end = next((at for at in range(index + 2, len(tokens)) if tokens[at].text == "]"), len(tokens))
                kept = self._attributes(tokens[index + 2 : end])
                token = _Token("name", f"{token.text}[{','.join(kept)}]" if kept else token.text)
                index = end
            starts = token.kind == "newline"
            written.append(token)
            index += 1
        return written

    def _attributes(self, tokens: list[_Token]) -> list[str]:
        """Returns the attributes between two brackets that have an effect. Refuses others, and their values."""
        found = [token for token in tokens if token.text != ","]
        for before, token in zip([None, *found], found, strict=False):
            has_value = before is not None and before.text in (*NO_EFFECT, "=")
            if token.text not in (*ATTRIBUTES, *NO_EFFECT) and not (has_value and token.kind != "name"):
                raise self._error(f'the attribute "{token.text[:50]}" is not supported')
        return [token.text for token in found if token.text in ATTRIBUTES]

    def _one(self, token: _Token) -> str:
        if token.kind == "newline":
            return "\n"
        if token.kind == "string":
            ignores_case = token.text.endswith("i")
            return json.dumps(unquoted(token.text[1 : -2 if ignores_case else -1], self._where)) + "i" * ignores_case
        if token.kind == "regex":
            body, _, flags = token.text[1:].rpartition("/")
            pattern = whole_regex(f"(?{flags}){body}" if flags else body, self._where)
            return f"/{pattern}/" if pattern else '""'
        return token.text
