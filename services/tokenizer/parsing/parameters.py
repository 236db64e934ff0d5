"""Writes a call's arguments as JSON from parameters that come one by one, as text between markers.

Text values are passed on as they come; all others once they are whole.
"""

from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.json_text import escaped, json_text
from services.tokenizer.parsing.value_types import STRING, Tools, json_of


class Parameters:
    """`trim`: a line break at the very beginning and end of a value is layout."""

    def __init__(self, writer: PieceWriter, tools: Tools, function: str) -> None:
        self._writer = writer
        self._tools = tools
        self._function = function
        self._types = STRING
        self._count = 0
        self._text: list[str] = []  # of a value that is not passed on as it comes
        self._at_start = False
        self._held = ""  # a line break, which may be the last one
        self.in_value = False
        self.trim = False

    def begin(self, name: str) -> None:
        """Begins the value of a parameter."""
        self._types = self._tools.types(self._function, name)
        self._writer.add_arguments(", " if self._count else "{")
        self._writer.add_arguments(json_text(name) + ": ")
        self._count += 1
        self._at_start, self.in_value = True, True
        if self._types == STRING:
            self._writer.add_arguments('"')

    def add(self, text: str) -> None:
        """Adds text of the value."""
        if self._at_start and self.trim:
            text = text.removeprefix("\n")
        self._at_start = False
        if self._types != STRING:
            self._text.append(text)
            return
        if self.trim:
            text = self._held + text
            self._held = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        self._writer.add_arguments(escaped(text))

    def end_value(self) -> None:
        if self._types == STRING:
            self._held = ""
            self._writer.add_arguments('"')
        else:
            text = "".join(self._text)
            self._writer.add_arguments(json_of(text.removesuffix("\n") if self.trim else text, self._types))
            self._text.clear()
        self.in_value = False

    def end(self) -> None:
        """Ends the arguments, if any parameter has begun them."""
        if self._count:
            self._writer.add_arguments("}")

    def cut(self) -> None:
        """Passes on what the answer's end has cut off, as it is written."""
        if self.in_value:
            text = "".join([self._held, *self._text])
            self._writer.add_arguments(escaped(text) if self._types == STRING else text)
