"""Tool calls in the answer to a chat: whole in a message, in parts in the deltas of a stream.

A call has OpenAI's form as an entry of `tool_calls`, or, if the request has `functions`, the older one of
`function_call`. Arguments are text: valid JSON only if the model wrote valid JSON.
https://platform.openai.com/docs/api-reference/chat/object and .../chat-streaming
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from services.rpc.pieces import TOOL_ARGUMENTS, TOOL_CALL, TOOL_NAME, Piece

Json = dict[str, Any]


class CalledFunction(TypedDict):
    name: str
    arguments: str


class MessageToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


def calls_of(pieces: Iterable[Piece]) -> list[MessageToolCall]:
    """Returns the calls of an answer, in order. One that the answer's end cut off has the arguments so far."""
    calls: list[MessageToolCall] = []
    for kind, text in pieces:
        if kind == TOOL_CALL:
            calls.append({"id": text, "type": "function", "function": {"name": "", "arguments": ""}})
        elif kind == TOOL_NAME:
            calls[-1]["function"]["name"] = text
        elif kind == TOOL_ARGUMENTS:
            calls[-1]["function"]["arguments"] += text
    return calls


class CallForm(ABC):
    """How an API version writes calls. `finish_reason`: of a choice that stopped and has a call."""

    finish_reason: str

    @abstractmethod
    def in_message(self, calls: Sequence[MessageToolCall]) -> Json:
        """Returns the fields of a message with these calls; none without calls."""

    @abstractmethod
    def name_delta(self, index: int, call_id: str, name: str) -> Json:
        """Returns the delta that begins call number `index`, from 0."""

    @abstractmethod
    def arguments_delta(self, index: int, arguments: str) -> Json:
        """Returns the delta with a part of the arguments of call number `index`."""


class ToolCalls(CallForm):
    finish_reason = "tool_calls"

    def in_message(self, calls: Sequence[MessageToolCall]) -> Json:
        return {"tool_calls": list(calls)} if calls else {}

    def name_delta(self, index: int, call_id: str, name: str) -> Json:
        function = {"name": name, "arguments": ""}
        return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}

    def arguments_delta(self, index: int, arguments: str) -> Json:
        return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


class FunctionCall(CallForm):
    """The older form has one call per message, without an id. The request asks the tokenizer for no more than one."""

    finish_reason = "function_call"

    def in_message(self, calls: Sequence[MessageToolCall]) -> Json:
        return {"function_call": calls[0]["function"]} if calls else {}

    def name_delta(self, index: int, call_id: str, name: str) -> Json:
        return {"function_call": {"name": name, "arguments": ""}}

    def arguments_delta(self, index: int, arguments: str) -> Json:
        return {"function_call": {"arguments": arguments}}


class StreamedCalls:
    """Turns the pieces of one choice's calls into deltas, in order."""

    def __init__(self, form: CallForm) -> None:
        self._form = form
        self._index = -1  # of the latest call
        self._id = ""

    def delta(self, piece: Piece) -> Json | None:
        """Returns the delta of a piece; None if the piece is of another kind or has nothing to show.

        A call shows with its name, so that its first delta has both.
        """
        kind, text = piece
        if kind == TOOL_ARGUMENTS:
            return self._form.arguments_delta(self._index, text)
        if kind == TOOL_NAME:
            return self._form.name_delta(self._index, self._id, text)
        if kind == TOOL_CALL:
            self._index += 1
            self._id = text
        return None
