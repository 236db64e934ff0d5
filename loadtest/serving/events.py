"""Server-sent events: bytes in, as they come; the data of whole events out. Pure.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventDecoder:
    """One stream's. An event that its blank line has not ended is never told of."""

    def __init__(self) -> None:
        self._line = b""  # not ended yet
        self._data: list[bytes] = []  # of the event that has not ended yet
        self._at_start = True
        self._after_return = False  # a newline that comes next belongs to it

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that end within `piece`; an event's data lines are joined by newlines."""
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
