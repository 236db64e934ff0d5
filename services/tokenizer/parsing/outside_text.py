"""Writes content and reasoning: the text outside of tool calls. Whitespace beside markers is layout, and is left out.

Whether whitespace is layout is known by what follows it, so it is held back until then.
"""

from services.rpc.pieces import CONTENT
from services.tokenizer.parsing.calls import PieceWriter


class OutsideText:
    def __init__(self, writer: PieceWriter, *, fresh: bool) -> None:
        self._writer = writer
        self._space: list[str] = []  # layout, unless text follows
        self._has_content = False
        self._has_text = True  # since the last marker: whitespace at the answer's end is text then
        self.fresh = fresh  # leading whitespace is layout

    def begin(self, *, fresh: bool) -> None:
        """A marker has led here. `fresh`: whitespace behind it is layout, whatever follows."""
        self.fresh = fresh or self.fresh
        self._has_text = False

    def after_call(self) -> None:
        """A call has begun or ended: whitespace behind it is layout as long as there is no content to divide."""
        self.fresh = self.fresh or not self._has_content

    def add(self, kind: int, text: str, *, before_markers: bool) -> None:
        """Writes text. `before_markers`: whitespace before a marker is layout here."""
        if self.fresh:
            self._space.clear()
            text = text.lstrip()
            if not text:
                return
            self.fresh = False
        self._has_content = self._has_content or kind == CONTENT
        if not before_markers and not self._space:
            self._writer.add(kind, text)
            self._has_text = True
            return
        body = text.rstrip()
        if not body:
            self._space.append(text)
            return
        if self._space:
            self._writer.add(kind, "".join(self._space))
            self._space.clear()
        self._writer.add(kind, body)
        if len(body) < len(text):
            self._space.append(text[len(body) :])
        self._has_text = True

    def hold(self, space: str) -> None:
        """Adds whitespace that is layout, unless text follows."""
        if space:
            self._space.append(space)

    def take_space(self) -> str:
        """Returns the whitespace held back, which a marker follows: it is not written."""
        space = "".join(self._space)
        self._space.clear()
        return space

    def finish(self, kind: int) -> None:
        """The answer has ended."""
        space = self.take_space()
        if self._has_text and not self.fresh:
            self._writer.add(kind, space)
