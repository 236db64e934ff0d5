"""The call that is being read: its arguments come from a reader, or as parameters one by one."""

from services.tokenizer.parsing.call_reader import CallReader, JsonArguments
from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.grammar import Node
from services.tokenizer.parsing.json_call import JsonCall
from services.tokenizer.parsing.parameters import Parameters
from services.tokenizer.parsing.python_calls import PythonCalls
from services.tokenizer.parsing.table import Read
from services.tokenizer.parsing.value_types import Tools


class OpenCall:
    """`reader`: reads the text of the current state, if that ends by itself; the call may not have begun yet."""

    def __init__(self, writer: PieceWriter, tools: Tools) -> None:
        self._writer = writer
        self._tools = tools
        self.reader: CallReader | None = None
        self.parameters = Parameters(writer, tools, "")

    @property
    def in_string(self) -> bool:
        """Whether the text so far ends within a string, in which markers are text."""
        return self.reader is not None and not self.reader.broken and self.reader.in_string

    @property
    def may_end(self) -> bool:
        """Whether the call has all of its arguments if the format ends it here."""
        return not self.parameters.in_value if self.reader is None else self.reader.may_end

    def begin(self, name: str) -> None:
        self._writer.begin_call(name)
        self.reader = None
        self.parameters = Parameters(self._writer, self._tools, name)

    def read(self, node: Node) -> None:
        """Makes the reader of a state."""
        known = self._tools.has if node.known else None
        if node.read is Read.JSON:
            self.reader = JsonArguments(self._writer)
        elif node.read is Read.JSON_CALL:
            self.reader = JsonCall(self._writer, known)
        else:
            self.reader = PythonCalls(self._writer, known)

    def end(self, *, whole: bool) -> None:
        """The format ends the call. `whole`: with all of its arguments."""
        if not whole:
            self._cut()
        elif self.reader is None:
            self.parameters.end()
        self._writer.end_call(broken=not whole)

    def finish(self, *, stopped: bool, in_layout: bool) -> None:
        """The answer ends within the call. `in_layout`: between two parts of its markup."""
        if self.reader is None:
            whole = stopped and in_layout and self.may_end
        else:
            whole = self.reader.complete or (stopped and self.reader.may_end)
        if whole:
            self.end(whole=True)
            return
        self._cut()
        if stopped:
            self._writer.break_call()

    def _cut(self) -> None:
        if self.reader is not None:
            self.reader.cut()
        else:
            self.parameters.cut()
