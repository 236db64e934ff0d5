"""What reads a call with a text that ends by itself: JSON, or Python's syntax. Readers write the pieces of the call."""

from typing import Protocol

from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.json_scanner import JsonScanner


class CallReader(Protocol):
    """`failed`: the text is no call, and none has begun. `broken`: the call has begun, and what follows cannot be read.
    `done`: everything has been read."""

    failed: bool
    broken: bool
    done: bool

    @property
    def in_string(self) -> bool:
        """Whether the text so far ends within a string: markers are text there."""

    @property
    def complete(self) -> bool:
        """Whether the open call has all of its arguments."""

    @property
    def may_end(self) -> bool:
        """Whether the open call is whole if the model ends it here."""

    def read(self, text: str) -> int:
        """Reads text; returns how much of it belongs to the call: all, unless it is `done`, `failed` or `broken`."""

    def cut(self) -> None:
        """Writes what it has read of the open call's arguments and not written: nothing more follows."""


class JsonArguments:
    """Reads the arguments of a call that has begun: one JSON object, passed on as it is written."""

    failed = False
    complete = False

    def __init__(self, writer: PieceWriter) -> None:
        self._writer = writer
        self._scanner = JsonScanner()
        self._has_begun = False
        self.broken = self.done = False

    @property
    def in_string(self) -> bool:
        return self._scanner.in_string

    @property
    def may_end(self) -> bool:
        return self.done or not self._has_begun

    def read(self, text: str) -> int:
        start = 0
        if not self._has_begun:
            start = len(text) - len(text.lstrip())
            if start == len(text):
                return start
            if text[start] != "{":
                self.broken = True
                return start
            self._has_begun = True
        end = self._scanner.scan(text, start)
        self.broken = self._scanner.broken
        self.done = end >= 0 and not self.broken
        self._writer.add_arguments(text[start:] if end < 0 else text[start:end])
        return len(text) if end < 0 else end

    def cut(self) -> None:
        pass
