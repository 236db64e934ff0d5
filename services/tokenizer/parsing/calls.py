"""What a parser writes: pieces of content, reasoning and tool calls, in order."""

from collections.abc import Callable

from services.rpc.pieces import TOOL_ARGUMENTS, TOOL_CALL, TOOL_CALL_END, TOOL_NAME, Piece
from services.tokenizer.parsing.json_text import is_object


class PieceWriter:
    """Collects pieces until `take`. `call_id` returns the id of the choice's call with this number, from 0."""

    def __init__(self, call_id: Callable[[int], str]) -> None:
        self._call_id = call_id
        self._pieces: list[Piece] = []
        self._kind: int | None = None  # of the text that follows the pieces
        self._texts: list[str] = []  # its parts
        self._arguments: list[str] = []  # of the open call
        self.num_calls = 0  # that have begun
        self.num_ended = 0
        self.num_broken = 0  # that ended without valid arguments, or were cut by the model
        self.in_call = False

    def take(self) -> list[Piece]:
        """Returns the pieces since the last call."""
        self._join()
        taken, self._pieces = self._pieces, []
        return taken

    def _join(self) -> None:
        """Makes one piece of the parts of a text. At each part, it would take time that grows with the text."""
        if self._kind is not None:
            self._pieces.append((self._kind, "".join(self._texts)))
            self._texts.clear()
            self._kind = None

    def add(self, kind: int, text: str) -> None:
        """Adds text of a kind, which merges with its neighbour."""
        if not text:
            return
        if kind != self._kind:
            self._join()
            self._kind = kind
        self._texts.append(text)

    def begin_call(self, name: str) -> None:
        """Begins a call; one that is open stays without an end: it is broken."""
        self.break_call()
        self._join()
        self._pieces.append((TOOL_CALL, self._call_id(self.num_calls)))
        self._pieces.append((TOOL_NAME, name))
        self.num_calls += 1
        self.in_call = True

    def add_arguments(self, text: str) -> None:
        self.add(TOOL_ARGUMENTS, text)
        self._arguments.append(text)

    def end_call(self, *, broken: bool = False) -> None:
        """Ends the open call; without arguments: as an empty object, unless it is `broken`."""
        if not any(self._arguments) and not broken:
            self.add_arguments("{}")
        self.num_broken += broken or not is_object("".join(self._arguments))
        self._join()
        self._pieces.append((TOOL_CALL_END, ""))
        self.num_ended += 1
        self._arguments.clear()
        self.in_call = False

    def break_call(self) -> None:
        """Leaves the open call, if there is one, as it is: without an end."""
        self.num_broken += self.in_call
        self._arguments.clear()
        self.in_call = False
