"""Parses server-sent events incrementally: takes bytes, returns the data of complete events. Pure.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventDecoder:
    """The parser of one stream. An event without its final blank line is not returned."""

    def __init__(self) -> None:
        self._line = b""  # incomplete line
        self._data: list[bytes] = []  # data lines of the incomplete event
        self._at_start = True
        self._after_return = False  # a next newline belongs to the carriage return

    def feed(self, piece: bytes) -> list[bytes]:
        """Returns the data of each event that `piece` completes; data lines are joined by newlines."""
        if self._after_return and piece:
            piece = piece.removeprefix(b"\n")
            self._after_return = False
        *lines, self._line = _LINE_END.split(self._line + piece)
        self._after_return = self._after_return or piece.endswith(b"\r")
        found = []
        for line in lines:
            if self._at_start:
                line, self._at_start = line.removeprefix(_BOM), False
            if line:
                self._take(line)
            elif self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        return found

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
