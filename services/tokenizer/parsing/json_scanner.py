"""Finds the end of a JSON value in text that comes in parts.

It follows strings and brackets, and refuses what can stand nowhere in JSON. It does not check the rest of the grammar:
what it takes may still not parse. https://www.rfc-editor.org/rfc/rfc8259
"""

import re

MAX_DEPTH = 500  # of brackets; parsers of JSON have such a limit as well

_STRING = re.compile(r'["\\]')
# Outside of strings: what changes the depth, begins a string, or is not JSON.
_OUTSIDE = re.compile(r"[\"{}\[\]]|[^\w\s:,.+\-]")
_SCALAR_END = re.compile(r"[^\w.+\-]")
_CLOSES = {"{": "}", "[": "]"}


class JsonScanner:
    """Scans one value. `broken`: the text cannot be JSON. `in_string`: the text so far ends within a string."""

    __slots__ = ("_closers", "_escaped", "_kind", "broken", "in_string")

    def __init__(self) -> None:
        self.broken = False
        self.in_string = False
        self._escaped = False
        self._kind = ""  # of the value: its first character
        self._closers: list[str] = []  # of the open brackets

    def scan(self, text: str, start: int = 0) -> int:
        """Reads text from `start`; returns the index behind the value's end, -1 if it has not ended yet.

        A number, true, false or null ends where the next character is seen. Once the value is `broken`, returns the
        index of the character that broke it.
        """
        if not self._kind:
            while start < len(text) and text[start].isspace():
                start += 1
            if start == len(text):
                return -1
            self._kind = text[start]
        if self._kind in '"{[':
            return self._scan_nested(text, start)
        return self._scan_scalar(text, start)

    def _scan_scalar(self, text: str, start: int) -> int:
        end = _SCALAR_END.search(text, start)
        if end is None:
            return -1
        if end.start() == start and text[start] == self._kind and not (self._kind.isalnum() or self._kind == "-"):
            self.broken = True
        return end.start()

    def _scan_nested(self, text: str, at: int) -> int:
        length = len(text)
        while at < length:
            if self.in_string:
                at = self._scan_string(text, at)
                if at < 0 or not (self.in_string or self._closers):
                    return at
                continue
            match = _OUTSIDE.search(text, at)
            if match is None:
                return -1
            at, sign = match.end(), match[0]
            if sign == '"':
                self.in_string = True
            elif sign in _CLOSES and len(self._closers) < MAX_DEPTH:
                self._closers.append(_CLOSES[sign])
            elif self._closers and sign == self._closers[-1]:
                self._closers.pop()
                if not self._closers:
                    return at
            else:
                self.broken = True
                return at - 1
        return -1

    def _scan_string(self, text: str, at: int) -> int:
        """Returns the index behind the string's end, -1 if it has not ended."""
        if self._escaped:
            self._escaped = False
            at += 1
        while (match := _STRING.search(text, at)) is not None:
            at = match.end()
            if match[0] == '"':
                self.in_string = False
                return at
            if at == len(text):
                self._escaped = True
                return -1
            at += 1
        return -1
