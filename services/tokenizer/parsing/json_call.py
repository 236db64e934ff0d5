"""Reads a call that is one JSON object: {"name": "f", "arguments": {...}}.

Keys may come in any order, and others are ignored. Arguments are passed on as they are written, once the name is known;
Llama calls them `parameters`. Arguments that are a string with a JSON object in it are unwrapped.
"""

import re
from collections.abc import Callable

from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.json_scanner import JsonScanner
from services.tokenizer.parsing.json_text import is_object, string_value

ARGUMENTS = frozenset({"arguments", "parameters"})
NAME = "name"
FIRST_KEYS = frozenset({*ARGUMENTS, NAME, "type", "id"})  # of a call; another object than a call has others
EMPTY = frozenset({"null", '""'})  # of arguments: there are none
_NOT_SPACE = re.compile(r"\S")
Reader = Callable[["JsonCall", str, int], int]  # reads a part; returns the index behind it


class JsonCall:
    """Reads one call, as a CallReader. It is complete with name and arguments, also if the object is not closed."""

    def __init__(self, writer: PieceWriter, is_function: Callable[[str], bool] | None) -> None:
        """`is_function`: the functions that can be called. Then an object that has other keys than a call before its
        name is none, so that it need not be kept until its end. None: every object with a name is a call."""
        self._writer = writer
        self._is_function = is_function
        self._expects: Reader = JsonCall._open  # unbound: no cycle
        self._key = ""
        self._value = JsonScanner()
        self._text: list[str] = []  # of the key or value being read, unless it is passed on
        self._early = ""  # arguments that came before the name
        self._name: str | None = None
        self._has_arguments = False
        self.failed = self.broken = self.done = False

    @property
    def complete(self) -> bool:
        return self._name is not None and self._has_arguments

    @property
    def may_end(self) -> bool:
        return self.complete or (self._name is not None and (self.done or self._expects is JsonCall._comma_or_end))

    @property
    def in_string(self) -> bool:
        return self._value.in_string

    def read(self, text: str) -> int:
        at = 0
        while at < len(text) and not (self.done or self.failed or self.broken):
            at = self._expects(self, text, at)
        return at

    def _open(self, text: str, at: int) -> int:
        return self._sign(text, at, {"{": JsonCall._key_or_end})

    def _sign(self, text: str, at: int, signs: dict[str, Reader]) -> int:
        """Skips whitespace, and reads one of these characters; what they lead to comes next."""
        match = _NOT_SPACE.search(text, at)
        if match is None:
            return len(text)
        following = signs.get(match[0])
        if following is None:
            return self._fail(match.start())
        self._expects = following
        return match.end()

    def _fail(self, at: int) -> int:
        self.broken, self.failed = self._name is not None, self._name is None
        return at

    def _key_or_end(self, text: str, at: int) -> int:
        match = _NOT_SPACE.search(text, at)
        if match is None:
            return len(text)
        if match[0] == "}":
            return self._end(match.end())
        if match[0] != '"':
            return self._fail(match.start())
        self._value, self._text, self._expects = JsonScanner(), [], JsonCall._in_key
        return match.start()

    def _in_key(self, text: str, at: int) -> int:
        end = self._collect(text, at)
        if end < 0:
            return len(text)
        self._key = string_value("".join(self._text)) or ""
        if self._is_function is not None and self._name is None and self._key not in FIRST_KEYS:
            return self._fail(end)
        self._expects = JsonCall._colon
        return end

    def _colon(self, text: str, at: int) -> int:
        self._value, self._text = JsonScanner(), []
        return self._sign(text, at, {":": JsonCall._before_value})

    def _before_value(self, text: str, at: int) -> int:
        match = _NOT_SPACE.search(text, at)
        if match is None:
            return len(text)
        streamed = self._key in ARGUMENTS and match[0] == "{" and self._name is not None
        self._expects = JsonCall._in_arguments if streamed else JsonCall._in_value
        return match.start()

    def _in_arguments(self, text: str, at: int) -> int:
        end = self._value.scan(text, at)
        if self._value.broken:
            self._writer.add_arguments(text[at:end])
            return self._fail(end)
        if end < 0:
            self._writer.add_arguments(text[at:])
            return len(text)
        self._writer.add_arguments(text[at:end])
        self._has_arguments = True
        self._expects = JsonCall._comma_or_end
        return end

    def _in_value(self, text: str, at: int) -> int:
        end = self._collect(text, at)
        if end < 0:
            return len(text)
        if self._value.broken:
            self.cut()
            return self._fail(end)
        self._take("".join(self._text))
        self._text.clear()
        self._expects = JsonCall._comma_or_end
        return end

    def _take(self, value: str) -> None:
        """Takes a whole value: the name, arguments that could not be passed on as they came, or one to ignore."""
        if self._key in ARGUMENTS and not self._has_arguments:
            self._has_arguments = True
            inner = string_value(value) if value.startswith('"') else None
            self._early = inner if inner is not None and is_object(inner) else "" if value in EMPTY else value
            if self._name is not None:
                self._writer.add_arguments(self._early)
        elif self._key == NAME and self._name is None:
            name = string_value(value)
            if not name or (self._is_function is not None and not self._is_function(name)):
                self.failed = True
                return
            self._name = name
            self._writer.begin_call(name)
            self._writer.add_arguments(self._early)

    def cut(self) -> None:
        if self._key in ARGUMENTS and self._expects is JsonCall._in_value and self._name is not None:
            self._writer.add_arguments("".join(self._text))

    def _comma_or_end(self, text: str, at: int) -> int:
        match = _NOT_SPACE.search(text, at)
        if match is not None and match[0] == "}":
            return self._end(match.end())
        return self._sign(text, at, {",": JsonCall._key_or_end})

    def _end(self, at: int) -> int:
        self.done, self.failed = self._name is not None, self._name is None
        return at

    def _collect(self, text: str, at: int) -> int:
        end = self._value.scan(text, at)
        self._text.append(text[at:] if end < 0 else text[at:end])
        return end
