"""Hands one choice's released text to its parser, with the tokens that are markers at their places in it.

Stop strings see the raw text, and hold back what may be the beginning of one: a marker behind such text waits as well.
"""

from collections import deque
from typing import NamedTuple

from services.rpc.pieces import Piece
from services.tokenizer.parsing.answer_format import RequestFormat


class _Marker(NamedTuple):
    """A token that is a marker, and where its text stands in the choice's raw text, in characters."""

    text: str
    start: int
    end: int


class AnswerDivider:
    """`marker_ids`: the tokens that are markers, by id."""

    def __init__(self, answer_format: RequestFormat, choice: int) -> None:
        self._parser, self._writer = answer_format.parser(choice)
        self.marker_ids = answer_format.grammar.marker_ids
        self.num_reasoning_tokens = 0
        self._markers: deque[_Marker] = deque()  # that the parser has not had
        self._text = ""  # released, that the parser has not had: the beginning of a marker's
        self._num_read = 0  # characters of raw text that the parser has had

    @property
    def is_over(self) -> bool:
        """Whether the answer ends here, because the one call that it may have has ended."""
        return self._parser.is_over

    def expect(self, marker: str, start: int, length: int) -> None:
        """Says that a token is a marker: its text has these characters of the choice's raw text."""
        self._markers.append(_Marker(marker, start, start + length))

    def push(self, released: str) -> None:
        """Adds the text that one token has released, and counts the token."""
        was_reasoning = self._parser.in_reasoning
        if self._markers:
            self._read_to_markers(self._text + released)
        elif released:
            self._read(released)
        self.num_reasoning_tokens += was_reasoning and self._parser.in_reasoning

    def _read_to_markers(self, text: str) -> None:
        while self._markers and self._markers[0].end <= self._num_read + len(text):
            marker = self._markers.popleft()
            before, length = marker.start - self._num_read, marker.end - marker.start
            self._read(text[:before])
            self._parser.marker(marker.text, text[before : before + length])
            self._num_read += length
            text = text[before + length :]
        before = self._markers[0].start - self._num_read if self._markers else len(text)
        self._read(text[:before])
        self._text = text[before:]

    def _read(self, text: str) -> None:
        if text:
            self._parser.text(text)
            self._num_read += len(text)

    def finish(self, released: str, *, stopped: bool) -> None:
        """Ends the answer after the last text. `stopped`: by the model or a stop string, not by a limit."""
        self._read_to_markers(self._text + released)
        self._read(self._text)
        self._parser.finish(stopped=stopped)

    def take(self) -> list[Piece]:
        """Returns the pieces since the last call."""
        return self._writer.take()

    @property
    def num_calls(self) -> int:
        return self._writer.num_calls

    @property
    def num_broken_calls(self) -> int:
        return self._writer.num_broken
